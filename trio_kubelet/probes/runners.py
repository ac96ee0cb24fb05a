"""Running one probe: exec, HTTP, TCP or gRPC (kubelet: `pkg/kubelet/prober/prober.go`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.log import go_quote
from trio_kubelet.cri.doors import SILENT, ExecResult, Repeat
from trio_kubelet.cri.errors import CRIError, DeadlineExceeded, ResourceExhausted
from trio_kubelet.net.dial import DialError, dial, join_host_port, resolve_port
from trio_kubelet.net.http import build_request, probe_http
from trio_kubelet.observed.probes import Outcome, Verdict
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.downward import expand_all

ATTEMPTS = 3
"""A probe that could not be run at all is tried that often at once."""
MAX_OUTPUT = 10 * 1024
_MOST_EXPANDED = 1 << 20
"""Characters that variables may stand for in a probe's command: each second anew. Linux takes hardly more."""

_PASSED = Outcome(Verdict.SUCCESS)

Exec = Callable[[str, Sequence[str], float, int], Awaitable[ExecResult]]
"""Runs a command in a container: (its id, command, timeout in seconds, how much of its output will do)."""

RepeatExec = Callable[
    [
        str,
        Sequence[str],
        float,
        float,
        float,
        Callable[[float], None],
        Callable[[ExecResult | CRIError | None, float], None],
    ],
    Repeat | None,
]
"""Runs one again and again while it passes, if it can; see `RuntimeService.repeat_exec`."""


async def run_probe(
    probe: v1.Probe,
    container: v1.Container,
    container_id: str,
    pod_ip: str,
    exec_sync: Exec,
    attempts: int = ATTEMPTS,
) -> Outcome:
    """Runs a probe; again, a bounded number of times, while it cannot be run at all.

    (The kubelet does that for every error. One that writes more than a message holds, 16 MiB,
    would so cost its node three times as much as one that writes less.)
    """
    outcome = Outcome(Verdict.UNKNOWN)
    for _ in range(attempts):
        try:
            outcome = await _attempt(probe, container, container_id, pod_ip, exec_sync)
        except ValueError as exc:
            outcome = Outcome(Verdict.UNKNOWN, error=str(exc))
        if not is_worth_another(outcome):
            break
    return outcome


def is_worth_another(outcome: Outcome) -> bool:
    """Whether a probe is run once more: it could not be run, and perhaps can be."""
    return outcome.error is not None and not outcome.lasting


def _attempt(
    probe: v1.Probe,
    container: v1.Container,
    container_id: str,
    pod_ip: str,
    exec_sync: Exec,
) -> Awaitable[Outcome]:
    """One run, to be awaited. Raises ValueError for what the probe cannot be made of."""
    timeout = float(probe.timeout_seconds)
    if probe.exec is not None:
        command = static_command(probe.exec, container)
        return _probe_exec(container_id, command, timeout, exec_sync)
    if probe.http_get is not None:
        return probe_http(build_request(probe.http_get, container, pod_ip), timeout)
    if probe.tcp_socket is not None:
        port = resolve_port(probe.tcp_socket.port, container)
        return probe_tcp(probe.tcp_socket.host or pod_ip, port, timeout)
    if probe.grpc is not None:
        from trio_kubelet.probes.grpc import probe_grpc  # and with it HTTP/2

        return probe_grpc(pod_ip, probe.grpc.port, probe.grpc.service or "", timeout)
    raise ValueError(f"missing probe handler for container {container.name}")


def static_command(action: v1.ExecAction, container: v1.Container) -> Sequence[str]:
    """The command with the container's plain variables put in; what comes from elsewhere counts as empty.
    Raises ValueError when that is too much.
    """
    command = action.command or ()
    if not any("$" in word for word in command):  # as in most
        return command
    try:
        variables = {variable.name: variable.value for variable in container.env or ()}
        return expand_all(command, variables, _MOST_EXPANDED)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc


async def _probe_exec(container_id: str, command: Sequence[str], timeout: float, exec_sync: Exec) -> Outcome:
    found: ExecResult | CRIError
    try:
        found = await exec_sync(container_id, command, timeout, MAX_OUTPUT)
    except CRIError as exc:
        found = exc
    return exec_outcome(found, command, timeout)


def exec_outcome(found: ExecResult | CRIError, command: Sequence[str], timeout: float) -> Outcome:
    """What a command that was run, or could not be, says of its container."""
    if isinstance(found, DeadlineExceeded):
        words = go_quote(" ".join(command))
        return Outcome(
            Verdict.FAILURE, f"command timed out: {words} timed out after {format_duration(timeout)}"
        )
    if isinstance(found, CRIError):
        too_much = isinstance(found, ResourceExhausted)
        return Outcome(Verdict.UNKNOWN, error=str(found), lasting=too_much)
    if found == SILENT:
        return _PASSED
    said = (found.stdout[:MAX_OUTPUT] + found.stderr[:MAX_OUTPUT])[:MAX_OUTPUT]
    output = said.decode("utf-8", "replace")
    return Outcome(Verdict.SUCCESS if found.exit_code == 0 else Verdict.FAILURE, output)


async def probe_tcp(host: str, port: int, timeout: float) -> Outcome:
    """A connection that can be opened is success."""
    try:
        with trio.fail_after(timeout):
            stream = await dial(host, port)
    except trio.TooSlowError:
        return Outcome(Verdict.FAILURE, f"dial tcp {join_host_port(host, port)}: i/o timeout")
    except DialError as exc:
        return Outcome(Verdict.FAILURE, str(exc))
    stream.socket.close()
    return Outcome(Verdict.SUCCESS)
