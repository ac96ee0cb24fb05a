"""Pods that ask for resources as a whole (KEP-2837), and what their containers have to themselves. Pure.

Without the gate PodLevelResourceManagers that is nothing. With it, and when the topology manager places pods
as a whole, the pod is given its CPUs and memory, and its containers parts of these; else each container is
given what it asks for, as in other pods. Rules: the kubelet's `AllocatePod` of CPU and memory manager.
"""

from __future__ import annotations

import enum

from trio_kubelet.api import v1
from trio_kubelet.placement.doors import AllocationError
from trio_kubelet.podinfo.pinned import stands_alone
from trio_kubelet.podinfo.totals import has_pod_level_resources


class PodLevel(enum.Enum):
    """How such pods are served."""

    SHARED = "containers have nothing to themselves"
    BY_CONTAINER = "each container is given what it asks for"
    BY_POD = "the pod is given what it asks for, its containers parts of that"


class EmptyPool(AllocationError):
    """Nothing would be left for containers that share what their pod has; the text is the kubelet's."""

    reason = "EmptyPodSharedPoolError"


def has_pod_resources(pod: v1.Pod) -> bool:
    """Whether resources are asked for by the pod as a whole."""
    return has_pod_level_resources(pod.spec)


def served_as_one(pod: v1.Pod, level: PodLevel) -> bool:
    """Whether the pod is given things as a whole."""
    return level is PodLevel.BY_POD and has_pod_resources(pod)


def shares(pod: v1.Pod, container: v1.Container, level: PodLevel) -> bool:
    """Whether the container has nothing to itself because its pod asks for resources as a whole."""
    if not has_pod_resources(pod):
        return False
    return level is PodLevel.SHARED or not stands_alone(container)
