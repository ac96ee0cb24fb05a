"""What a pod's cgroup costs with each driver, on a machine with systemd: `make node-shell`, then
`python -m bench.slice_figures [pods ...]`.

With so many pods there on either side, a pod's cgroup is made in turn by the agent on cgroupfs, by a D-Bus
client that does nothing but the one call, and by the agent on systemd; then they are removed in turn. Prints
medians, how often D-Bus was asked for a pod, and what the agent took longer on systemd than on cgroupfs, in
round trips: the median over the pods of that difference divided by the bare call beside it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import trio

from tests.cgroups.machine import Agents, agents, cgroup_root
from trio_kubelet.api import v1
from trio_kubelet.cgroups.drivers import JOB_REMOVED, SET_PROPERTIES, START_UNIT, STOP_UNIT
from trio_kubelet.cgroups.plan import CgroupSettings, pod_cgroup_limits
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.cgroups.units import new_slice, properties, unit_name, with_whole_percents
from trio_kubelet.dbus.bus import MessageBus
from trio_kubelet.dbus.values import Method
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.qos import QOSClass

PODS = (0, 1000, 3000)
SAMPLE = 50


class CountingBus(MessageBus):
    """Counts calls for slices of pods, and those that give a class its share, which no pod waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.of_classes = 0

    async def call(self, method: Method, *arguments: Any, seconds: float) -> tuple[Any, ...]:
        if method is SET_PROPERTIES:
            self.of_classes += 1
        else:
            self.calls += 1
        return await super().call(method, *arguments, seconds=seconds)


def pod(number: int) -> v1.Pod:
    resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    return msgspec.convert({"metadata": {"uid": f"p{number:05}"}, "spec": spec}, v1.Pod)


class BareSystemd:
    """The calls for a pod's slice and nothing else: made and stopped."""

    def __init__(self, bus: MessageBus, node: NodeContext) -> None:
        self._bus = bus
        names = CgroupNames(node.cgroup_root, node.cgroup_driver, node.cgroups_per_qos)
        self._parent = names.literal(names.qos(QOSClass.BURSTABLE))
        limits = with_whole_percents(pod_cgroup_limits(pod(0), node, 1024))
        self._wanted = [*new_slice(f"{self._parent}/{self._unit(0)}"), *properties(limits, v2=True)]
        self._ended: dict[str, trio.Event] = {}

    async def hear(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with self._bus.subscribe(JOB_REMOVED) as jobs:
            task_status.started()
            while True:
                if (body := await jobs.next()) is not None:
                    self._ended.setdefault(body[1], trio.Event()).set()

    async def make(self, number: int) -> None:
        await self._done(START_UNIT, self._unit(number), "replace", self._wanted, [])

    async def remove(self, number: int) -> None:
        await self._done(STOP_UNIT, self._unit(number), "replace")

    def _unit(self, number: int) -> str:
        return f"{unit_name(self._parent).removesuffix('.slice')}-podbare{number}.slice"

    async def _done(self, method: Method, *arguments: Any) -> None:
        (job,) = await self._bus.call(method, *arguments, seconds=30)
        await self._ended.setdefault(job, trio.Event()).wait()


async def timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def in_turn(*works: Callable[[int], Awaitable[object]]) -> list[list[float]]:
    """The milliseconds of each, a pod at a time."""
    found: list[list[float]] = [[] for _ in works]
    for number in range(SAMPLE):
        for times, work in zip(found, works, strict=True):
            times.append(await timed(work(number)))
    return found


async def fill(cgroups: PodCgroups, first: int, count: int) -> float:
    """Makes so many pods' cgroups, 32 at a time; seconds."""
    limiter = trio.CapacityLimiter(32)

    async def make(number: int) -> None:
        async with limiter:
            await cgroups.ensure(pod(number))

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(first, first + count):
                nursery.start_soon(make, number)

    return await timed(all_of_them()) / 1000


async def measure(counts: list[int]) -> None:
    bus = CountingBus()
    settings = CgroupSettings(pids_limit=1024, node_cpu=2000, node_memory=2 << 30)
    async with AsyncExitStack() as stack:
        worlds: dict[str, Agents] = {}
        drivers: dict[str, PodCgroups] = {}
        for driver, buses in (("cgroupfs", ()), ("systemd", (bus,))):
            root = stack.enter_context(cgroup_root(driver))
            worlds[driver] = await stack.enter_async_context(agents(root, driver, settings, buses))
            drivers[driver] = await stack.enter_async_context(worlds[driver].agent())
            await drivers[driver].start()
        nursery = await stack.enter_async_context(trio.open_nursery())
        files, slices, bare = (
            drivers["cgroupfs"],
            drivers["systemd"],
            BareSystemd(bus, worlds["systemd"].node),
        )
        await nursery.start(bare.hear)
        there = 0
        for count in counts:
            for name, cgroups in drivers.items():
                seconds = await fill(cgroups, 1000 + there, count - there)
                if count > there:
                    print(f"{name}: {count - there} more pods, 32 at a time, in {seconds:.1f} s")
            there = count
            await figures(there, files, slices, bare, bus)
            for name, cgroups in drivers.items():
                pods = [pod(number) for number in range(1000, 1000 + there)]
                took = await timed(cgroups.update_classes(pods))
                print(f"{name}: all {there} compared with what they should be in {took / 1000:.2f} s")
        nursery.cancel_scope.cancel()


async def figures(
    there: int, files: PodCgroups, slices: PodCgroups, bare: BareSystemd, bus: CountingBus
) -> None:
    def made_by(cgroups: PodCgroups) -> Callable[[int], Awaitable[object]]:
        return lambda number: cgroups.ensure(pod(number))

    def removed_by(cgroups: PodCgroups) -> Callable[[int], Awaitable[object]]:
        return lambda number: cgroups.remove(pod(number).metadata.uid)

    before, of_classes = bus.calls, bus.of_classes
    made = await in_turn(made_by(files), bare.make, made_by(slices))
    calls = (bus.calls - before) / SAMPLE - 1
    of_classes = bus.of_classes - of_classes
    gone = await in_turn(removed_by(files), bare.remove, removed_by(slices))
    for what, (on_files, call, on_slices) in (("made", made), ("gone", gone)):
        middle = [f"{statistics.median(times):.1f} ms" for times in (on_files, call, on_slices)]
        trips = [(more - less) / one for less, one, more in zip(on_files, call, on_slices, strict=True)]
        print(
            f"with {there} there, {what}: cgroupfs {middle[0]}, bare call {middle[1]}, systemd {middle[2]}; "
            f"{statistics.median(trips):.2f} round trips more"
        )
    print(f"with {there} there: {calls:.1f} calls a pod, {of_classes} for their class")


if __name__ == "__main__":
    trio.run(measure, [int(word) for word in sys.argv[1:]] or list(PODS))
