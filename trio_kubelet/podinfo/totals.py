"""What a pod requests and may use in sum, over containers, init containers, sidecars and overhead.

The formula is part of the API (KEP-753 for sidecars, KEP-2837 for pod-level resources): the greater of
what runs at the end and of what each init container needs next to the sidecars started before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.api.defaults import supported_at_pod_level
from trio_kubelet.podinfo.amounts import Amounts, add, amount, amounts, raise_to


def has_pod_level_resources(spec: v1.PodSpec) -> bool:
    """Whether pod-level requests or limits are given."""
    return has_pod_level_requests(spec) or has_pod_level_limits(spec)


def has_pod_level_requests(spec: v1.PodSpec) -> bool:
    return spec.resources is not None and any(map(supported_at_pod_level, spec.resources.requests or ()))


def has_pod_level_limits(spec: v1.PodSpec) -> bool:
    return spec.resources is not None and any(map(supported_at_pod_level, spec.resources.limits or ()))


def claimed_resources(pod: v1.Pod, container: str) -> frozenset[str]:
    """Extended resources of a container that a claim stands for (gate DRAExtendedResource, KEP-5004)."""
    claim = pod.status.extended_resource_claim_status
    mappings = claim.request_mappings if claim is not None else None
    return frozenset(each.resource_name for each in mappings or () if each.container_name == container)


def container_requests(spec: v1.PodSpec) -> Amounts:
    """Requests of all containers together, without pod-level ones and overhead."""
    return _aggregate(spec, lambda container: amounts(container.resources.requests))


def pod_requests(pod: v1.Pod, *, overhead: bool = True, pod_level: bool = True) -> Amounts:
    """What the pod requests; pod-level values replace the sum of the containers'."""
    spec = pod.spec
    total = container_requests(spec)
    if pod_level and has_pod_level_requests(spec) and spec.resources is not None:
        total.update(_pod_level(spec.resources.requests))
    if overhead:
        add(total, amounts(spec.overhead))
    return total


def pod_limits(pod: v1.Pod, *, overhead: bool = True, pod_level: bool = True) -> Amounts:
    """What the pod may use; overhead only adds to limits that are there and not 0."""
    spec = pod.spec
    total = _aggregate(spec, lambda container: amounts(container.resources.limits))
    if pod_level and has_pod_level_resources(spec) and spec.resources is not None:
        total.update(_pod_level(spec.resources.limits))
    if overhead:
        add(total, {name: more for name, more in amounts(spec.overhead).items() if total.get(name)})
    return total


def _limit_steps(spec: v1.PodSpec, resource: str) -> Iterator[int]:
    """The limit at each moment that counts for "is every container limited?": every container, and every
    init container with the sidecars before it.
    """
    for container in spec.containers or ():
        yield amount((container.resources.limits or {}).get(resource, ""))
    sidecars = 0
    for container in spec.init_containers or ():
        step = sidecars + amount((container.resources.limits or {}).get(resource, ""))
        if is_sidecar(container):
            sidecars = step
        yield step


def is_limited(pod: v1.Pod, resource: str, *, pod_level: bool = True) -> bool:
    """Whether the pod, or each of its containers, has a limit. Others have none in the pod's cgroup."""
    spec = pod.spec
    of_pod = (spec.resources.limits or {}) if pod_level and spec.resources is not None else {}
    return bool(amount(of_pod.get(resource, ""))) or all(_limit_steps(spec, resource))


def _aggregate(spec: v1.PodSpec, of: Callable[[v1.Container], Amounts]) -> Amounts:
    total: Amounts = {}
    for container in spec.containers or ():
        add(total, of(container))
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.init_containers or ():
        own = of(container)
        # Only what it names itself: of all else the sidecars' sum is in `starting` already.
        step = {name: number + sidecars.get(name, 0) for name, number in own.items()}
        if is_sidecar(container):
            add(total, own)
            sidecars.update(step)
        raise_to(starting, step)
    raise_to(total, starting)
    return total


def _pod_level(quantities: dict[str, str] | None) -> Amounts:
    return {name: number for name, number in amounts(quantities).items() if supported_at_pod_level(name)}
