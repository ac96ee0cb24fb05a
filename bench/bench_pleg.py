"""The PLEG end to end: a simulated runtime in a process of its own, gRPC over a unix socket, wall-clock time.

A relist that finds nothing changed at three sizes; 500 pods that are new at once while each status call takes
100 ms; and what lies between a container's end and the event that tells the sync loop of it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from prometheus_client import CollectorRegistry
from pytest_benchmark.fixture import BenchmarkFixture

from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.connect import CRIServices, open_cri
from trio_kubelet.native import RelistTable
from trio_kubelet.observed.types import (
    ContainerState,
    ContainerStatus,
    PodLifecycleEvent,
    PodLifecycleEventType,
    PodParts,
    PodStatus,
)
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.pleg.evented import EventedPLEG
from trio_kubelet.pleg.generic import GenericPLEG, GenericSettings, RelistDuration
from trio_kubelet.pleg.metrics import PLEGMetrics
from trio_kubelet.runtime.status_reader import StatusReader

SIZES = {100: (20, 5), 1_000: (200, 5), 10_000: (2_000, 5)}  # containers: pods, containers of each
SLOW_STATUS = '[{"kind": "slow", "method": "*Status", "seconds": 0.1}]'
ONLY_WHEN_ASKED = RelistDuration(period=3600.0)

_SIM = "import sys; from trio_kubelet.sim import main; sys.exit(main(sys.argv[1:]))"
T = TypeVar("T")


@contextmanager
def runtime(base: Path, pods: int, containers: int, *more: str) -> Iterator[str]:
    """The socket of a simulated runtime with so many pods running."""
    socket = base / "sim.sock"
    arguments = ["--socket", str(socket), "--pods", str(pods), "--containers", str(containers), *more]
    process = subprocess.Popen([sys.executable, "-c", _SIM, *arguments], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield str(socket)
    finally:
        process.terminate()
        process.wait()


class Reader:
    """Reads pod statuses as the agent does, and sets an event once it has read `expected` of them."""

    def __init__(self, services: CRIServices, expected: int) -> None:
        self._reader = StatusReader(services.runtime, SystemClock())
        self._left = expected
        self.all_read = trio.Event()

    async def read_pod_status(self, parts: PodParts) -> PodStatus:
        status = await self._reader.parts(parts)
        self._left -= 1
        if self._left == 0:
            self.all_read.set()
        return status


class RunningPLEG:
    """A PLEG whose Trio loop runs in a thread; it has looked at all `pods` when it is ready."""

    def __init__(self, endpoint: str, pods: int, *, evented: bool = False) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run, endpoint, pods, evented))
        self._thread.start()
        self._ready.wait()

    async def _run(self, endpoint: str, pods: int, evented: bool) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        clock, metrics, self.cache = SystemClock(), PLEGMetrics(CollectorRegistry()), StatusCache()
        async with open_cri(endpoint, direct=True) as self.services, trio.open_nursery() as nursery:
            reader = Reader(self.services, pods)
            self.pleg = GenericPLEG(
                runtime=self.services.runtime,
                reader=reader,
                table=RelistTable(),
                cache=self.cache,
                clock=clock,
                metrics=metrics,
                settings=GenericSettings(duration=ONLY_WHEN_ASKED, capacity=100_000),
            )
            began = trio.current_time()
            await nursery.start(self.pleg.run)
            await reader.all_read.wait()
            self.took = trio.current_time() - began
            if evented:
                events = EventedPLEG(
                    generic=self.pleg,
                    runtime=self.services.runtime,
                    cache=self.cache,
                    clock=clock,
                    metrics=metrics,
                )
                nursery.start_soon(events.run)
                await trio.sleep(1)
            self._ready.set()
            await self._stop.wait()
            nursery.cancel_scope.cancel()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """The result of an async function, run in the PLEG's loop."""
        return trio.from_thread.run(function, trio_token=self._token)

    def close(self) -> None:
        """Ends the loop."""
        self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    async def next_died(self) -> PodLifecycleEvent:
        """The next event that tells of a container's end."""
        async for event in self.pleg.watch():
            if event.type is PodLifecycleEventType.CONTAINER_DIED:
                return event
        raise AssertionError("the PLEG ended")


@pytest.mark.parametrize("size", SIZES)
def test_relist_end_to_end(benchmark: BenchmarkFixture, tmp_path: Path, size: int) -> None:
    """Both lists asked for, carried, compared; nothing changed. Also the CPU time of the agent's side."""
    pods, containers = SIZES[size]
    benchmark.group = f"PLEG: relist, {size} containers"
    with runtime(tmp_path, pods, containers) as endpoint:
        node = RunningPLEG(endpoint, pods)
        try:
            cpu, rounds = time.process_time(), 30
            relisted = benchmark.pedantic(  # type: ignore[no-untyped-call]
                node.call, (node.pleg.relist,), rounds=rounds, warmup_rounds=2
            )
            benchmark.extra_info["cpu_ms"] = (time.process_time() - cpu) / (rounds + 2) * 1e3
        finally:
            node.close()
    assert relisted


def test_500_pods_at_once_with_slow_status_calls(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """From the relist that finds them to the last status in the cache; at most 5 s."""
    script = tmp_path / "faults.json"
    script.write_text(SLOW_STATUS)
    benchmark.group = "PLEG: 500 pods changed, 100 ms per status call"

    took: list[float] = []

    def look_at_all() -> None:
        node = RunningPLEG(endpoint, 500)
        node.close()
        took.append(node.took)

    with runtime(tmp_path, 500, 2, "--faults", str(script)) as endpoint:
        benchmark.pedantic(look_at_all, rounds=3)  # type: ignore[no-untyped-call]
    benchmark.extra_info["seconds"] = min(took)
    assert min(took) < 5


def test_from_death_to_event(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """A container is ended through the runtime; the sync loop hears of it by the runtime's event, not by a
    relist. `extra_info` has the time since the moment of the end as the runtime tells it.
    """
    benchmark.group = "PLEG: event latency, 1000 containers"
    latencies: list[float] = []
    with runtime(tmp_path, 200, 5) as endpoint:
        node = RunningPLEG(endpoint, 200, evented=True)
        alive = [c.id for uid in node.cache.uids() for c in _containers(node, uid)]

        async def die() -> None:
            container_id = alive.pop()
            await node.services.runtime.stop_container(container_id, 0)
            event = await node.next_died()
            heard_ns = time.time_ns()
            assert event.data == container_id
            [dead] = [c for c in _containers(node, event.pod_uid) if c.id == container_id]
            assert dead.state is ContainerState.EXITED
            latencies.append((heard_ns - dead.finished_at_ns) / 1e6)

        try:
            benchmark.pedantic(node.call, (die,), rounds=100, warmup_rounds=5)  # type: ignore[no-untyped-call]
        finally:
            node.close()
    benchmark.extra_info["death_to_event_ms"] = statistics.median(latencies)
    assert statistics.median(latencies) < 50


def _containers(node: RunningPLEG, uid: str) -> tuple[ContainerStatus, ...]:
    status = node.cache.get(uid)
    return status.containers if status is not None else ()
