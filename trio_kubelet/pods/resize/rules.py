"""Which resizes of running pods can never be made on this node (KEP-1287), in the kubelet's words
(`allocation/handlers.go`). Pure.

What a node merely has no room for at the moment is no matter of these rules: the pod is admitted with what it
now asks for like a new one, and waits as long as it is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trio_kubelet.api.v1 import Container, Pod
from trio_kubelet.podinfo.amounts import amount
from trio_kubelet.podinfo.qos import QOSClass, pod_qos
from trio_kubelet.pods.admission.admitter import Postpone
from trio_kubelet.pods.resize.requested import container_pairs


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
