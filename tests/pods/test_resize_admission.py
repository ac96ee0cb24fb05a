"""Resizes that can never be made, and what keeps others waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.pods.build import make_pod
from trio_kubelet.admission import resize_rules
from trio_kubelet.api import v1
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.types import KubeletConfiguration, MemorySwap
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.pods.admission.admitter import Admit, Postpone, Preempt, Reject
from trio_kubelet.pods.admission.allocating import Allocating, NothingToAllocate
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter
from trio_kubelet.pods.admission.occupancy import Occupancy
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist
from trio_kubelet.pods.resize.allocation import AllocationStore
from trio_kubelet.pods.resize.rules import NO_RULES, ResizeRules, infeasible

SWAP = "In-place resize of containers with swap is not supported."
CPUS = 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
MEMORY = 'Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"'
SWAPPING = NodeContext(node_name="n", cgroup_v2=True, swap_controller=True, swap_behavior="LimitedSwap")


NOBODY = Occupancy().beside("")


def rules(node: NodeContext = SWAPPING, /, **settings: str) -> ResizeRules:
    config = KubeletConfiguration(memory_swap=MemorySwap(swap_behavior=node.swap_behavior), **settings)  # type: ignore[arg-type]
    return resize_rules(config, resolve_gates({}), node)


def container(name: str = "c", *, restart: bool = False, **amounts: str) -> v1.Container:
    """`cpu` and `memory` are requests, `cpu_limit` and `memory_limit` limits."""
    requests = {key: value for key, value in amounts.items() if not key.endswith("_limit")}
    limits = {key.removesuffix("_limit"): value for key, value in amounts.items() if key.endswith("_limit")}
    policies = [
        v1.ContainerResizePolicy(resource_name="cpu", restart_policy="NotRequired"),
        v1.ContainerResizePolicy(
            resource_name="memory", restart_policy="RestartContainer" if restart else "NotRequired"
        ),
    ]
    resources = v1.ResourceRequirements(requests=requests or None, limits=limits or None)
    return v1.Container(name=name, image="i", resources=resources, resize_policy=policies)


def pod(*containers: v1.Container, **kwargs: object) -> v1.Pod:
    return make_pod("web", source="api", containers=list(containers), **kwargs)  # type: ignore[arg-type]


def guaranteed(cpu: str, memory: str) -> v1.Pod:
    return pod(container(cpu=cpu, cpu_limit=cpu, memory=memory, memory_limit=memory))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (container(memory="64Mi"), container(memory="128Mi"), SWAP),
        (container(memory="64Mi"), container(memory="65536Ki"), None),  # the same amount
        (container(memory="64Mi", cpu="1"), container(memory="64Mi", cpu="2"), None),
        (container(memory="64Mi", memory_limit="1Gi"), container(memory="64Mi", memory_limit="2Gi"), None),
        # The one that has no swap now would get some, and the other way round.
        (
            container(memory="1Gi", memory_limit="1Gi"),
            container(memory="64Mi", memory_limit="1Gi"),
            SWAP,
        ),
        (container(cpu="1", memory="64Mi"), container(cpu="1"), SWAP),
        (container(memory="64Mi", restart=True), container(memory="128Mi", restart=True), None),
        # What counts is the policy the container runs under.
        (container(memory="64Mi"), container(memory="128Mi", restart=True), SWAP),
    ],
)
def test_swap_is_not_shared_out_anew(before: v1.Container, after: v1.Container, said: str | None) -> None:
    answer = infeasible(pod(after), pod(before), rules())
    swap = Postpone("Infeasible", SWAP, detail="swap_limitation")
    assert answer == (None if said is None else swap)
    assert infeasible(pod(after), pod(before), NO_RULES) is None


@pytest.mark.parametrize(
    ("node", "spec"),
    [
        (replace(SWAPPING, swap_behavior="NoSwap"), {}),
        (replace(SWAPPING, swap_behavior=""), {}),
        (replace(SWAPPING, swap_controller=False), {}),
        (replace(SWAPPING, cgroup_v2=False), {}),
        (SWAPPING, {"priority": 2_000_000_000}),
    ],
)
def test_memory_is_resized_where_nothing_is_swapped(node: NodeContext, spec: dict[str, object]) -> None:
    before, after = (pod(container(memory=size), spec=spec) for size in ("64Mi", "128Mi"))
    assert infeasible(after, before, rules(node)) is None


def test_sidecars_may_swap_as_well() -> None:
    def with_sidecar(memory: str) -> v1.Pod:
        return pod(container("c"), spec={"init_containers": [container("helper", memory=memory)]})

    answer = infeasible(with_sidecar("2Mi"), with_sidecar("1Mi"), rules())
    assert answer is not None
    assert (answer.reason, answer.message) == ("Infeasible", SWAP)


@pytest.mark.parametrize(
    ("settings", "after", "said"),
    [
        ({"cpu_manager_policy": "static"}, guaranteed("2", "64Mi"), CPUS),
        ({"cpu_manager_policy": "static"}, guaranteed("1", "128Mi"), None),
        ({"cpu_manager_policy": "none"}, guaranteed("2", "64Mi"), None),
        ({"memory_manager_policy": "Static"}, guaranteed("1", "128Mi"), MEMORY),
        ({"memory_manager_policy": "Static"}, guaranteed("2", "64Mi"), None),
        ({"cpu_manager_policy": "static", "memory_manager_policy": "Static"}, guaranteed("2", "2Mi"), CPUS),
    ],
)
def test_what_guaranteed_pods_have_of_their_own(
    settings: dict[str, str], after: v1.Pod, said: str | None
) -> None:
    answer = infeasible(after, guaranteed("1", "64Mi"), rules(**settings))
    manager = "cpu" if said == CPUS else "memory"
    detail = f"guaranteed_pod_{manager}_manager_static_policy"
    assert answer == (None if said is None else Postpone("Infeasible", said, detail=detail))


def test_gates_that_let_guaranteed_pods_be_resized() -> None:
    names = ("InPlacePodVerticalScalingExclusiveCPUs", "InPlacePodVerticalScalingExclusiveMemory")
    config = KubeletConfiguration(cpu_manager_policy="static", memory_manager_policy="Static")
    made = resize_rules(config, resolve_gates(dict.fromkeys(names, True)), SWAPPING)
    assert infeasible(guaranteed("2", "128Mi"), guaranteed("1", "64Mi"), made) is None


def test_a_burstable_pod_shares_its_cores() -> None:
    before, after = (pod(container(cpu=cpu)) for cpu in ("1", "2"))
    assert infeasible(after, before, rules(cpu_manager_policy="static")) is None


sizes = st.sampled_from(["0", "1Mi", "64Mi", "1Gi"])


@given(sizes, sizes, sizes, sizes)
def test_only_another_memory_request_touches_swap(old: str, new: str, cap: str, new_cap: str) -> None:
    before, after = container(memory=old, memory_limit=cap), container(memory=new, memory_limit=new_cap)
    if infeasible(pod(after), pod(before), rules()) is not None:
        assert old != new


def admitter(
    tmp_path: Path,
    before: v1.Pod,
    pressures: frozenset[str] = frozenset(),
    made: ResizeRules = NO_RULES,
    allocating: Allocating | None = None,
) -> NodeAdmitter:
    facts = NodeFacts(name="n", allocatable={"cpu": "2", "memory": "4Gi", "pods": "1"})
    found = NodeAdmitter(
        node=lambda: facts,
        sysctls=SysctlAllowlist([]),
        allocations=AllocationStore(str(tmp_path)),
        pressures=lambda: pressures,
        resizes=made,
        allocating=allocating,
    )
    found.granted(before)
    return found


def test_more_than_the_node_has_is_waited_for(tmp_path: Path) -> None:
    """Nodes grow."""
    here = admitter(tmp_path, pod(container(cpu="1")))
    message = "Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 2000"
    assert here.resize(pod(container(cpu="9")), NOBODY) == Postpone("Deferred", message, "OutOfcpu")
    assert here.resize(pod(container(cpu="2")), NOBODY) == Admit()


def test_each_try_counts_as_an_admission_of_what_is_handed_out(tmp_path: Path) -> None:
    class Counts(NothingToAllocate):
        admissions = 0

        def passes(self, pod: v1.Pod) -> None:
            self.admissions += 1

    counts = Counts()
    pressures, allocating = frozenset({"DiskPressure"}), Allocating(counts)
    here = admitter(tmp_path, pod(container(cpu="1")), allocating=allocating)
    for cpu in ("9", "2"):
        here.resize(pod(container(cpu=cpu)), NOBODY)
    assert counts.admissions == 2
    pressed = admitter(tmp_path / "pressed", pod(container(cpu="1")), pressures, allocating=allocating)
    pressed.resize(pod(container(cpu="2")), NOBODY)
    assert counts.admissions == 2, "it does not get so far"


def test_a_node_under_pressure_gives_nothing_more(tmp_path: Path) -> None:
    here = admitter(tmp_path, pod(container(cpu="1")), frozenset({"DiskPressure"}))
    expected = Postpone("Deferred", "The node had condition: [DiskPressure]. ", "Evicted")
    assert here.resize(pod(container(cpu="2")), NOBODY) == expected


def test_whatever_would_refuse_a_new_pod_keeps_a_resize_waiting(tmp_path: Path) -> None:
    here = admitter(tmp_path, pod(container(cpu="1")))
    moved = pod(container(cpu="2"), spec={"node_selector": {"zone": "3"}})
    answer = here.resize(moved, NOBODY)
    assert isinstance(answer, Postpone)
    assert (answer.reason, answer.cause) == ("Deferred", "NodeAffinity")


def test_a_node_that_goes_down_refuses_who_would_be_taken_and_ends_nobody_for_one(tmp_path: Path) -> None:
    gone = Reject("NodeShutdown", "Pod was rejected as the node is shutting down.")
    here = NodeAdmitter(
        node=lambda: NodeFacts(name="n", allocatable={"cpu": "2", "pods": "9"}),
        sysctls=SysctlAllowlist([]),
        allocations=AllocationStore(str(tmp_path)),
        checks=(lambda pod: gone,),
    )
    others = Occupancy([make_pod("other", source="api", containers=[container(cpu="1")])]).beside("")
    assert here.admit(pod(container(cpu="1")), others) == gone
    too_large = here.admit(pod(container(cpu="2")), others)
    assert isinstance(too_large, Reject)
    assert too_large.reason == "OutOfcpu", "the first reason is told"
    assert here.admit(pod(container(cpu="2"), spec={"priority": 2_000_000_000}), others) == gone


def test_room_for_a_critical_pod_is_made(tmp_path: Path) -> None:
    spec = {"priority": 2_000_000_000}
    here = admitter(tmp_path, pod(container(cpu="1"), spec=spec))
    victim = make_pod("other", source="api", containers=[container(cpu="1")])
    answer = here.resize(pod(container(cpu="2"), spec=spec), Occupancy([victim]).beside(""))
    assert isinstance(answer, Preempt)
    assert answer.victims == (victim,)
    assert here.as_granted(pod(container(cpu="2"), spec=spec)).spec.containers == [container(cpu="1")]
