"""What a pod's cgroup costs with each driver, on a machine with systemd: `make node-shell`, then
`python -m bench.slice_figures [pods]`.

Prints for each driver the time until a pod's cgroup is there and until it is gone again, at the beginning and
with so many pods there, and how often D-Bus was asked. With systemd also what the same calls cost when only
a D-Bus client makes them, in the same run.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import msgspec
import trio

from tests.cgroups.machine import agents, cgroup_root, has_systemd
from trio_kubelet.api import v1
from trio_kubelet.cgroups.drivers import JOB_REMOVED, SET_PROPERTIES, START_UNIT, STOP_UNIT
from trio_kubelet.cgroups.plan import CgroupSettings, pod_cgroup_limits
from trio_kubelet.cgroups.units import new_slice, properties, unit_name, with_whole_percents
from trio_kubelet.dbus.bus import MessageBus
from trio_kubelet.dbus.doors import Subscription
from trio_kubelet.dbus.values import Method
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.qos import QOSClass

PODS = 2000
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
    """The calls for a pod's slice and nothing else: made, its class changed, stopped."""

    def __init__(self, bus: MessageBus, node: NodeContext) -> None:
        self._bus = bus
        self._node = node
        names = CgroupNames(node.cgroup_root, node.cgroup_driver, node.cgroups_per_qos)
        self._parent = names.literal(names.qos(QOSClass.BURSTABLE))
        self._ended: dict[str, trio.Event] = {}

    async def _hear(self, jobs: Subscription) -> None:
        while True:
            if (body := await jobs.next()) is not None:
                self._ended.setdefault(body[1], trio.Event()).set()

    async def figures(self) -> str:
        async with self._bus.subscribe(JOB_REMOVED) as jobs, trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, jobs)
            figures = await self._figures()
            nursery.cancel_scope.cancel()
        return figures

    async def _figures(self) -> str:
        made, changed, gone = [], [], []
        limits = with_whole_percents(pod_cgroup_limits(pod(0), self._node, 1024))
        for number in range(SAMPLE):
            path = f"{self._parent}/{self._unit(number)}"
            wanted = [*new_slice(path), *properties(limits, v2=True)]
            made.append(await self._timed(START_UNIT, unit_name(path), "replace", wanted, []))
        for number in range(SAMPLE):
            weight = [("CPUWeight", ("t", 100 + number))]
            changed.append(await self._timed(SET_PROPERTIES, unit_name(self._parent), True, weight))
        for number in range(SAMPLE):
            gone.append(await self._timed(STOP_UNIT, self._unit(number), "replace"))
        middle = [f"{statistics.median(times) * 1000:.1f}" for times in (made, changed, gone)]
        return f"made in {middle[0]} ms, its class changed in {middle[1]} ms, gone in {middle[2]} ms"

    def _unit(self, number: int) -> str:
        return f"{unit_name(self._parent).removesuffix('.slice')}-podbare{number}.slice"

    async def _timed(self, method: Method, *arguments: Any) -> float:
        began = time.perf_counter()
        answer = await self._bus.call(method, *arguments, seconds=30)
        if answer:
            await self._ended.setdefault(answer[0], trio.Event()).wait()
        return time.perf_counter() - began


async def measure(driver: str, count: int) -> None:
    bus = CountingBus()
    settings = CgroupSettings(pids_limit=1024, node_cpu=2000, node_memory=2 << 30)
    with cgroup_root(driver) as root:
        async with agents(root, driver, settings, (bus,)) as world, world.agent() as cgroups:
            await cgroups.start()

            async def timed(name: str, first: int) -> None:
                if driver == "systemd":
                    print(f"{'bare':9} {name:>12}: {await BareSystemd(bus, world.node).figures()}")
                pods = [pod(number) for number in range(first, first + SAMPLE)]
                before, of_classes, made, gone = bus.calls, bus.of_classes, [], []
                for one in pods:
                    began = time.perf_counter()
                    await cgroups.ensure(one)
                    made.append(time.perf_counter() - began)
                calls, of_classes = (bus.calls - before) / SAMPLE, bus.of_classes - of_classes
                for one in pods:
                    began = time.perf_counter()
                    await cgroups.remove(one.metadata.uid)
                    gone.append(time.perf_counter() - began)
                middle = [f"{statistics.median(times) * 1000:.1f}" for times in (made, gone)]
                figures = f"made in {middle[0]} ms, gone in {middle[1]} ms, {calls:.1f} calls a pod"
                figures += f", {of_classes} for their class"
                print(f"{driver:9} {name:>12}: {figures}")

            await timed("first pods", 0)
            began = time.perf_counter()
            limiter = trio.CapacityLimiter(32)

            async def make(number: int) -> None:
                async with limiter:
                    await cgroups.ensure(pod(number))

            async with trio.open_nursery() as nursery:
                for number in range(1000, 1000 + count):
                    nursery.start_soon(make, number)
            took = time.perf_counter() - began
            print(f"{driver:9} {count:>7} pods: made 32 at a time in {took:.1f} s")
            await timed(f"with {count}", 0)
            began = time.perf_counter()
            await cgroups.update_classes([pod(number) for number in range(1000, 1000 + count)])
            print(f"{driver:9} {count:>7} pods: all looked after in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else PODS
    for each in ("cgroupfs", *(["systemd"] if has_systemd() else [])):
        trio.run(measure, each, number)
