"""A round that finds everything as it was does not generate the pod's status again; any change is shown."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.pods.build import make_pod
from tests.pods.world import NoProbes, World
from trio_kubelet.api.v1 import Container, Probe
from trio_kubelet.observed.probes import ProbeResult, ProbeView
from trio_kubelet.pods.refs import FAILED
from trio_kubelet.pods.status.generate import generate_status

ROUNDS = 300.0  # seconds: at least three rounds of a pod that is left alone


class Verdicts(NoProbes):
    """Probes whose verdicts the test gives."""

    def __init__(self) -> None:
        super().__init__()
        self.readiness: dict[str, ProbeResult] = {}

    def view(self) -> ProbeView:
        return ProbeView(active=True, readiness=self.readiness, kept_before_ns=1)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """UIDs of pods whose status was generated."""
    found: list[str] = []

    def counted(pod: Any, *rest: Any, **more: Any) -> Any:
        found.append(pod.metadata.uid)
        return generate_status(pod, *rest, **more)

    monkeypatch.setattr("trio_kubelet.pods.status.reporter.generate_status", counted)
    return found


async def test_nothing_new_is_not_generated(autojump_clock: trio.abc.Clock, generated: list[str]) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await world.add(pod)
        await trio.sleep(ROUNDS)
        shown, count = world.status(pod), len(generated)
        await trio.sleep(ROUNDS)
        assert len(generated) == count
        assert world.status(pod) == shown
        world.runtime.die(pod.metadata.uid)
        await world.until(lambda: world.status(pod).container_statuses[0].restart_count == 1)  # type: ignore[index]
        assert len(generated) > count


async def test_a_verdict_is_shown_in_the_next_round(
    autojump_clock: trio.abc.Clock, generated: list[str]
) -> None:
    verdicts = Verdicts()
    world = World(probes=verdicts)
    pod = make_pod(containers=[Container(name="main", readiness_probe=Probe())])
    async with world.running():
        await world.add(pod)
        await trio.sleep(ROUNDS)
        [before] = world.status(pod).container_statuses or []
        assert not before.ready
        verdicts.readiness[before.container_id.rpartition("//")[2]] = ProbeResult.SUCCESS
        await trio.sleep(ROUNDS / 2)
        [after] = world.status(pod).container_statuses or []
        assert after.ready


async def test_a_deadline_passes_in_an_idle_round(
    autojump_clock: trio.abc.Clock, generated: list[str]
) -> None:
    world, pod = World(), make_pod(spec={"active_deadline_seconds": 500})
    async with world.running():
        await world.add(pod)
        await trio.sleep(ROUNDS)
        assert world.status(pod).phase == "Running"
        await trio.sleep(ROUNDS)
        assert (world.status(pod).phase, world.status(pod).reason) == (FAILED, "DeadlineExceeded")
