"""Pods that ask for resources as a whole, with the gate PodLevelResourceManagers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.placement import recording, test_memory_manager
from tests.placement.recording import Json
from tests.placement.test_allocator import NODES, Cards
from tests.placement.test_cpu_manager import Node, manager
from tests.placement.test_cpu_policy import MACHINE, RESERVED
from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.common.cpusets import NONE, cpus_text, parse_cpus
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.placement.allocator import Allocator, TopologyPolicy
from trio_kubelet.placement.checkpoint import FILE_NAME, decode, encode
from trio_kubelet.placement.cpu_manager import cpu_policy
from trio_kubelet.placement.cpu_policy import CPUPolicy
from trio_kubelet.placement.cpu_state import CPUState
from trio_kubelet.placement.doors import AllocationError, PlacementStateError
from trio_kubelet.placement.memory_policy import MemoryPolicy
from trio_kubelet.placement.metrics import AlignmentMetrics
from trio_kubelet.placement.pod_level import PodLevel
from trio_kubelet.placement.settings import pod_level
from trio_kubelet.placement.taking import CPUPolicyOptions
from trio_kubelet.placement.topology import CPU, Topology

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "cpu-manager.json").read_text())


# As recorded


def lives() -> list[Json]:
    return list(GOLDEN["lives"])


def play(life: Json) -> Iterator[tuple[Json, Json]]:
    """What was recorded and what is so here, step by step."""
    topology = Topology({int(cpu): CPU(*where) for cpu, where in life["cpus"].items()})
    options = CPUPolicyOptions(**{name.replace("-", "_"): True for name in life["options"]})
    policy = CPUPolicy(topology, parse_cpus(life["reserved"]), options)

    def at(level: PodLevel) -> CPUPolicy:
        return msgspec.structs.replace(policy, pod_level=level)

    for step, state, hints, error in recording.play(life, at, lambda pod: True, CPUState(), NONE):
        if "hints" in step:
            yield recording.recorded_hints(step), hints
        yield step.get("error", ""), error
        if "state" in step:
            shown = {"": cpus_text(state.shared)}
            for uid, containers in state.assigned.items():
                shown |= {f"{uid} {name}": cpus_text(cpus) for name, cpus in containers.items()}
            yield step["state"], shown | {uid: cpus_text(cpus) for uid, cpus in state.pods.items()}


def gives_twice(life: Json) -> bool:
    """Whether the kubelet has given a CPU to two pods, or to two containers of one that run together."""
    for step in life["steps"]:
        own = [(key.split(), parse_cpus(cpus)) for key, cpus in step.get("state", {}).items() if " " in key]
        for ((uid, name), mine), ((other_uid, other), theirs) in itertools.combinations(own, 2):
            together = uid != other_uid or (name.startswith("c") and other.startswith("c"))
            if together and mine & theirs:
                return True
    return False


def may_differ(life: Json) -> bool:
    """A kubelet gives CPUs twice where not all cores have as many threads."""
    threads = Counter(core for core, *_ in life["cpus"].values())
    return len(set(threads.values())) > 1 and gives_twice(life)


@pytest.mark.parametrize("number", range(len(lives())))
def test_cpus_are_given_as_by_the_kubelet(number: int) -> None:
    """Up to where it has given one twice."""
    life = lives()[number]
    for wanted, found in play(life):
        if found != wanted and may_differ(life):
            return
        assert found == wanted


def test_most_lives_are_compared_to_their_ends() -> None:
    assert sum(map(may_differ, lives())) <= 7


@pytest.mark.parametrize("case", GOLDEN["files"], ids=lambda case: f"{case['what']} {case['pod_level']}")
def test_files_of_older_and_newer_kubelets_are_taken_as_by_the_kubelet(case: Json) -> None:
    level = PodLevel.BY_POD if case["pod_level"] else PodLevel.SHARED
    if case["error"]:
        with pytest.raises(PlacementStateError, match="could not restore state from checkpoint"):
            decode(case["file"].encode(), "static", level)
        return
    state = decode(case["file"].encode(), "static", level)
    assert json.loads(encode("static", state, level)) == json.loads(case["read"])


# The managers


def asks(name: str, cpu: str = "", memory: str = "", *, sidecar: bool = False) -> v1.Container:
    amounts = {"cpu": cpu, "memory": memory} if cpu else {}
    resources = v1.ResourceRequirements(requests=amounts, limits=amounts)
    return v1.Container(name=name, resources=resources, restart_policy="Always" if sidecar else None)


def whole(
    *containers: v1.Container, cpu: str = "4", init: tuple[v1.Container, ...] = (), uid: str = "u1"
) -> v1.Pod:
    amounts = {"cpu": cpu, "memory": "2Gi"}
    resources = v1.ResourceRequirements(requests=amounts, limits=amounts)
    spec = {"resources": resources, "init_containers": list(init)}
    return make_pod("pod", uid=uid, containers=list(containers), spec=spec)


class Machine:
    """Both managers and what admits pods by them."""

    def __init__(self, directory: Path, level: PodLevel, policy: str = "single-numa-node") -> None:
        self.node, self.registry = Node(), CollectorRegistry()
        self.cpus = manager(self.node, directory, registry=self.registry, pod_level=level)
        self.memory = test_memory_manager.manager(self.node, directory, pod_level=level)
        self.cards = Cards()
        scope = "pod" if level is PodLevel.BY_POD else "container"
        self.allocator = Allocator(
            providers=[self.cards, self.cpus, self.memory],
            policy=TopologyPolicy(policy, scope, NODES, level),
            registry=CollectorRegistry(),
            alignment=AlignmentMetrics(CollectorRegistry()),
            runs=self.node.runs,
            recorder=self.node,
        )

    async def admit(self, pod: v1.Pod) -> tuple[str, str] | None:
        self.node.pods = [pod]
        return await self.allocator.allocate(pod)

    def counted(self, what: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"resource_manager_{what}", labels)


async def machine(directory: Path, level: PodLevel, policy: str = "single-numa-node") -> Machine:
    made = Machine(directory, level, policy)
    await made.cpus.load()
    await made.memory.load()
    return made


async def test_a_pod_is_given_all_it_asks_for_and_its_containers_parts_of_it(tmp_path: Path) -> None:
    made = await machine(tmp_path, PodLevel.BY_POD)
    pod = whole(asks("main", "2", "1Gi"), asks("aside"), init=(asks("first"), asks("helper", sidecar=True)))
    assert await made.admit(pod) is None
    of = {name: made.cpus.cpus_of("u1", name) for name in ("first", "helper", "main", "aside")}
    assert of == {"first": "4-5,12-13", "main": "4,12", "aside": "5,13", "helper": "5,13"}
    assert made.cpus.cpus_of("other", "main") == "0-3,6-11,14-15", "nobody else is on them"
    assert {made.memory.nodes_of("u1", name) for name in of} == {"1"}
    sizes = {name: sum(block.size for block in made.memory.of("u1", name)) >> 30 for name in of}
    assert sizes == {"first": 2, "helper": 1, "main": 1, "aside": 1}
    assert [name for name, _ in made.cards.given] == ["first", "helper", "main", "aside"], "devices too"
    assert made.counted("allocations_total", resource_name="cpu", source="pod") == 4
    kinds = {"pod_exclusive": 1, "pod_shared": 3}
    for kind, count in kinds.items():
        assert made.counted("container_assignments", resource_name="cpu", assignment_type=kind) == count, kind

    again = await machine(tmp_path, PodLevel.BY_POD)
    assert await again.admit(pod) is None, "what a pod has it keeps when it is admitted again"
    assert {name: again.cpus.cpus_of("u1", name) for name in of} == of
    again.node.pods = []
    assert again.cpus.hints(pod, asks("x")) == {}
    assert again.cpus.cpus_of("other", "main") == "0-15", "all is free when the pod is over"


async def test_a_pod_that_leaves_nothing_to_share_is_refused(tmp_path: Path) -> None:
    pod = whole(asks("main", "4", "1Gi"), asks("aside"))
    made = await machine(tmp_path, PodLevel.BY_POD, "best-effort")
    assert await made.admit(pod) == (
        "EmptyPodSharedPoolError",
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared "
        "containers",
    )
    assert made.counted("allocation_errors_total", resource_name="cpu", source="pod") == 1
    assert made.cpus.cpus_of("u1", "main") == "0-15"
    hungry = whole(asks("main", "2", "2Gi"), asks("aside"), uid="u2")
    assert await made.admit(hungry) == (
        "EmptyPodSharedPoolError",
        "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for "
        "shared containers",
    )
    init = asks("all", "4", "1Gi", sidecar=True), asks("first")
    waiting = whole(asks("main", "2", "1Gi"), init=init, uid="u3")
    assert await made.admit(waiting) == (
        "EmptyPodSharedPoolError",
        "pod rejected, pod has shared init containers but no cpus available for them",
    )


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (PodLevel.SHARED, None),
        (
            PodLevel.BY_POD,
            "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
        ),
        (
            PodLevel.BY_CONTAINER,
            "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
        ),
    ],
)
async def test_what_a_pod_is_told_that_cannot_be_aligned(
    level: PodLevel, text: str | None, tmp_path: Path
) -> None:
    made = await machine(tmp_path, level)
    refused = await made.admit(whole(asks("main", "10", "1Gi"), cpu="10"))
    assert refused == (None if text is None else ("TopologyAffinityError", text))


async def test_each_container_is_given_its_own_without_the_pod_scope(tmp_path: Path) -> None:
    made = await machine(tmp_path, PodLevel.BY_CONTAINER, "best-effort")
    assert await made.admit(whole(asks("main", "2", "1Gi"), asks("aside"))) is None
    assert made.cpus.cpus_of("u1", "main") == "4,12"
    assert made.cpus.cpus_of("u1", "aside") == "0-3,5-11,13-15"
    assert made.counted("allocations_total", resource_name="cpu", source="node") == 1
    assert made.counted("container_assignments", resource_name="cpu", assignment_type="node_exclusive") == 1


async def test_without_the_gate_its_containers_have_nothing_to_themselves(tmp_path: Path) -> None:
    made = await machine(tmp_path, PodLevel.SHARED)
    assert await made.admit(whole(asks("main", "2", "1Gi"))) is None
    assert made.cpus.cpus_of("u1", "main") == "0-15"
    assert made.memory.of("u1", "main") == ()


async def test_the_gate_can_be_turned_on_but_not_off_under_pods(tmp_path: Path) -> None:
    before = await machine(tmp_path, PodLevel.SHARED)
    plain = make_pod("pod", uid="u0", containers=[asks("main", "2", "1Gi")])
    assert await before.admit(plain) is None
    after = await machine(tmp_path, PodLevel.BY_POD)
    assert after.cpus.cpus_of("u0", "main") == before.cpus.cpus_of("u0", "main")
    assert "podEntries" not in json.loads((tmp_path / FILE_NAME).read_text())
    with pytest.raises(PlacementStateError, match="checkpoint is corrupted"):
        await machine(tmp_path, PodLevel.SHARED)


# Whatever comes and goes

KINDS = st.sampled_from([("", ""), ("1", "64Mi"), ("2", "64Mi"), ("500m", "64Mi")])
PODS = st.builds(
    lambda cpu, main, first, helper: (cpu, main, first, helper),
    st.sampled_from(["", "2", "4", "6"]),
    st.lists(KINDS, min_size=1, max_size=3),
    st.lists(KINDS, max_size=1),
    st.lists(KINDS, max_size=1),
)


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | PODS), max_size=25), st.sampled_from(PodLevel))
def test_no_cpu_is_given_twice_or_lost(steps: list[tuple[int, Any]], level: PodLevel) -> None:
    policy = CPUPolicy(MACHINE, RESERVED, pod_level=level)
    state = policy.initial()
    pods: dict[str, v1.Pod] = {}
    for number, made in steps:
        uid = f"u{number}"
        if uid in pods or made is None:
            for each in regular_containers(pods.pop(uid).spec) if uid in pods else ():
                state = state.without_container(uid, each.name)
        else:
            cpu, main, first, helper = made
            init = [asks("first", *amounts) for amounts in first]
            init += [asks("helper", *amounts, sidecar=True) for amounts in helper]
            containers = [asks(f"c{place}", *amounts) for place, amounts in enumerate(main)]
            spec: dict[str, Any] = {"init_containers": init}
            pods[uid] = make_pod("pod", uid=uid, containers=containers, spec=spec)
            if cpu:
                pods[uid] = whole(*containers, cpu=cpu, init=tuple(init), uid=uid)
            for each in regular_containers(pods[uid].spec):
                with suppress(AllocationError):
                    state = policy.allocate(state, pods[uid], each, None, NONE)
        held = [cpus for pod, cpus in state.pods.items()]
        for pod, parts in state.assigned.items():
            if pod in state.pods:
                assert all(part and part <= state.pods[pod] for part in parts.values())
                alone = [
                    parts[c.name] for c in pods[pod].spec.containers or () if policy.exclusive(pods[pod], c)
                ]
                assert sum(map(len, alone)) == len(NONE.union(*alone))
            else:
                held += parts.values()
        assert sum(map(len, held)) + len(state.shared) == len(MACHINE.all())
        assert policy.check(state) == state
        written = encode("static", state, level)
        assert decode(written, "static", level) == state


# Settings


@pytest.mark.parametrize(
    ("gate", "fields", "level"),
    [
        (False, {"topology_manager_policy": "restricted", "topology_manager_scope": "pod"}, PodLevel.SHARED),
        (True, {}, PodLevel.BY_CONTAINER),
        (True, {"topology_manager_scope": "pod"}, PodLevel.BY_CONTAINER),
        (True, {"topology_manager_policy": "restricted"}, PodLevel.BY_CONTAINER),
        (True, {"topology_manager_policy": "restricted", "topology_manager_scope": "pod"}, PodLevel.BY_POD),
    ],
)
def test_the_gate_and_the_scope_decide(gate: bool, fields: Mapping[str, str], level: PodLevel) -> None:
    config = KubeletConfiguration(
        cpu_manager_policy="static",
        kube_reserved={"cpu": "1500m"},
        **fields,  # type: ignore[arg-type]
    )
    gates = resolve_gates({"PodLevelResourceManagers": gate})
    assert pod_level(config, gates) is level
    policy = cpu_policy(config, gates, MACHINE)
    assert policy is not None
    assert (policy.pod_level, policy.reserved) == (level, RESERVED)


def test_a_pod_with_half_a_cpu_shares(tmp_path: Path) -> None:
    policy = CPUPolicy(MACHINE, RESERVED, pod_level=PodLevel.BY_POD)
    memory = MemoryPolicy([], {}, PodLevel.BY_POD)
    pod = whole(asks("main", "1", "1Gi"), cpu="2500m")
    assert policy.exclusive_of_pod(pod) == 0
    assert policy.pod_hints(CPUState(), pod, NONE) == {}
    assert memory.wanted_by_pod(pod) == {"memory": 2 << 30}
