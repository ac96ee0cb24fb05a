"""PlacementPods that ask for resources as a whole (KEP-2837). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from trio_kubelet.api import v1


def has_pod_resources(pod: v1.Pod) -> bool:
    """Whether resources are asked for by the pod as a whole: without the gate PodLevelResourceManagers the
    containers of such pods have no CPUs and no memory to themselves.
    """
    whole = pod.spec.resources
    return whole is not None and (_any(whole.requests) or _any(whole.limits))


def _any(amounts: Mapping[str, str] | None) -> bool:
    return any(name in ("cpu", "memory") or name.startswith("hugepages-") for name in amounts or {})
