"""The policy `Static` of the memory manager: as the kubelet's, and against an oracle."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placement.memory_recording import nodes_of, play
from tests.placement.recording import Json
from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration, MemoryReservation
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.doors import PlacementStateError
from trio_kubelet.placement.hints import Hint, mask_of
from trio_kubelet.placement.memory_manager import memory_policy
from trio_kubelet.placement.memory_policy import MemoryPolicy, NoMemory, Reusable
from trio_kubelet.placement.memory_state import Block, MemoryState

GIB = 1 << 30
GOLDEN = Path(__file__).parent.parent / "golden" / "memory-manager.json"
MACHINE = MemoryPolicy(
    [NUMAMemory(0, 4 * GIB, {"hugepages-2Mi": GIB}), NUMAMemory(1, 4 * GIB, {"hugepages-2Mi": 0})],
    {0: {"memory": GIB}},
)


def recorded() -> Json:
    return json.loads(GOLDEN.read_text())


def container(name: str, memory: str, restart: str | None = None, **more: str) -> v1.Container:
    amounts = {"cpu": "1", "memory": memory, **more}
    resources = v1.ResourceRequirements(requests=amounts, limits=amounts)
    return v1.Container(name=name, resources=resources, restart_policy=restart)


def pod(*containers: v1.Container, init: tuple[v1.Container, ...] = (), uid: str = "u1") -> v1.Pod:
    return make_pod("pod", uid=uid, containers=list(containers), spec={"init_containers": list(init)})


SPOILED = 9
"""The life in which the kubelet gives a node of a group alone, see below."""


@pytest.mark.parametrize("number", [number for number in range(56) if number != SPOILED])
def test_it_does_as_the_kubelet(number: int) -> None:
    for wanted, found in play(recorded()["scenarios"][number]):
        assert found == wanted


@pytest.mark.parametrize("number", range(60))
def test_reservations_are_refused_as_by_the_kubelet(number: int) -> None:
    case = recorded()["reservations"][number]
    config = KubeletConfiguration(
        memory_manager_policy="Static",
        eviction_hard={},
        system_reserved=case["kept"],
        reserved_memory=[
            MemoryReservation(numa_node=each["node"], limits=each["limits"])
            for each in case["reserved"] or ()
        ],
    )
    capacity = {"memory": "64Gi", "hugepages-2Mi": "1Gi"}
    if not case["error"]:
        policy = memory_policy(config, capacity, nodes_of(case["nodes"]))
        assert policy is not None
        assert policy.reserved == {int(node): kinds for node, kinds in case["result"].items() if kinds}
        return
    with pytest.raises(ConfigurationError) as caught:
        memory_policy(config, capacity, nodes_of(case["nodes"]))
    if "total amount" in case["error"]:  # of two sums that are wrong the kubelet names any
        assert "determined by Node Allocatable feature" in str(caught.value)
    else:
        assert str(caught.value) == case["error"]


def test_what_eviction_keeps_has_to_be_reserved_too() -> None:
    reserved = [MemoryReservation(numa_node=0, limits={"memory": "1124Mi"})]
    config = KubeletConfiguration(
        memory_manager_policy="Static",
        kube_reserved={"memory": "1Gi"},
        eviction_hard={"memory.available": "100Mi"},
        reserved_memory=reserved,
    )
    nodes = [NUMAMemory(0, 8 * GIB)]
    assert memory_policy(config, {"memory": "8Gi"}, nodes) is not None
    with pytest.raises(ConfigurationError) as caught:
        memory_policy(config, {"memory": "8Gi"}, nodes, ignore_eviction=True)
    assert str(caught.value) == (
        'the total amount "1124Mi" of type "memory" is not equal to the value "1Gi" determined by '
        "Node Allocatable feature"
    )


def test_without_a_policy_nothing_is_checked() -> None:
    assert memory_policy(KubeletConfiguration(), {"memory": "8Gi"}, []) is None


def test_huge_pages_come_from_their_node_and_are_no_memory() -> None:
    state = MACHINE.check(MemoryState())
    main = container("main", "1Gi", **{"hugepages-2Mi": "512Mi"})
    both = Hint(mask_of([0]), True), Hint(mask_of([0, 1]), False)
    assert list(MACHINE.hints(state, pod(main), main, {})["memory"] or ()) == list(both)
    state = MACHINE.allocate(state, pod(main), main, both[0], {})
    assert state.of("u1", "main") == (
        Block((0,), "hugepages-2Mi", GIB // 2),
        Block((0,), "memory", GIB),
    )
    assert state.machine[0].tables["memory"].free == GIB, "of 4: 1 reserved, 1 huge pages, 1 given"


def test_nodes_that_are_not_enough_are_kept_and_joined_by_others() -> None:
    """Not left for one that would do by itself: the container's CPUs are there."""
    main = container("main", "3Gi")
    state = MACHINE.allocate(MACHINE.check(MemoryState()), pod(main), main, Hint(mask_of([0]), False), {})
    assert state.of("u1", "main") == (Block((0, 1), "memory", 3 * GIB),)


