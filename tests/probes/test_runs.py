"""One run of a probe: what cannot be run, and commands in containers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trio_kubelet.api import v1
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.cri.errors import CRIError, DeadlineExceeded, ResourceExhausted, Unavailable
from trio_kubelet.observed.probes import Outcome, Verdict
from trio_kubelet.probes.runners import run_probe

CONTAINER = v1.Container(name="c", ports=[v1.ContainerPort(name="web", container_port=8080)])


async def test_a_probe_that_cannot_be_run_is_an_error_after_three_attempts() -> None:
    probe = v1.Probe(http_get=v1.HTTPGetAction(port="nope"), timeout_seconds=1)

    async def no_exec(*args: object) -> None:
        raise AssertionError

    outcome = await run_probe(probe, CONTAINER, "id", "10.0.0.1", no_exec)  # type: ignore[arg-type]
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.error


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(Unavailable("the runtime is away"), 3), (ResourceExhausted("message larger than max"), 1)],
)
async def test_a_command_that_says_too_much_is_run_once(error: CRIError, attempts: int) -> None:
    """It would say as much again at once; every other error may have passed."""
    probe, ran = v1.Probe(exec=v1.ExecAction(command=["flood"])), list[str]()

    async def run(container_id: str, command: Sequence[str], timeout: float, enough: int) -> ExecResult:
        ran.append(container_id)
        raise error

    outcome = await run_probe(probe, CONTAINER, "id", "", run)
    assert (outcome.verdict, outcome.error, len(ran)) == (Verdict.UNKNOWN, str(error), attempts)


async def test_a_command_is_run_with_the_plain_variables_of_the_container() -> None:
    """Variables from elsewhere count as empty, unknown ones stay."""
    field = v1.EnvVarSource(field_ref=v1.ObjectFieldSelector(field_path="metadata.name"))
    env = [v1.EnvVar(name="PORT", value="80"), v1.EnvVar(name="POD", value_from=field)]
    probe = v1.Probe(exec=v1.ExecAction(command=["check", "$(PORT)", "<$(POD)>", "$(NO)", "$$(PORT)"]))
    ran: list[str] = []

    async def run(container_id: str, command: Sequence[str], timeout: float, enough: int) -> ExecResult:
        ran.extend(command)
        return ExecResult(b"", b"", 0)

    outcome = await run_probe(probe, v1.Container(name="c", env=env), "id", "", run)
    assert outcome.verdict is Verdict.SUCCESS
    assert ran == ["check", "80", "<>", "$(NO)", "$(PORT)"]


async def test_a_command_that_its_variables_make_too_long_is_not_run() -> None:
    """A short manifest would fill the node's memory with it each second."""
    probe = v1.Probe(exec=v1.ExecAction(command=["$(BIG)" * 10_000]))
    big = v1.Container(name="c", env=[v1.EnvVar(name="BIG", value="x" * 100_000)])

    async def run(*args: object) -> ExecResult:
        raise AssertionError("it was run")

    outcome = await run_probe(probe, big, "id", "", run)
    assert outcome == Outcome(
        Verdict.UNKNOWN, error="references to variables stand for more than 1048576 characters"
    )


@pytest.mark.parametrize(("seconds", "shown"), [(2, "2s"), (60, "1m0s"), (3605, "1h0m5s")])
async def test_a_command_that_takes_too_long_fails(seconds: int, shown: str) -> None:
    probe = v1.Probe(exec=v1.ExecAction(command=["sleep", "9"]), timeout_seconds=seconds)

    async def run(container_id: str, command: Sequence[str], timeout: float, enough: int) -> ExecResult:
        raise DeadlineExceeded("over", "ExecSync")

    outcome = await run_probe(probe, CONTAINER, "id", "", run)
    assert outcome == Outcome(Verdict.FAILURE, f'command timed out: "sleep 9" timed out after {shown}')
