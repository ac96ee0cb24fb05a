"""A day in the life of a device manager: pods come and go, plugins fail, the agent is killed. By seed, in
simulated time.

What runs is kept outside of the agent, as a runtime would: it is the truth that the agent is judged by.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import trio
import trio.lowlevel
import trio.testing
from prometheus_client import CollectorRegistry

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.devices.doors import DevicePluginError
from trio_kubelet.devices.given import read_answer
from trio_kubelet.devices.manager import DeviceManager
from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.devices.values import Device, DevicePluginOptions
from trio_kubelet.placement.allocator import Allocator, TopologyPolicy
from trio_kubelet.placement.doors import AllocationError
from trio_kubelet.placement.merging import NUMANodes
from trio_kubelet.placement.metrics import AlignmentMetrics

RESOURCES = ("example.com/gpu", "example.com/nic")
IDS = tuple(f"dev-{number}" for number in range(4))  # the same for both
STEPS = 60


class FlakyPlugin:
    """Implements `DevicePlugin`: slow, of changing health, and now and then gone."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.sick = {id for id in IDS if rng.random() < 0.1}
        self.gone = trio.Event()
        self.changed = trio.Event()

    async def options(self) -> DevicePluginOptions:
        await trio.sleep(self._rng.random() / 10)
        return DevicePluginOptions(self._rng.random() < 0.3, self._rng.random() < 0.5)

    async def watch(self, listed: Callable[[Sequence[Device]], None]) -> None:
        while not self.gone.is_set():
            listed([Device(id, id not in self.sick, (int(id[-1]) % 2,)) for id in IDS])
            changed = self.changed
            async with trio.open_nursery() as nursery:
                for event in (changed, self.gone):
                    nursery.start_soon(_then_cancel, event, nursery.cancel_scope)

    async def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int
    ) -> Sequence[str]:
        await self._call()
        return self._rng.choices([*IDS, "dev-99"], k=size)

    async def allocate(self, devices: Sequence[str]) -> bytes | None:
        await self._call()
        if self._rng.random() < 0.05:
            return None
        answer = api.ContainerAllocateResponse(envs={"DEVICES": ",".join(devices)})
        return answer.SerializeToString()

    async def pre_start(self, devices: Sequence[str]) -> None:
        await self._call()

    async def _call(self) -> None:
        await trio.sleep(self._rng.random() * 2)
        if self.gone.is_set() or self._rng.random() < 0.1:
            raise DevicePluginError("rpc error: code = Unavailable desc = gone")

    def flip(self) -> None:
        self.sick ^= {self._rng.choice(IDS)}
        self.changed.set()
        self.changed = trio.Event()


