"""Lives recorded from the CPU and the memory manager of kubelet v1.36.2, played again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.placement.doors import AllocationError, GivenState, PlacementPolicy, PlacementStateError
from trio_kubelet.placement.hints import Hint, Hints, mask_of
from trio_kubelet.placement.pod_level import PodLevel

Json: TypeAlias = Any
"""As it was recorded."""
S = TypeVar("S", bound=GivenState)
R = TypeVar("R")


def pod_of(recorded: Json) -> v1.Pod:
    whole, limited = recorded.get("pod"), recorded["guaranteed"]

    def container(each: Json) -> v1.Container:
        limits = each["resources"] if limited or whole else None
        resources = v1.ResourceRequirements(requests=each["resources"], limits=limits)
        always = "Always" if each["sidecar"] else None
        return v1.Container(name=each["name"], resources=resources, restart_policy=always)

    spec: dict[str, object] = {"init_containers": [container(each) for each in recorded["init"]]}
    if whole:
        limits = whole if limited else None
        spec["resources"] = v1.ResourceRequirements(requests=whole, limits=limits)
    containers = [container(each) for each in recorded["main"]]
    return make_pod("pod", uid=recorded["uid"], containers=containers, spec=spec)


class Played(NamedTuple):
    """What a step has come to: the state after it, hints in plain words, and an error."""

    step: Json
    state: Any
    hints: Json
    error: str


def play(
    scenario: Json,
    policy: Callable[[PodLevel], PlacementPolicy[S, R]],
    gives: Callable[[v1.Pod], bool],
    state: S,
    none_left: R,
) -> Iterator[Played]:
    """The scenario's steps. Pods that ask for resources as a whole are given them either way, as recorded."""
    gate = scenario.get("pod_level", False)
    by_container = policy(PodLevel.BY_CONTAINER if gate else PodLevel.SHARED)
    by_pod = policy(PodLevel.BY_POD) if gate else by_container
    state = by_container.check(state)
    pods: dict[str, v1.Pod] = {}
    reusable: dict[str, R] = {}
    for step in scenario["steps"]:
        uid = step.get("uid", "")
        pod, known = pods.get(uid), reusable.get(uid, none_left)
        hints: Hints = {}
        error = ""
        match step["op"]:
            case "pod":
                made = pod_of(step["pod"])
                pods[made.metadata.uid] = made
            case "pod_hints":
                assert pod is not None
                hints = by_pod.pod_hints(state, pod, known)
            case "hints":
                assert pod is not None
                hints = by_container.hints(state, pod, _container(pod, step), known)
            case "allocate" | "allocate_pod":
                assert pod is not None
                rules = by_pod if step["op"] == "allocate_pod" else by_container
                container = _container(pod, step)
                asked = step["affinity"]
                affinity = Hint(mask_of(asked[0]), asked[1]) if asked else None
                try:
                    if gives(pod):
                        state = rules.allocate(state, pod, container, affinity, known)
                        if not rules.as_one(pod):
                            reusable = {uid: rules.reusable_after(state, pod, container, known)}
                except AllocationError as exc:
                    error = str(exc)
            case "remove":
                state = state.without_container(uid, step["container"])
            case "restart":
                reusable = {}
                try:
                    by_container.check(state)
                except PlacementStateError as exc:
                    error = str(exc)
        yield Played(step, state, _plain(hints), error)


def recorded_hints(step: Json) -> Json:
    return {
        k: [(mask_of(nodes), preferred) for nodes, preferred in each] for k, each in step["hints"].items()
    }


def _plain(hints: Hints) -> Json:
    return {kind: [(hint.mask, hint.preferred) for hint in each or ()] for kind, each in hints.items()}


def _container(pod: v1.Pod, step: Json) -> v1.Container:
    name = step.get("container")
    return next(each for each in regular_containers(pod.spec) if name in (None, each.name))
