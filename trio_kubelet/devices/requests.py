"""How many devices of each resource containers and pods ask for. Pure.

Extended resources are not overcommitted: requests equal limits, so limits say everything.
"""

from __future__ import annotations

from trio_kubelet.api import v1
from trio_kubelet.podinfo.amounts import amounts, whole
from trio_kubelet.podinfo.totals import pod_limits


def container_requests(pod: v1.Pod, container: v1.Container) -> dict[str, int]:
    """By resource, sorted. What a driver of dynamic resources gives for an extended resource is left out."""
    by_claim = _claimed(pod, container.name)
    return {
        name: whole(amount)
        for name, amount in sorted(amounts(container.resources.limits).items())
        if "/" in name and name not in by_claim
    }


def pod_requests(pod: v1.Pod) -> dict[str, int]:
    """By resource, sorted, for the pod as a whole."""
    limits = pod_limits(pod, overhead=False, pod_level=False)
    return {name: whole(amount) for name, amount in sorted(limits.items()) if "/" in name}


def _claimed(pod: v1.Pod, container: str) -> frozenset[str]:
    """Extended resources of a container that a claim stands for (gate DRAExtendedResource)."""
    claim = pod.status.extended_resource_claim_status
    mappings = claim.request_mappings if claim is not None else None
    return frozenset(each.resource_name for each in mappings or () if each.container_name == container)