def test_pods_that_are_not_guaranteed_or_ask_as_a_whole_have_none() -> None:
    main = container("main", "1Gi")
    assert MACHINE.manages(pod(main))
    assert not MACHINE.manages(pod(main, v1.Container(name="burstable")))
    whole = v1.ResourceRequirements(
        requests={"memory": "1Gi", "cpu": "1"}, limits={"memory": "1Gi", "cpu": "1"}
    )
    assert not MACHINE.manages(make_pod("whole", containers=[main], spec={"resources": whole}))


def test_a_fraction_of_a_byte_is_refused() -> None:
    main = container("main", "1500m")
    state = MACHINE.check(MemoryState())
    assert MACHINE.hints(state, pod(main), main, {}) == {}
    with pytest.raises(NoMemory, match="failed to represent quantity as int64"):
        MACHINE.allocate(state, pod(main), main, None, {})


SIZES = st.sampled_from(["256Mi", "512Mi", "1Gi", "1536Mi", "3Gi"])


@st.composite
def machines(draw: st.DrawFn) -> MemoryPolicy:
    count = draw(st.integers(1, 4))
    nodes = [NUMAMemory(n, draw(st.integers(1, 4)) * GIB) for n in range(count)]
    return MemoryPolicy(nodes, {0: {"memory": GIB // 4}})


@settings(max_examples=300)
@given(machines(), st.lists(st.tuples(SIZES, st.booleans(), st.integers(0, 9)), max_size=12))
def test_whatever_comes_and_goes_memory_adds_up(
    policy: MemoryPolicy, lives: list[tuple[str, bool, int]]
) -> None:
    """An oracle that only adds: what is free and what containers have is what there is, no group shares a
    node with another, every hint can be given, and what the file says is taken over.
    """
    state = policy.check(MemoryState())
    pods: list[str] = []
    for number, (size, ends, choice) in enumerate(lives):
        if ends and pods:
            state = state.without_container(pods.pop(choice % len(pods)), "main")
        else:
            main = container("main", size)
            own = pod(main, uid=f"u{number}")
            hints = policy.hints(state, own, main, {}).get("memory") or ()
            assert {h.mask for h in hints} == _possible(policy, state, main)
            affinity = hints[choice % len(hints)] if hints else None
            if affinity is None:
                with pytest.raises(NoMemory):
                    policy.allocate(state, own, main, None, {})
                continue
            state = policy.allocate(state, own, main, affinity, {})
            pods.append(own.metadata.uid)
        _adds_up(policy, state)
        assert policy.check(state) == state
    for uid in pods:
        state = state.without_container(uid, "main")
    assert state.machine == policy.initial()


def _possible(policy: MemoryPolicy, state: MemoryState, main: v1.Container) -> set[int | None]:
    """By trying: a set of nodes will do if nobody of another set is on it and enough is free."""
    assert main.resources is not None
    wanted = int((main.resources.requests or {})["memory"].removesuffix("Gi").removesuffix("Mi"))
    wanted *= GIB if "Gi" in (main.resources.requests or {})["memory"] else 1 << 20
    sets = {frozenset(b.nodes) for of in state.assigned.values() for bs in of.values() for b in bs}
    numbers = [node.number for node in policy.nodes]
    found: set[int | None] = set()
    for width in range(1, len(numbers) + 1):
        for nodes in itertools.combinations(numbers, width):
            free = sum(state.machine[node].tables["memory"].free for node in nodes)
            others = [each for each in sets if each & set(nodes) and each != set(nodes)]
            if free >= wanted and not others:
                found.add(mask_of(nodes))
    return found


def _adds_up(policy: MemoryPolicy, state: MemoryState) -> None:
    blocks = [block for of in state.assigned.values() for each in of.values() for block in each]
    for node in policy.nodes:
        table = state.machine[node.number].tables["memory"]
        assert table.free >= 0
        assert table.free + table.reserved == table.allocatable
        groups = {block.nodes for block in blocks if node.number in block.nodes}
        assert len(groups) <= 1
    assert sum(block.size for block in blocks) == sum(
        each.tables["memory"].reserved for each in state.machine.values()
    )


def test_what_init_containers_leave_is_used_again_and_counted_once() -> None:
    one, sidecar = container("one", "2Gi"), container("aside", "512Mi", restart="Always")
    main = container("main", "1Gi")
    own = pod(main, init=(one, sidecar))
    state = MACHINE.check(MemoryState())
    node = Hint(mask_of([1]), True)
    known: Reusable = {}
    for each in (one, sidecar, main):
        state = MACHINE.allocate(state, own, each, node, known)
        known = MACHINE.reusable_after(state, own, each, known)
    sizes = {name: blocks[0].size for name, blocks in state.assigned["u1"].items()}
    assert sizes == {"one": GIB // 2, "aside": GIB // 2, "main": GIB}, "of two, main has one and aside a half"
    assert state.machine[1].tables["memory"].reserved == 2 * GIB
    for name in sizes:
        state = state.without_container("u1", name)
    assert state.machine == MACHINE.initial()


def test_a_node_of_a_group_is_given_with_its_group() -> None:
    """What other resources left of the hint is one node. The kubelet gives that, writes a state that does not
    fit, and does not start again (seed 835 of the random days of CPUs and memory).
    """
    wide, main = container("main", "4Gi"), container("main", "512Mi")
    state = MACHINE.allocate(MACHINE.check(MemoryState()), pod(wide), wide, Hint(0b11, True), {})
    state = MACHINE.allocate(state, pod(main, uid="u2"), main, Hint(0b10, False), {})
    assert state.assigned["u2"]["main"] == (Block((0, 1), "memory", GIB // 2),)
    assert MACHINE.check(state) == state
    with pytest.raises(NoMemory, match="failed to find the extended preferred hint"):
        MACHINE.allocate(state, pod(main, uid="u3"), main, Hint(0b10, True), {})


def test_a_state_of_another_machine_is_refused() -> None:
    main = container("main", "1Gi")
    state = MACHINE.allocate(MACHINE.check(MemoryState()), pod(main), main, None, {})
    with pytest.raises(
        PlacementStateError, match="machine state can not be empty when it has memory assignments"
    ):
        MACHINE.check(MemoryState({}, state.assigned))
    smaller = MemoryPolicy([NUMAMemory(1, 4 * GIB)], {1: {"memory": GIB}})
    with pytest.raises(PlacementStateError, match="the NUMA that does not exist"):
        smaller.check(MemoryState(smaller.initial(), {"u": {"c": (Block((0,), "memory", 1),)}}))
    with pytest.raises(PlacementStateError, match="uses memory resource that does not exist"):
        smaller.check(MemoryState(smaller.initial(), {"u": {"c": (Block((1,), "hugepages-1Gi", 1),)}}))
    with pytest.raises(PlacementStateError, match="different from the real one"):
        MACHINE.check(MemoryState(state.machine, {}))
