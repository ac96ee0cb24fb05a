"""What of pods can be resized, and what that is called: which resizes can never be made on this node
(KEP-1287), in the kubelet's words (`allocation/handlers.go`), what a changed pod asks for anew, the messages
of events. Pure.

What a node merely has no room for at the moment is no matter of these rules: the pod is admitted with what
it now asks for like a new one, and waits as long as it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from trio_kubelet.api.containers import regular_containers
from trio_kubelet.api.tree import json_text
from trio_kubelet.api.v1 import Container, Pod
from trio_kubelet.podinfo.amounts import amount
from trio_kubelet.podinfo.qos import QOSClass, pod_qos
from trio_kubelet.pods.admission.admitter import Postpone

_RESOURCES: Final = ("memory", "cpu")


class RequestedResize(NamedTuple):
    """One amount of one container, by the metric's labels."""

    resource: str
    requirement: str
    operation: str


def requested_resizes(old: Pod, new: Pod) -> Iterator[RequestedResize]:
    """The amounts of containers that differ."""
    for wanted, had in container_pairs(new, old):
        for resource in _RESOURCES:
            for requirement in ("requests", "limits"):
                before, after = (_amounts(c, requirement).get(resource, "0") for c in (had, wanted))
                if operation := _operation(amount(before), amount(after)):
                    yield RequestedResize(resource, requirement, operation)


def container_pairs(new: Pod, old: Pod) -> Iterator[tuple[Container, Container]]:
    """The containers of `new` that can be resized, each with itself as it was in `old`."""
    before = {container.name: container for container in regular_containers(old.spec)}
    for container in regular_containers(new.spec):
        if container.name in before:
            yield container, before[container.name]


def _amounts(container: Container, requirement: str) -> Mapping[str, str]:
    resources = container.resources
    return (resources.requests if requirement == "requests" else resources.limits) or {}


def _operation(old: int, new: int) -> str:
    if old == new:
        return ""
    if not new:
        return "remove"
    if not old:
        return "add"
    return "increase" if new > old else "decrease"


def _no_swap(pod: Pod, container: Container) -> bool:
    return False


class ResizeRules(msgspec.Struct, frozen=True, kw_only=True):
    """What of the node keeps resizes from being made.

    `static_cpus`, `static_memory`: guaranteed pods have cores or memory of their own, which stay as they are.
    `may_swap`: whether a container of a pod would be given swap, which is not calculated anew.
    """

    pod_level: bool = True
    static_cpus: bool = False
    static_memory: bool = False
    may_swap: Callable[[Pod, Container], bool] = _no_swap


NO_RULES = ResizeRules()


def infeasible(pod: Pod, granted: Pod, rules: ResizeRules) -> Postpone | None:
    """Why the pod can never have what it now asks for; `granted` is the pod with what it has."""
    if _changes_swap(pod, granted, rules):
        return _never("In-place resize of containers with swap is not supported.", "swap_limitation")
    if not rules.pod_level and pod.spec.resources != granted.spec.resources:
        return _never("InPlacePodLevelResourcesVerticalScaling is disabled", "plr_feature_gate_off")
    if pod_qos(pod) is not QOSClass.GUARANTEED:
        return None
    for bound, resource, manager, policy in (
        (rules.static_cpus, "cpu", "CPU", "static"),
        (rules.static_memory, "memory", "Memory", "Static"),
    ):
        if bound and any(_request_changes(*pair, resource) for pair in container_pairs(pod, granted)):
            text = f'Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy "{policy}"'
            return _never(text, f"guaranteed_pod_{resource}_manager_static_policy")
    return None


def _never(message: str, detail: str) -> Postpone:
    return Postpone("Infeasible", message, detail=detail)


def _changes_swap(pod: Pod, granted: Pod, rules: ResizeRules) -> bool:
    """Whether another memory request, without a restart, would mean another share of the swap."""
    return any(
        _request_changes(wanted, had, "memory")
        and not _restarts_for_memory(had)
        and (rules.may_swap(pod, wanted) or rules.may_swap(granted, had))
        for wanted, had in container_pairs(pod, granted)
    )


def _restarts_for_memory(container: Container) -> bool:
    for policy in container.resize_policy or ():
        if policy.resource_name == "memory":
            return policy.restart_policy == "RestartContainer"
    return False


def _request_changes(wanted: Container, had: Container, resource: str) -> bool:
    new, old = ((c.resources.requests or {}).get(resource, "0") for c in (wanted, had))
    return amount(new) != amount(old)


def resize_message(what: str, pod: Pod, error: str = "", *, generation: int | None = None) -> str:
    """`Pod resize <what>: {…}`, in the notation of Go's encoder. Pure.

    `generation` is the pod's when the resize began, if that is not its present one.
    """
    summary: dict[str, Any] = {}
    if pod.spec.init_containers:
        summary["initContainers"] = _resources(pod.spec.init_containers)
    if pod.spec.containers:
        summary["containers"] = _resources(pod.spec.containers)
    summary["generation"] = pod.metadata.generation if generation is None else generation
    if error:
        summary["error"] = error
    return f"Pod resize {what}: {json_text(summary)}"


def _resources(containers: Sequence[Container]) -> list[dict[str, Any]]:
    return [{"name": c.name, "resources": _requirements(c)} for c in containers]


def _requirements(container: Container) -> dict[str, Any]:
    resources = container.resources
    fields: dict[str, Any] = {}
    for name, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if amounts:
            fields[name] = dict(sorted(amounts.items()))
    if resources.claims:
        fields["claims"] = msgspec.to_builtins(resources.claims)
    return fields
