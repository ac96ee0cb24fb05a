"""The QoS class of a pod, and the pods the node must not do without.

Rules: `pkg/apis/core/v1/helper/qos` and KEP-2837 (pod-level resources) of Kubernetes.
"""

from __future__ import annotations

import enum

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers, remembered
from trio_kubelet.podinfo.amounts import Amounts, add, amounts
from trio_kubelet.podinfo.updates import is_mirror, is_static

_COMPUTE = ("cpu", "memory")
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
SYSTEM_NODE_CRITICAL = "system-node-critical"


class QOSClass(enum.StrEnum):
    """How well a pod's resources are guarded."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_BY_NAME = {each.value: each for each in QOSClass}


def pod_qos(pod: v1.Pod, pod_level_resources: bool = True) -> QOSClass:
    """The class in the pod's status, which never changes, or else what its spec makes it: the status in a
    manifest may say anything.
    """
    return _BY_NAME.get(pod.status.qos_class) or compute_qos(pod.spec, pod_level_resources)


@remembered
def compute_qos(spec: v1.PodSpec, pod_level_resources: bool) -> QOSClass:
    """BestEffort without any CPU or memory request or limit; Guaranteed when every container has limits
    for both and all requests equal the limits; else Burstable. Amounts of 0 do not count.
    """
    if pod_level_resources and spec.resources is not None:
        parts = [spec.resources] if spec.resources.limits else []
        requests = _positive(spec.resources.requests)
    else:
        containers = regular_containers(spec)
        parts = [container.resources for container in containers]
        requests = {}
        for part in parts:
            add(requests, _positive(part.requests))
    limits: Amounts = {}
    guaranteed = True
    for part in parts:
        positive = _positive(part.limits)
        guaranteed = guaranteed and len(positive) == len(_COMPUTE)
        add(limits, positive)
    if not requests and not limits:
        return QOSClass.BEST_EFFORT
    if guaranteed and requests == limits:
        return QOSClass.GUARANTEED
    return QOSClass.BURSTABLE


def _positive(quantities: dict[str, str] | None) -> Amounts:
    return {name: number for name, number in amounts(quantities).items() if name in _COMPUTE and number > 0}


def is_critical_pod(pod: v1.Pod) -> bool:
    """Whether others are evicted or preempted for it: static, mirror, or of a system priority."""
    priority = pod.spec.priority
    return is_static(pod) or is_mirror(pod) or (priority is not None and priority >= SYSTEM_CRITICAL_PRIORITY)


def is_node_critical_pod(pod: v1.Pod) -> bool:
    """Whether the node itself depends on the pod; only such a one is never the first to be killed."""
    return is_critical_pod(pod) and pod.spec.priority_class_name == SYSTEM_NODE_CRITICAL
