"""A day in the life of the CPU and the memory manager: pods come and go, the agent is killed while it writes.
By seed, in simulated time.

What runs is kept outside of the agent, as a runtime would: it is the truth that the agent is judged by.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from pathlib import Path

import trio
import trio.lowlevel
import trio.testing
from prometheus_client import CollectorRegistry

from tests.placement.test_cpu_policy import MACHINE, RESERVED
from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.common.cpusets import CPUSet, parse_cpus
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.allocator import Allocator, TopologyPolicy
from trio_kubelet.placement.cpu_manager import CPUManager
from trio_kubelet.placement.cpu_policy import CPUPolicy
from trio_kubelet.placement.doors import Running
from trio_kubelet.placement.memory_manager import MemoryManager
from trio_kubelet.placement.memory_policy import MemoryPolicy
from trio_kubelet.placement.memory_state import Block
from trio_kubelet.placement.merging import NUMANodes
from trio_kubelet.placement.metrics import AlignmentMetrics, CPUMetrics, MemoryMetrics
from trio_kubelet.placement.topology import CPU, Topology
from trio_kubelet.podinfo.pinned import PinnedCPUs

GIB = 1 << 30
MEMORY = MemoryPolicy([NUMAMemory(0, 4 * GIB), NUMAMemory(1, 4 * GIB)], {0: {"memory": GIB // 2}})
HYBRID = Topology({cpu: CPU(cpu // 2 if cpu < 8 else cpu, *[cpu // 8] * 3) for cpu in range(16)})
"""A node of four cores with two threads each, and one of eight cores with one."""
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
STEPS = 60
_Key = tuple[str, str]  # pod and container


class PlacedDay:
    """The world, and the agent in it."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.machine = (MACHINE, HYBRID)[seed % 2]
        self.directory = str(directory)
        self.policy = TopologyPolicy(
            self.rng.choice(POLICIES), self.rng.choice(("container", "pod")), NUMANodes((0, 1))
        )
        self.pods: dict[str, v1.Pod] = {}
        self.cpus: dict[_Key, CPUSet] = {}  # of containers that run
        self.memory: dict[_Key, tuple[Block, ...]] = {}
        self.ended: set[_Key] = set()  # init containers
        self.known = False
        self.started = self.refused = self.kills = 0
        self.agent: tuple[CPUManager, MemoryManager, Allocator] | None = None

    # The pods and the runtime, as the managers see them

    def active(self) -> Collection[v1.Pod]:
        return tuple(self.pods.values())

    def is_known(self, uid: str) -> bool:
        return self.known

    def runs(self, uid: str) -> bool:
        return any(key[0] == uid for key in self.cpus)

    def ending(self) -> Collection[str]:
        return {key[0] for key in self.cpus} - self.pods.keys()

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        assert reason == "WaitingForPodsToEnd"

    def running(self) -> Iterable[Running]:
        return [Running(uid, name, f"{uid}/{name}") for uid, name in self.cpus]

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        await trio.sleep(self.rng.random() / 10)
        uid, _, name = container_id.partition("/")
        if (uid, name) in self.cpus:
            self.cpus[uid, name] = parse_cpus(cpus)

    # The day

    async def run(self) -> None:
        while self.kills < 6:
            with trio.CancelScope() as life:
                async with trio.open_nursery() as nursery:
                    await self._wake_up(nursery)
                    for _ in range(self.rng.randrange(STEPS)):
                        await trio.sleep(self.rng.random() * self.rng.choice((0.01, 2)))
                        self._step(nursery)
                    life.cancel()
            self.kills += 1
            if self.rng.random() < 0.2:  # the machine starts anew
                self.cpus.clear()
                self.memory.clear()
                self.ended.clear()

    async def _wake_up(self, nursery: trio.Nursery) -> None:
        self.known = False
        registry = CollectorRegistry()
        alignment = AlignmentMetrics(registry)
        cpus = CPUManager(
            policy=CPUPolicy(self.machine, RESERVED),
            root_dir=self.directory,
            period=10.0,
            pods=self,
            setter=self,
            metrics=CPUMetrics(registry),
            alignment=alignment,
            pinned=PinnedCPUs(),
        )
        memory = MemoryManager(
            policy=MEMORY, root_dir=self.directory, pods=self, metrics=MemoryMetrics(registry)
        )
        await cpus.load()
        await memory.load()
        allocator = Allocator(
            providers=[cpus, memory],
            policy=self.policy,
            registry=registry,
            alignment=alignment,
            runs=self.runs,
            recorder=self,
        )
        self.agent = cpus, memory, allocator
        for key, blocks in self.memory.items():
            assert _size(memory.of(*key)) <= _size(blocks), "what runs has what it had"
        nursery.start_soon(cpus.run)
        for pod in self.pods.values():
            nursery.start_soon(self._admit, pod)
        await trio.lowlevel.checkpoint()
        self.known = True

    def _step(self, nursery: trio.Nursery) -> None:
        if self.rng.random() < 0.6:
            pod = self._new_pod()
            self.pods[pod.metadata.uid] = pod
            nursery.start_soon(self._admit, pod)
        elif self.pods:
            uid = self.rng.choice(sorted(self.pods))
            del self.pods[uid]
            nursery.start_soon(self._end, uid, self.rng.choice((0.0, 5.0)))

    def _new_pod(self) -> v1.Pod:
        def container(name: str, restart: str | None = None) -> v1.Container:
            amounts = {
                "cpu": self.rng.choice(("1", "2", "3", "500m")),
                "memory": self.rng.choice(("256Mi", "512Mi", "1Gi", "3Gi")),
            }
            resources = v1.ResourceRequirements(requests=amounts, limits=amounts)
            return v1.Container(name=name, resources=resources, restart_policy=restart)

        init = [container("init")] if self.rng.random() < 0.4 else []
        if self.rng.random() < 0.3:
            init.append(container("sidecar", "Always"))
        spec = {"init_containers": init}
        return make_pod(f"pod-{self.rng.randrange(10**9)}", containers=[container("main")], spec=spec)

    async def _admit(self, pod: v1.Pod) -> None:
        assert self.agent is not None
        uid, (cpus, memory, allocator) = pod.metadata.uid, self.agent
        if await allocator.allocate(pod) is not None:
            self.refused += 1
            assert not any(key[0] == uid for key in self.cpus), "what runs is not refused"
            self.pods.pop(uid, None)
            return
        init = pod.spec.init_containers or []
        for container in (*init, *(pod.spec.containers or ())):
            if uid not in self.pods:
                return
            key = uid, container.name
            if key in self.ended:
                continue
            if key not in self.cpus:
                await memory.starts(pod, container)
                if uid not in self.pods:
                    return
                self.cpus[key] = parse_cpus(cpus.cpus_of(*key))
                self.memory[key] = tuple(memory.of(*key))
                self.started += 1
            self._check(cpus)
            await trio.sleep(self.rng.random())
            if container in init and container.restart_policy is None:  # it has ended
                self.cpus.pop(key, None)
                self.memory.pop(key, None)
                self.ended.add(key)

    def _check(self, manager: CPUManager) -> None:
        """CPUs of their own belong to one container of those that run; memory is given once."""
        own = {key: manager.exclusive(*key) for key in self.cpus}
        for key, mine in own.items():
            if mine:
                assert self.cpus[key] == mine, f"{key} runs on {self.cpus[key]} and has {mine}"
            for other, theirs in own.items():
                assert key == other or not mine & theirs, f"{key} and {other} share {mine & theirs}"
        given = sum(block.size for blocks in self.memory.values() for block in blocks)
        assert given <= 8 * GIB - GIB // 2

    async def _end(self, uid: str, grace: float) -> None:
        """What runs of a pod that nobody wants any more takes its time."""
        await trio.sleep(grace)
        for key in [key for key in self.cpus if key[0] == uid]:
            del self.cpus[key]
            self.memory.pop(key, None)


def _size(blocks: Iterable[Block]) -> int:
    return sum(block.size for block in blocks)


def live(seed: int, directory: Path) -> PlacedDay:
    """One day; raises AssertionError when two containers have one CPU."""
    day = PlacedDay(seed, directory)
    trio._core._run._r.seed(seed)
    trio.run(day.run, clock=trio.testing.MockClock(autojump_threshold=0))
    return day