async def _then_cancel(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class Day:
    """The world, and the agent in it."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.directory = str(directory)
        self.pods: dict[str, v1.Pod] = {}
        self.running: dict[tuple[str, str, str], frozenset[str]] = {}  # pod, container, resource
        self.granted: dict[tuple[str, str, str], frozenset[str]] = {}  # as said when a container started
        self.known = False
        self.plugins: dict[str, FlakyPlugin] = {}
        self.manager: DeviceManager | None = None
        self.allocator: Allocator
        policies = ("none", "best-effort", "restricted", "single-numa-node")
        scope = self.rng.choice(("container", "pod"))
        self.policy = TopologyPolicy(self.rng.choice(policies), scope, NUMANodes((0, 1)))
        self.nursery: trio.Nursery | None = None
        self.started = self.refused = self.kills = 0

    # The pods, as the device manager sees them

    def active(self) -> Collection[v1.Pod]:
        return tuple(self.pods.values())

    def all_known(self) -> bool:
        return self.known

    def is_known(self, uid: str) -> bool:
        return self.known

    def runs(self, uid: str) -> bool:
        return any(key[0] == uid for key in self.running)

    def ending(self) -> Collection[str]:
        return {key[0] for key in self.running} - self.pods.keys()

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        assert reason in ("WaitingForDevicePlugin", "WaitingForPodsToEnd")

    # The day

    async def run(self) -> None:
        while self.kills < 6:
            with trio.CancelScope() as life:
                async with trio.open_nursery() as self.nursery:
                    await self._wake_up(self.nursery)
                    for _ in range(self.rng.randrange(STEPS)):
                        await trio.sleep(self.rng.random() * 3)
                        self._step(self.nursery)
                    life.cancel()
            self.kills += 1
            if self.rng.random() < 0.3:  # the machine starts anew
                self.running.clear()
            if self.rng.random() < 0.2:
                self._damage()

    def _damage(self) -> None:
        """The checkpoint is cut off: what runs goes on with what it has, which nobody knows any more."""
        file = Path(self.directory) / "kubelet_internal_checkpoint"
        if file.exists():
            file.write_bytes(file.read_bytes()[:-20])
            self.granted.clear()

    async def _wake_up(self, nursery: trio.Nursery) -> None:
        self.known = False
        self.manager = DeviceManager(
            directory=self.directory,
            pods=self,
            recorder=self,
            registry=CollectorRegistry(),
            numa_nodes=(0, 1),
            claims=True,
            counts_changed=lambda: None,
            health_changed=lambda uids: None,
        )
        await self.manager.load()
        self.allocator = Allocator(
            providers=[self.manager],
            policy=self.policy,
            registry=CollectorRegistry(),
            alignment=AlignmentMetrics(CollectorRegistry()),
            runs=self.runs,
            recorder=self,
        )
        nursery.start_soon(self.manager.run)
        for name in RESOURCES:
            if self.rng.random() < 0.7:
                nursery.start_soon(self._plug, name)
        for pod in self.pods.values():
            nursery.start_soon(self._admit, pod)
        await trio.lowlevel.checkpoint()
        self.known = True

    def _step(self, nursery: trio.Nursery) -> None:
        match self.rng.randrange(6):
            case 0 | 1:
                pod = self._new_pod()
                self.pods[pod.metadata.uid] = pod
                nursery.start_soon(self._admit, pod)
            case 2 if self.pods:
                uid = self.rng.choice(sorted(self.pods))
                del self.pods[uid]
                nursery.start_soon(self._end, uid, self.rng.choice((0.0, 5.0)))
            case 3:
                nursery.start_soon(self._plug, self.rng.choice(RESOURCES))
            case 4 if self.plugins:
                self.plugins[self.rng.choice(sorted(self.plugins))].gone.set()
            case 5 if self.plugins:
                self.plugins[self.rng.choice(sorted(self.plugins))].flip()

    def _new_pod(self) -> v1.Pod:
        number = self.rng.randrange(10**9)

        def container(name: str, restart: str | None = None) -> v1.Container:
            limits = {name: str(self.rng.randrange(3)) for name in RESOURCES if self.rng.random() < 0.6}
            return v1.Container(
                name=name, resources=v1.ResourceRequirements(limits=limits), restart_policy=restart
            )

        init = [container("init")] if self.rng.random() < 0.5 else []
        if self.rng.random() < 0.3:
            init.append(container("sidecar", "Always"))
        spec = {"init_containers": init or None}
        return make_pod(f"pod-{number}", containers=[container("main")], spec=spec)

    async def _plug(self, name: str) -> None:
        assert self.manager is not None
        manager, plugin = self.manager, FlakyPlugin(self.rng)
        if name in self.plugins:
            self.plugins[name].gone.set()
        self.plugins[name] = plugin
        await manager.inventory.connect(name, plugin)
        await plugin.watch(lambda devices: manager.inventory.listed(name, plugin, devices))
        manager.inventory.disconnect(name, plugin)

    async def _admit(self, pod: v1.Pod) -> None:
        assert self.manager is not None
        manager, uid = self.manager, pod.metadata.uid
        containers = [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
        try:
            if (why := await self.allocator.allocate(pod)) is not None:
                raise AllocationError(*reversed(why))
            for container in containers:
                await manager.given(pod, container)
                if uid not in self.pods:
                    return
                self._start(uid, container.name, pod)
                await trio.sleep(self.rng.random())
        except AllocationError:
            self.refused += 1
            if not self.runs(uid):
                self.pods.pop(uid, None)

    def _start(self, uid: str, name: str, pod: v1.Pod) -> None:
        """The runtime starts a container with what it was given; the truth is checked."""
        assert self.manager is not None
        self.started += 1
        for resource, assignment in self.manager.of_container(uid, name).items():
            devices = frozenset(filter(None, read_answer(assignment.answer).envs["DEVICES"].split(",")))
            assert devices == assignment.devices, "what the plugin prepared is what was noted down"
            key = uid, name, resource
            before = self.granted.setdefault(key, devices)
            assert before == devices, f"{key} had {before} and has {devices} now"
            for other, theirs in self.running.items():
                if other[2] == resource and other[0] != uid:
                    assert not theirs & devices, f"{key} and {other} share {theirs & devices}"
            self.running[key] = devices
        if name == "main":
            self._check_pod(uid, pod)

    def _check_pod(self, uid: str, pod: v1.Pod) -> None:
        """Containers of one pod that run at the same time share nothing either."""
        lasting = {c.name for c in pod.spec.init_containers or () if c.restart_policy} | {"main"}
        for resource in RESOURCES:
            mine = [d for k, d in self.running.items() if k[::2] == (uid, resource) and k[1] in lasting]
            assert sum(map(len, mine)) == len(frozenset[str]().union(*mine))

    async def _end(self, uid: str, grace: float) -> None:
        """What runs of a pod that nobody wants any more takes its time."""
        await trio.sleep(grace)
        for key in [key for key in self.running if key[0] == uid]:
            del self.running[key]


def live(seed: int, directory: Path) -> Day:
    """One day; raises AssertionError when two containers have a device."""
    day = Day(seed, directory)
    trio._core._run._r.seed(seed)
    trio.run(day.run, clock=trio.testing.MockClock(autojump_threshold=0))
    return day


def totals(days: Iterable[Day]) -> tuple[int, int]:
    """Containers that started and pods that were refused."""
    listed = list(days)
    return sum(day.started for day in listed), sum(day.refused for day in listed)
