"""Whether a pod fits a node beside the pods that are there: the scheduler's filters the node repeats. Pure.

Resources, node selector and affinity, node name, host ports, taints; failures in the kubelet's order and
words. A pod may have been placed by hand, or before the node changed, so the node checks for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.selectors import matches_terms
from trio_kubelet.api.tolerations import tolerates
from trio_kubelet.podinfo.amounts import amounts, counted, whole
from trio_kubelet.podinfo.totals import claimed_resources, pod_requests
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.admission.occupancy import Others, host_ports

_OF_DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The node as admission sees it.

    `runtime_classes`: names to handlers, None when nobody can look them up (no API server).
    """

    name: str
    labels: Mapping[str, str] = {}
    allocatable: Mapping[str, str] = {}
    taints: Sequence[v1.Taint] = ()
    runtime_classes: Mapping[str, str] | None = None
    strict_supplemental_groups: bool = False  # whether the runtime can keep to the strict policy
    apparmor: bool = False  # whether the kernel can confine by profiles
    pod_level_resources: bool = True  # whether pods may have resources of their own as a whole
    comparing_tolerations: bool = False  # whether `Lt` and `Gt` of tolerations count
    extended_claims: bool = True  # whether claims may stand for extended resources
    declared: Collection[str] | None = None  # features on the Node, None: it does not declare any


class Insufficient(msgspec.Struct, frozen=True):
    """A resource of which too little is left; CPU in thousandths, others in units."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        """How much would have to be freed."""
        return self.requested - (self.capacity - self.used)

    @property
    def reason(self) -> str:
        return f"OutOf{self.resource}"

    def __str__(self) -> str:
        return (
            f"Node didn't have enough resource: {self.resource}, requested: {self.requested}, "
            f"used: {self.used}, capacity: {self.capacity}"
        )


class Mismatch(msgspec.Struct, frozen=True):
    """A filter that does not let the pod through."""

    reason: str  # the filter's name
    description: str

    def __str__(self) -> str:
        return f"Predicate {self.reason} failed: {self.description}"


Failure: TypeAlias = Insufficient | Mismatch


def failures(pod: v1.Pod, others: Others, node: NodeFacts) -> list[Failure]:
    """Everything that keeps the pod from running on the node beside the others."""
    found: list[Failure] = [*insufficient_resources(pod, others, node)]
    if not matches_node(pod, node):
        found.append(Mismatch("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"))
    if pod.spec.node_name not in ("", node.name):
        found.append(Mismatch("NodeName", "node(s) didn't match the requested node name"))
    if any(map(others.have_port, host_ports(pod))):
        found.append(Mismatch("NodePorts", "node(s) didn't have free ports for the requested pod ports"))
    if not is_static(pod) and untolerated(pod, node.taints, comparing=node.comparing_tolerations):
        found.append(Mismatch("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
    return found


# Resources


def insufficient_resources(pod: v1.Pod, others: Others, node: NodeFacts) -> list[Insufficient]:
    """Resources the node has too little of; pods first, then CPU, memory, storage and the rest."""
    allocatable = amounts(node.allocatable)
    room = whole(allocatable.get("pods", 0))
    found = []
    if len(others) + 1 > room:
        found.append(Insufficient("pods", 1, len(others), room))
    here = _without_elsewhere(pod, allocatable, claims=node.extended_claims)
    wanted = {name: amount for name, amount in pod_requests(here).items() if amount}
    if not wanted:
        return found
    first = ("cpu", "memory", "ephemeral-storage")
    for name in (*first, *sorted(set(wanted) - {*first})):
        if name not in wanted or (name not in first and not _is_scalar(name)):
            continue
        requested, taken = counted(name, wanted[name]), others.requested(name)
        capacity = counted(name, allocatable.get(name, 0))
        if requested > capacity - taken:
            found.append(Insufficient(name, requested, taken, capacity))
    return found


def _without_elsewhere(pod: v1.Pod, here: Collection[str], *, claims: bool) -> v1.Pod:
    """The pod without what its containers do not get from the node: what a driver of dynamic resources gives
    them (`claims`: gate DRAExtendedResource), and extended resources that are not `here`, for they are the
    cluster's.
    """
    containers, first = pod.spec.containers or [], pod.spec.init_containers or []
    named = {name for each in (*containers, *first) for name in each.resources.requests or ()}
    claims = claims and pod.status.extended_resource_claim_status is not None
    if not claims and not any(is_extended(name) and name not in here for name in named):
        return pod

    def rest(container: v1.Container) -> v1.Container:
        claimed = claimed_resources(pod, container.name) if claims else ()
        resources = container.resources
        left = {
            name: text
            for name, text in (resources.requests or {}).items()
            if not (is_extended(name) and (name not in here or name in claimed))
            and not (name.startswith(_OF_DEVICE_CLASS) and name in claimed)
        }
        return replace(container, resources=replace(resources, requests=left))

    spec = replace(pod.spec, containers=[*map(rest, containers)], init_containers=[*map(rest, first)])
    return replace(pod, spec=spec)


def request_of(pod: v1.Pod, resource: str) -> int:
    """What the pod takes of a resource, in the unit of `Insufficient`."""
    if resource == "pods":
        return 1
    return counted(resource, pod_requests(pod).get(resource, 0))


def is_extended(name: str) -> bool:
    """Whether the resource is one that nodes advertise by themselves, like `example.com/gpu`."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def _is_scalar(name: str) -> bool:
    return (
        is_extended(name)
        or name.startswith(("hugepages-", "attachable-volumes-"))
        or "kubernetes.io/" in name
    )


# Node selector and affinity


def matches_node(pod: v1.Pod, node: NodeFacts) -> bool:
    """Whether the node is one the pod's selector and required affinity ask for."""
    selector = pod.spec.node_selector or {}
    if any(node.labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None:
        return True
    return matches_terms(required, node.labels, node.name)


# Taints


def untolerated(pod: v1.Pod, taints: Iterable[v1.Taint], *, comparing: bool = False) -> bool:
    """Whether the node has a NoExecute taint the pod does not tolerate; others concern the scheduler."""
    tolerations = pod.spec.tolerations or ()
    return any(
        taint.effect == "NoExecute"
        and not any(tolerates(toleration, taint, comparing=comparing) for toleration in tolerations)
        for taint in taints
    )
