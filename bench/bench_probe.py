"""What one exec probe costs the agent, in CPU time: `python -m bench.bench_probe`; the last line is JSON.

The probe manager as the agent runs it, with the agent's own connection to a simulated runtime in another
process: 50 probes with a period of a second each, the pace of 500 with ten. The baseline in the same run
makes the same calls at the same pace and does nothing else: `bare` is a task that sleeps and calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry

from tests.containerd.harness import wait_until
from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.caller import CallMetrics
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.doors import ExecResult, Repeat
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.probes.manager import ProbeManager
from trio_kubelet.probes.metrics import ProbeMetrics

PROBES = 50


class Nobody:
    """Takes events."""

    def record(self, *event: object) -> None:
        pass


async def cpu_of(seconds: float) -> float:
    """CPU seconds of this process for each second."""
    before, began = time.process_time(), time.monotonic()
    await trio.sleep(seconds)
    return (time.process_time() - before) / (time.monotonic() - began)


async def cpu_of_each(made: Callable[[], int], seconds: float) -> float:
    """CPU seconds for each of what was made so many times."""
    before, began = made(), time.monotonic()
    share = await cpu_of(seconds)
    return share / ((made() - before) / (time.monotonic() - began))


def add_pods(manager: ProbeManager, probe: v1.Probe, ids: Iterable[str]) -> None:
    """Pods of a container each, with these ids, that is to be probed."""
    for number, container_id in enumerate(ids):
        one = v1.Container(name="c", image="i", readiness_probe=probe)
        pod = make_pod(f"p{number}", containers=[one])
        manager.add_pod(pod)
        running = v1.ContainerState(running=v1.ContainerStateRunning("2024-01-01T00:00:00Z"))
        status = v1.ContainerStatus(
            name="c", container_id=f"sim://{container_id}", state=running, started=True
        )
        manager.pod_status_changed(
            pod, v1.PodStatus(phase="Running", pod_ip="127.0.0.1", container_statuses=[status])
        )


async def probing(runtime: RuntimeService, seconds: float) -> float:
    """CPU seconds for each probe of the manager's."""
    metrics, made = ProbeMetrics(), 0
    probe = v1.Probe(exec=v1.ExecAction(command=["true"]), period_seconds=1, timeout_seconds=5)

    async def exec_sync(container: str, command: Sequence[str], timeout: float, enough: int) -> ExecResult:
        nonlocal made
        made += 1
        return await runtime.exec_sync(container, command, timeout, enough)

    def repeat_exec(
        container: str,
        command: Sequence[str],
        timeout: float,
        due: float,
        period: float,
        passed: Callable[[float], None],
        end: Callable[[ExecResult | CRIError | None, float], None],
    ) -> Repeat | None:
        def counted(seconds: float) -> None:
            nonlocal made
            made += 1
            passed(seconds)

        return runtime.repeat_exec(container, command, timeout, due, period, counted, end)

    manager = ProbeManager(
        exec_sync=exec_sync,
        repeat_exec=repeat_exec,
        recorder=Nobody(),
        clock=SystemClock(),
        metrics=metrics,
    )
    containers = await runtime.list_containers()
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        add_pods(manager, probe, [found.id for found in containers])
        await trio.sleep(5)
        each = await cpu_of_each(lambda: made, seconds)
        nursery.cancel_scope.cancel()
    return each


async def bare(runtime: RuntimeService, seconds: float) -> float:
    """CPU seconds for each call that nobody schedules."""
    ids = [each.id for each in await runtime.list_containers()]
    made = 0

    async def call_for_ever() -> None:
        nonlocal made
        while True:
            await trio.sleep(1 / PROBES)
            await runtime.exec_sync(ids[made % len(ids)], ["true"], 5)
            made += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_for_ever)
        await trio.sleep(0.5)
        each = await cpu_of_each(lambda: made, seconds)
        nursery.cancel_scope.cancel()
    return each


async def figures(seconds: float, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {"probe_us": [], "bare_call_us": []}
    with tempfile.TemporaryDirectory() as scratch:
        socket = Path(scratch) / "cri.sock"
        command = [sys.executable, "-m", "trio_kubelet", "sim", f"--socket={socket}", f"--pods={PROBES}"]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL)
        try:
            await wait_until(socket.exists, 20, "the simulated runtime's socket")
            metrics = CallMetrics(CollectorRegistry())
            async with open_cri(f"unix://{socket}", on_call=metrics, direct=True) as services:
                works: dict[str, Callable[[RuntimeService, float], Awaitable[float]]] = {
                    "probe_us": probing, "bare_call_us": bare
                }  # fmt: skip
                for _ in range(rounds):
                    for name, work in works.items():
                        found[name].append(1e6 * await work(services.runtime, seconds))
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
    return {"load": os.getloadavg()[0], **{name: round(min(each), 1) for name, each in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(trio.run(figures, options.seconds, options.rounds)))


if __name__ == "__main__":
    main()
