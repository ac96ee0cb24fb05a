"""The policy `static` of the CPU manager: who has which CPUs, whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.api import v1
from trio_kubelet.common.cpusets import NONE, CPUSet, parse_cpus
from trio_kubelet.placement.cpu_policy import CPUPolicy, SMTAlignmentError, reserved_cpus
from trio_kubelet.placement.cpu_state import CPUState
from trio_kubelet.placement.doors import PlacementStateError
from trio_kubelet.placement.hints import Hint
from trio_kubelet.placement.taking import CPUPolicyOptions, NotEnoughCPUs
from trio_kubelet.placement.topology import CPU, Topology

MACHINE = Topology({cpu: CPU(cpu % 8, cpu % 8 // 4, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16)})
"""Two sockets of four cores with two threads each: CPU n and n + 8 share a core."""
RESERVED = parse_cpus("0,8")


def container(name: str, cpu: str, *, sidecar: bool = False) -> v1.Container:
    amounts = {"cpu": cpu, "memory": "1Mi"}
    return v1.Container(
        name=name,
        resources=v1.ResourceRequirements(requests=amounts, limits=amounts),
        restart_policy="Always" if sidecar else None,
    )


def pod(*containers: v1.Container, init: tuple[v1.Container, ...] = (), uid: str = "u1") -> v1.Pod:
    spec = v1.PodSpec(containers=list(containers), init_containers=list(init))
    return v1.Pod(metadata=v1.ObjectMeta(name=uid, namespace="d", uid=uid), spec=spec)


def policy(**options: bool) -> CPUPolicy:
    return CPUPolicy(MACHINE, RESERVED, CPUPolicyOptions(**options))


def test_who_has_cpus_alone() -> None:
    whole, half = container("a", "2"), container("b", "1500m")
    assert policy().exclusive(pod(whole), whole) == 2
    assert policy().exclusive(pod(half), half) == 0
    bare = v1.Container(name="c")
    assert policy().exclusive(pod(whole, bare), whole) == 0, "the pod is burstable"


def test_what_a_pod_has_at_the_most() -> None:
    wants = pod(
        container("main", "2"),
        init=(container("first", "4"), container("aside", "1", sidecar=True), container("second", "3")),
    )
    assert policy().exclusive_of_pod(wants) == 4


def test_cpus_are_taken_from_the_shared_ones_and_come_back() -> None:
    rules = policy()
    before = rules.initial()
    wants = container("main", "4")
    after = rules.allocate(before, pod(wants), wants, Hint(0b10, True), NONE)
    assert after.of("u1", "main") == parse_cpus("4-5,12-13")
    assert after.shared == before.shared - parse_cpus("4-5,12-13")
    assert rules.allocate(after, pod(wants), wants, None, NONE) == after, "asked again"
    assert after.without_container("u1", "main") == before


def test_an_init_containers_cpus_are_given_again() -> None:
    rules, state = policy(), policy().initial()
    first, main = container("first", "2"), container("main", "2")
    wants = pod(main, init=(first,))
    state = rules.allocate(state, wants, first, None, NONE)
    cpus = state.of("u1", "first")
    assert cpus is not None
    reusable = rules.reusable_after(state, wants, first, NONE)
    state = rules.allocate(state, wants, main, Hint(0b01, True), reusable)
    assert state.of("u1", "main") == cpus
    assert state.without_container("u1", "first").shared == state.shared, "the other one still has them"


def test_hints_name_the_nodes_that_have_room() -> None:
    wants = container("main", "7")
    hints = policy().hints(policy().initial(), pod(wants), wants, NONE)["cpu"]
    assert hints == [Hint(0b10, True), Hint(0b11, False)], "node 0 has six: two CPUs are reserved"


def test_whole_cores_only() -> None:
    rules = policy(full_pcpus_only=True)
    with pytest.raises(SMTAlignmentError, match="requested 3 cpus not multiple cpus per core = 2"):
        rules.allocate(rules.initial(), pod(container("m", "3")), container("m", "3"), None, NONE)
    with pytest.raises(
        SMTAlignmentError, match="not enough free physical CPUs: available physical CPUs = 14"
    ):
        rules.allocate(rules.initial(), pod(container("m", "16")), container("m", "16"), None, NONE)


def test_reserved_cpus() -> None:
    assert reserved_cpus(MACHINE, 2, NONE, CPUPolicyOptions()) == RESERVED
    assert reserved_cpus(MACHINE, 2, parse_cpus("3,4"), CPUPolicyOptions()) == parse_cpus("3,4")
    with pytest.raises(NotEnoughCPUs, match=r"size of 3 did not equal 2"):
        reserved_cpus(MACHINE, 2, parse_cpus("3"), CPUPolicyOptions())


@pytest.mark.parametrize(
    ("shared", "assigned", "text"),
    [
        ("", "1", "default cpuset cannot be empty"),
        ("1-15", "", 'not all reserved cpus: "0,8" are present in defaultCpuSet: "1-15"'),
        ("0-15", "3", 'pod: u1, container: main cpuset: "3" overlaps with default cpuset "0-15"'),
        ("0-8", "", 'current set of available CPUs "0-15" doesn\'t match with CPUs in state "0-8"'),
    ],
)
def test_states_that_cannot_be(shared: str, assigned: str, text: str) -> None:
    state = CPUState(parse_cpus(shared), {"u1": {"main": parse_cpus(assigned)}} if assigned else {})
    with pytest.raises(PlacementStateError) as refused:
        policy().check(state)
    assert str(refused.value) == text


def test_strictly_reserved_cpus_are_in_no_set() -> None:
    strict = policy(strict_cpu_reservation=True)
    assert strict.check(CPUState()).shared == MACHINE.all() - RESERVED
    assert strict.check(strict.initial()) == strict.initial()
    with pytest.raises(PlacementStateError, match="some of strictly reserved cpus"):
        strict.check(CPUState(MACHINE.all()))


STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 6), st.booleans()), max_size=30)


@given(STEPS, st.sampled_from([None, Hint(0b01, True), Hint(0b10, True), Hint(0b11, False)]))
def test_no_cpu_is_given_twice_and_none_is_lost(
    steps: list[tuple[str, int, bool]], affinity: Hint | None
) -> None:
    rules = policy()
    state = rules.initial()
    for uid, count, ends in steps:
        if ends:
            state = state.without_container(uid, "main")
        else:
            wants = container("main", str(count))
            try:
                state = rules.allocate(state, pod(wants, uid=uid), wants, affinity, NONE)
            except NotEnoughCPUs:
                continue
        given: list[CPUSet] = [
            state.shared,
            *(cpus for each in state.assigned.values() for cpus in each.values()),
        ]
        assert sum(map(len, given)) == len(MACHINE.all())
        assert rules.check(state) == state
