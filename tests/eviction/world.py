"""The eviction manager over doors in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.eviction.build import pod_stats
from tests.node.world import Said
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.eviction.manager import EvictionManager, EvictionSettings
from trio_kubelet.eviction.metrics import EvictionMetrics
from trio_kubelet.eviction.monitor import PressureMonitor, PressureSettings
from trio_kubelet.eviction.signals import SignalPlaces
from trio_kubelet.eviction.thresholds import Signal, Threshold
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService
from trio_kubelet.stats.summary_types import FsStats, PodStats

Clock = trio.testing.MockClock


def a_pod(name: str, priority: int = 0, size_limit: str = "") -> v1.Pod:
    volumes = None
    if size_limit:
        volumes = [v1.Volume(name="v", empty_dir=v1.EmptyDirVolumeSource(size_limit=size_limit))]
    return v1.Pod(
        metadata=v1.ObjectMeta(name=name, namespace="default", uid=name),
        spec=v1.PodSpec(containers=[v1.Container(name="c")], priority=priority, volumes=volumes),
    )


class JumpyClock(TrioClock):
    """A wall clock that somebody sets."""

    jumped_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.jumped_ns


class World:
    """A node whose pods use what `uses` says, and give it back when they have stopped."""

    def __init__(self, *thresholds: Threshold, period: float = 300.0, disk: bool = False) -> None:
        self.clock = JumpyClock(1_700_000_000 * NANOSECONDS)
        self.capacity, self.taken = 1000, 0
        self.reads = 0
        self.pods: dict[str, v1.Pod] = {}
        self.uses: dict[str, int] = {}
        self.evicted: list[tuple[str, int, str]] = []
        self.evicted_at: list[float] = []
        self.freed: list[str] = []
        self.measured_times = 0
        self.looks_at_disks = 0
        self.layers_after_a_look = ""
        self.layers_at = "9999"
        self.images = 0
        self.reclaim_seconds = 0.0
        self.memory_left: int | None = None  # of a node whose disk runs short, too
        self.stuck: set[str] = set()
        self.said = Said()
        self.disk = disk
        self.frozen_at = 0
        self.service = SimService(SimRuntime(), self.clock)
        places = SignalPlaces(memory=1000, root_dir="/", pods_cgroup="/kubepods")
        settings = PressureSettings(places=places, thresholds=thresholds, transition_period=period)
        self.monitor = PressureMonitor(settings, sim_services(self.service).images, self._read, self.said)
        self.registry = CollectorRegistry()
        self.alarm = trio.Event()
        self.manager = EvictionManager(
            EvictionSettings(max_grace=5),
            monitor=self.monitor,
            pods=self,
            stats=self,
            reclaim=self,
            events=self.said,
            metrics=EvictionMetrics(self.registry),
            clock=self.clock,
            alarm=self._alarm,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            nursery.start_soon(self.manager.run)
            yield nursery
            nursery.cancel_scope.cancel()

    def add(self, name: str, use: int, priority: int = 0, size_limit: str = "") -> None:
        self.pods[name], self.uses[name] = a_pod(name, priority, size_limit), use

    def left(self) -> int:
        return max(0, self.capacity - self.taken - self.images - sum(self.uses.values()))

    def _read(self, places: SignalPlaces) -> dict[str, Signal]:
        self.reads += 1
        now = self.frozen_at or self.clock.now_ns()
        name = "nodefs.available" if self.disk else "memory.available"
        signals = {name: Signal(self.left(), self.capacity, now), "imagefs.available": Signal(9, 10, now)}
        if self.memory_left is not None:
            signals["memory.available"] = Signal(self.memory_left, self.capacity, now)
        return signals

    async def _alarm(self) -> None:
        await self.alarm.wait()
        self.alarm = trio.Event()

    # The doors

    def candidates(self) -> list[v1.Pod]:
        gone = {name for name, _, _ in self.evicted}
        return [pod for name, pod in self.pods.items() if name not in gone]

    def evict(
        self,
        pod: v1.Pod,
        *,
        grace: int,
        message: str,
        disruption: bool,
        annotations: Mapping[str, str],
        why: str,
    ) -> trio.Event:
        name = pod.metadata.name
        self.evicted.append((name, grace, message))
        self.evicted_at.append(trio.current_time())
        stopped = trio.Event()
        if self.memory_left is not None:
            self.memory_left = self.capacity
        if name not in self.stuck:
            self.uses[name] = 0
            stopped.set()
        return stopped

    async def wait_stopped(self, pod: v1.Pod, stopped: trio.Event, grace: int) -> bool:
        with trio.move_on_after(10):
            await stopped.wait()
            return True
        return False

    def is_finished(self, uid: str) -> bool:
        return self.uses[uid] == 0

    async def measured(self, uids: Collection[str] | None = None) -> dict[str, PodStats]:
        await trio.lowlevel.checkpoint()
        self.measured_times += 1
        found = {
            name: pod_stats(name, {"mem": use, "c": [{"n": "c", "mem": use}], "v": {"v": (use, 1)}})
            for name, use in self.uses.items()
            if uids is None or name in uids
        }
        for stats in found.values():
            stats.containers[0].rootfs = FsStats(time=self.layers_at, used_bytes=0, inodes_used=0)
            for volume in stats.volume or ():
                volume.time = "9999"
        return found

    async def in_use(self) -> dict[str, PodStats]:
        found = await self.measured()
        for stats in found.values():
            stats.volume, stats.containers[0].rootfs = None, None
        return found

    async def look_at_disks(self) -> None:
        await trio.sleep(0.2)
        self.looks_at_disks += 1
        self.layers_at = self.layers_after_a_look or self.layers_at

    async def dead_containers(self) -> None:
        await trio.lowlevel.checkpoint()
        self.freed.append("containers")

    async def unused_images(self) -> None:
        await trio.sleep(self.reclaim_seconds)
        self.freed.append("images")
        self.images = 0


HARD = Threshold("memory.available", "100")
