"""PlacementPods get everything from one place on the machine, as the topology policy says, or are refused."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.placement import test_memory_manager
from tests.placement.giving import give
from tests.placement.test_cpu_manager import Node, aligned, manager
from tests.placement.test_cpu_policy import container, pod
from tests.placement.test_memory_policy import container as memory_container
from tests.placement.test_memory_policy import pod as memory_pod
from trio_kubelet.api import v1
from trio_kubelet.placement.allocator import Allocator, TopologyPolicy
from trio_kubelet.placement.checkpoint import FILE_NAME, decode
from trio_kubelet.placement.doors import AllocationError, Running
from trio_kubelet.placement.hints import Hint, Hints
from trio_kubelet.placement.merging import NUMANodes
from trio_kubelet.placement.metrics import AlignmentMetrics

NODES = NUMANodes((0, 1), {0: (10, 21), 1: (21, 10)})


class Cards:
    """A device that is near NUMA node 1 only."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Hint | None]] = []

    async def ready(self, pod: v1.Pod) -> None:
        pass

    def hints(self, pod: v1.Pod, container: v1.Container) -> Hints:
        return {"example.com/card": [Hint(0b10, True)]}

    def pod_hints(self, pod: v1.Pod) -> Hints:
        return {"example.com/card": [Hint(0b10, True)]}

    def take(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        pass

    async def confirm(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        self.given.append((container.name, affinity))

    def let_go(self, pod: v1.Pod) -> None:
        pass

    def leaving(self) -> Collection[str]:
        return ()


async def admit(
    directory: Path, policy: str, scope: str, wants: v1.Pod
) -> tuple[tuple[str, str] | None, str]:
    """The refusal, if it is one, and the CPUs of container `main`."""
    cpus = manager(Node(), directory)
    await cpus.load()
    allocator = Allocator(
        providers=[Cards(), cpus],
        policy=TopologyPolicy(policy, scope, NODES),
        registry=CollectorRegistry(),
        alignment=AlignmentMetrics(CollectorRegistry()),
        runs=lambda uid: False,
        recorder=Node(),
    )
    return await allocator.allocate(wants), cpus.cpus_of("u1", "main")


async def test_cpus_come_from_where_the_device_is(tmp_path: Path) -> None:
    for policy in ("best-effort", "restricted", "single-numa-node"):
        for scope in ("container", "pod"):
            (place := tmp_path / f"{policy}-{scope}").mkdir()
            refused, cpus = await admit(place, policy, scope, pod(container("main", "2")))
            assert (refused, cpus) == (None, "4,12"), (policy, scope)


async def test_without_a_policy_they_come_from_anywhere(tmp_path: Path) -> None:
    assert await admit(tmp_path, "none", "container", pod(container("main", "2"))) == (None, "1,9")


async def test_a_pod_that_cannot_be_aligned_is_refused(tmp_path: Path) -> None:
    wants = pod(container("main", "10"))
    refused, _ = await admit(tmp_path, "single-numa-node", "container", wants)
    assert refused == ("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
    (place := tmp_path / "best").mkdir()
    refused, cpus = await admit(place, "best-effort", "container", wants)
    assert refused is None, "it is given what there is, nearest to the device first"
    assert cpus == "1,4-7,9,12-15"


async def test_the_scope_decides_what_has_to_fit_together(tmp_path: Path) -> None:
    wants = pod(container("main", "6"), container("aside", "6"))
    (place := tmp_path / "pod").mkdir()
    refused, _ = await admit(place, "single-numa-node", "pod", wants)
    assert refused is not None


class Hanging(Cards):
    """A device whose plugin answers nothing about pod `u1`, and fails at last."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = trio.Event()

    async def confirm(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        if pod.metadata.uid == "u1":
            await self.fails.wait()
            raise AllocationError("context deadline exceeded")
        await super().confirm(pod, container, affinity)


@pytest.mark.parametrize("scope", ["container", "pod"])
async def test_a_pod_whose_plugin_hangs_holds_up_no_other_and_has_what_was_hinted_at(
    tmp_path: Path, scope: str
) -> None:
    node, cards = Node(), Hanging()
    cpus = manager(node, tmp_path)
    await cpus.load()
    allocator = Allocator(
        providers=[cards, cpus],
        policy=TopologyPolicy("single-numa-node", scope, NODES),
        registry=CollectorRegistry(),
        alignment=AlignmentMetrics(CollectorRegistry()),
        runs=node.runs,
        recorder=node,
    )
    node.pods = [pod(container("main", "2"), container("aside", "2"))]
    node.pods += [pod(container("main", "2"), uid=uid) for uid in ("u2", "u3")]
    refused = []

    async def hang() -> None:
        refused.append(await allocator.allocate(node.pods[0]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            assert await allocator.allocate(node.pods[1]) is None
        held = [cpus.cpus_of("u1", name) for name in ("main", "aside")]
        assert [*held, cpus.cpus_of("u2", "main")] == ["4,12", "5,13", "6,14"]
        cards.fails.set()
    assert refused == [
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to context deadline exceeded, which is unexpected",
        )
    ]
    assert await allocator.allocate(node.pods[2]) is None
    assert cpus.cpus_of("u3", "main") == "4,12", "it is free again"


async def test_a_pod_waits_for_a_disk_on_which_its_cpus_can_be_written_down(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It was refused for good, as a static pod, though evictions make room in a moment."""
    node = Node()
    cpus = manager(node, tmp_path)
    await cpus.load()
    allocator = Allocator(
        providers=[cpus],
        policy=TopologyPolicy(),
        registry=CollectorRegistry(),
        alignment=AlignmentMetrics(CollectorRegistry()),
        runs=node.runs,
        recorder=node,
    )
    node.pods = [pod(container("main", "2"))]
    in_the_way = tmp_path / f".{FILE_NAME}.new"
    in_the_way.mkdir()

    async def make_room() -> None:
        await trio.sleep(62)  # between two attempts
        assert not cpus.exclusive("u1", "main"), "nothing is kept from others meanwhile"
        in_the_way.rmdir()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_room)
        assert await allocator.allocate(node.pods[0]) is None
    assert 62 <= trio.current_time() <= 66
    assert node.events == [("u1", "WaitingForDisk")]
    assert decode((tmp_path / FILE_NAME).read_bytes(), "static").assigned.keys() == {"u1"}


class Absent(Cards):
    """A device whose plugin is not there for the first pod that asks."""

    def __init__(self) -> None:
        super().__init__()
        self.back = trio.Event()

    async def ready(self, pod: v1.Pod) -> None:
        if pod.metadata.uid == "waits":
            await self.back.wait()


async def test_a_pod_that_waits_for_a_plugin_holds_up_no_other() -> None:
    cards = Absent()
    allocator = Allocator(
        providers=[cards],
        policy=TopologyPolicy("restricted", "container", NODES),
        registry=CollectorRegistry(),
        alignment=AlignmentMetrics(CollectorRegistry()),
        runs=lambda uid: False,
        recorder=Node(),
    )
    waits = pod(container("late", "1"))
    metadata = msgspec.structs.replace(waits.metadata, uid="waits")
    waits = msgspec.structs.replace(waits, metadata=metadata)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocator.allocate, waits)
        await trio.testing.wait_all_tasks_blocked()
        assert await allocator.allocate(pod(container("main", "1"))) is None
        assert [name for name, _ in cards.given] == ["main"]
        cards.back.set()
    assert [name for name, _ in cards.given] == ["main", "late"]


async def test_cpus_and_memory_come_from_the_same_node(tmp_path: Path) -> None:
    """Memory is to be had on the second node only, so the CPUs come from there too, or the pod is refused."""
    for scope in ("container", "pod"):
        (place := tmp_path / scope).mkdir()
        registry, node = CollectorRegistry(), Node()
        alignment = AlignmentMetrics(registry)
        cpus, memory = manager(node, place), test_memory_manager.manager(node, place)
        await cpus.load()
        await memory.load()
        allocator = Allocator(
            providers=[cpus, memory],
            policy=TopologyPolicy("single-numa-node", scope, NODES),
            registry=registry,
            alignment=alignment,
            runs=node.runs,
            recorder=node,
        )
        main = memory_container("main", "3Gi", cpu="2")
        wants = memory_pod(main)
        node.pods = [wants]
        assert await allocator.allocate(wants) is None
        assert (cpus.cpus_of("u1", "main"), memory.nodes_of("u1", "main")) == ("4,12", "1")
        again = memory_pod(main, uid="u2")
        node.pods = [wants, again]
        assert await allocator.allocate(again) == (
            "UnexpectedAdmissionError",
            "Allocate failed due to [memorymanager] failed to find NUMA nodes to extend the current topology "
            "hint, which is unexpected",
        )
        assert aligned(registry, "numa_node", scope=scope) == 1
        too_many = memory_pod(memory_container("main", "1Gi", cpu="12"), uid="u3")
        refused = await allocator.allocate(too_many)
        assert refused is not None
        assert refused[0] == "TopologyAffinityError"
        assert aligned(registry, "numa_node", "failure_count", scope) == 1


@pytest.mark.parametrize(
    ("policy", "scope", "expected"),
    [
        ("none", "container", None),
        ("restricted", "container", 0),
        ("single-numa-node", "container", 2),
        ("single-numa-node", "pod", 1),
    ],
)
def test_a_pod_that_asks_for_nothing_counts_as_aligned(policy: str, scope: str, expected: int | None) -> None:
    registry = CollectorRegistry()
    allocator = Allocator(
        providers=[Cards()],
        policy=TopologyPolicy(policy, scope, NODES),
        registry=registry,
        alignment=AlignmentMetrics(registry),
        runs=lambda uid: False,
        recorder=Node(),
    )
    allocator.passes(pod(container("main", "1"), container("aside", "1")))
    name = "kubelet_topology_manager_admission"
    assert registry.get_sample_value(f"{name}_requests_total") == 1
    assert registry.get_sample_value(f"{name}_duration_ms_count") == 1
    assert registry.get_sample_value(f"{name}_errors_total") == 0
    count = "kubelet_container_aligned_compute_resources_count"
    assert registry.get_sample_value(count, {"scope": scope, "boundary": "numa_node"}) == expected


async def test_a_pod_counts_as_an_error_if_it_is_refused_and_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Not with each attempt of one that waits, as for a disk."""
    registry, node = CollectorRegistry(), Node()
    cpus = manager(node, tmp_path)
    await cpus.load()
    allocator = Allocator(
        providers=[cpus],
        policy=TopologyPolicy("restricted", "container", NODES),
        registry=registry,
        alignment=AlignmentMetrics(registry),
        runs=node.runs,
        recorder=node,
    )

    def errors() -> float | None:
        return registry.get_sample_value("kubelet_topology_manager_admission_errors_total")

    in_the_way = tmp_path / f".{FILE_NAME}.new"
    in_the_way.mkdir()
    node.pods = [pod(container("main", "2"))]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocator.allocate, node.pods[0])
        await trio.sleep(62)
        in_the_way.rmdir()
    assert cpus.exclusive("u1", "main")
    assert errors() == 0
    assert await allocator.allocate(pod(container("main", "100"), uid="u2")) is not None
    assert errors() == 1


async def test_a_pod_that_runs_is_not_aligned_anew(tmp_path: Path) -> None:
    """What an init container had has been given to another pod meanwhile, and the plugin hints elsewhere."""
    node = Node()
    memory = test_memory_manager.manager(node, tmp_path)
    await memory.load()
    init, main = memory_container("init", "3Gi"), memory_container("main", "512Mi")
    first = memory_pod(main, init=(init,))
    for each in (init, main):
        await give(memory, first, each, Hint(0b10, True))
    await memory.starts(first, main)
    other = memory_container("main", "3Gi")
    node.pods = [first, memory_pod(other, uid="u2")]
    await give(memory, node.pods[1], other, Hint(0b10, True))
    again = test_memory_manager.manager(node, tmp_path)
    await again.load()
    allocator = Allocator(
        providers=[Cards(), again],
        policy=TopologyPolicy("single-numa-node", "pod", NODES),
        registry=CollectorRegistry(),
        alignment=AlignmentMetrics(CollectorRegistry()),
        runs=node.runs,
        recorder=node,
    )
    refused = await allocator.allocate(first)
    assert refused is not None, "one that does not run has to begin with its init container"
    node.containers = [Running("u1", "main", "c1")]
    assert await allocator.allocate(first) is None
    assert again.nodes_of("u1", "main") == "1"
    assert again.of("u1", "init") == ()
