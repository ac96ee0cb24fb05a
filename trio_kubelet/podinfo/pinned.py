"""Containers that have CPUs to themselves: their CPU time is not limited, for they take it from nobody.

Rules: the kubelet's `ContainerHasExclusiveCPUs` and `PodHasExclusiveCPUs` (gate
DisableCPUQuotaWithExclusiveCPUs).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.podinfo.amounts import UNIT, amount
from trio_kubelet.podinfo.totals import has_pod_level_resources

Pinned: TypeAlias = Mapping[str, Collection[str]]
"""Names of containers that were given CPUs, by the UID of their pod."""


class PinnedCPUs:
    """Which containers were given CPUs. The CPU manager writes it, who limits CPU time reads it."""

    def __init__(self) -> None:
        self.containers: Pinned = {}


def is_pinned(pod: v1.Pod, container: v1.Container, pinned: Pinned) -> bool:
    """Whether the container has CPUs to itself. Of a pod that has its CPUs as a whole, some containers share
    them.
    """
    return container.name in pinned.get(pod.metadata.uid, ()) and (
        not has_pod_level_resources(pod.spec) or (stands_alone(container) and _asks_for_whole_cpus(container))
    )


def pod_is_pinned(pod: v1.Pod, pinned: Pinned) -> bool:
    """Whether the CPU time of the pod as a whole is not limited: a container has CPUs to itself, or all of a
    pod that has its CPUs as a whole.
    """
    each = [is_pinned(pod, container, pinned) for container in regular_containers(pod.spec)]
    return all(each) if has_pod_level_resources(pod.spec) else any(each)


def stands_alone(container: v1.Container) -> bool:
    """Whether the container by itself would be Guaranteed: CPU and memory limited to what is requested."""
    requests, limits = container.resources.requests, container.resources.limits
    return all(_of(requests, name) and _of(requests, name) == _of(limits, name) for name in ("cpu", "memory"))


def _asks_for_whole_cpus(container: v1.Container) -> bool:
    return _of(container.resources.limits, "cpu") % UNIT == 0


def _of(amounts: Mapping[str, str] | None, name: str) -> int:
    return amount((amounts or {}).get(name, ""))
