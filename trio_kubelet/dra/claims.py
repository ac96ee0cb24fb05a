"""Which claims a pod uses, whether it may, and what its containers get of them. Pure.

A claim is named in the pod's spec, was made for it from a template (its status then says how it is called),
or was made by the scheduler for extended resources that a driver stands behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.dra.states import Claim

_SCHEDULING = "scheduling.k8s.io"


class ClaimError(Exception):
    """A pod's claims cannot be used; the text is told to users."""


class ClaimOwner(msgspec.Struct, frozen=True, rename="camel"):
    """Who a claim belongs to."""

    uid: str = ""
    controller: bool = False
    kind: str = ""
    name: str = ""
    api_version: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    name: str = ""
    namespace: str = ""
    owner_references: list[ClaimOwner] | None = None


class _Consumer(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    name: str = ""
    resource: str = ""
    api_group: str = ""


class _Result(msgspec.Struct, frozen=True):
    driver: str = ""


class _Devices(msgspec.Struct, frozen=True):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct, frozen=True):
    devices: _Devices = _Devices()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class ResourceClaim(msgspec.Struct, frozen=True):
    """The parts of a ResourceClaim (resource.k8s.io/v1) that concern a node."""

    metadata: _Metadata = _Metadata()
    status: _Status = _Status()


class Name(NamedTuple):
    """How a pod's claim is called; `made_for_pod`: from a template, so the pod has to be its owner."""

    name: str
    made_for_pod: bool


class PodClaims:
    """What a pod claims and who of it wants that, by the names they have in its spec.

    One object for all questions about a pod: its claims and its containers may be thousands each.
    """

    def __init__(self, pod: v1.Pod) -> None:
        self.pod = pod
        self._claims = {claim.name: claim for claim in pod.spec.resource_claims or ()}
        self._places = {name: place for place, name in enumerate(self._claims)}
        self._made = {s.name: s.resource_claim_name for s in pod.status.resource_claim_statuses or ()}
        containers = pod.spec.containers if self._claims else None
        self._claimants = {each.name: each for each in containers or () if each.resources.claims}

    def claimant(self, name: str) -> v1.Container | None:
        """The container of that name, if it wants claims of the pod."""
        return self._claimants.get(name)

    def names(self, *, extended: bool) -> list[Name]:
        """All claims of the pod. `extended`: gate DRAExtendedResource. Raises ClaimError."""
        found = [self._name(claim) for claim in self.pod.spec.resource_claims or ()]
        names = [name for name in found if name is not None]
        if extended and (status := self.pod.status.extended_resource_claim_status) is not None:
            names.append(Name(status.resource_claim_name, made_for_pod=False))
        return list(dict.fromkeys(names))

    def requests(self, container: v1.Container, *, extended: bool) -> Iterator[tuple[str, str, str]]:
        """What a container uses: the claim's name, the request in it ("" for all), and how its status calls
        that. Raises ClaimError.
        """
        wanted = [each for each in container.resources.claims or () if each.name in self._claims]
        for each in sorted(wanted, key=lambda each: self._places[each.name]):
            name = self._name(self._claims[each.name])
            if name is not None:
                label = f"claim:{each.name}/{each.request}" if each.request else f"claim:{each.name}"
                yield name.name, each.request, label
        status = self.pod.status.extended_resource_claim_status
        if extended and status is not None:
            requests = container.resources.requests or {}
            for mapping in status.request_mappings or ():
                if mapping.container_name == container.name and mapping.resource_name in requests:
                    yield status.resource_claim_name, mapping.request_name, mapping.resource_name

    def _name(self, claim: v1.PodResourceClaim) -> Name | None:
        """The name of one of the pod's claims, None if none was made. Raises ClaimError."""
        meta = self.pod.metadata
        if claim.resource_claim_name is not None:
            return Name(claim.resource_claim_name, made_for_pod=False)
        if claim.resource_claim_template_name is None:
            raise ClaimError(
                f'pod "{meta.namespace}/{meta.name}", spec.resourceClaim "{claim.name}": '
                "none of the supported fields are set"
            )
        if claim.name not in self._made:
            raise ClaimError(f'pod "{meta.namespace}/{meta.name}": ResourceClaim not created yet')
        name = self._made[claim.name]
        return None if name is None else Name(name, made_for_pod=True)


def check(pod: v1.Pod, name: Name, claim: ResourceClaim, *, of_groups: bool = False) -> Claim:
    """The claim as this node keeps it, if the pod may use it. `of_groups`: gate DRAWorkloadResourceClaims,
    with which a claim may be that of the pod's group. Raises ClaimError.
    """
    meta, its = pod.metadata, claim.metadata
    group = _group(pod) if of_groups else None
    if name.made_for_pod and not _was_made_for(pod, group, its):
        who = f"neither Pod nor PodGroup {group or ''} is the owner" if of_groups else "Pod is not owner"
        raise ClaimError(
            f"ResourceClaim {its.namespace}/{its.name} was not created for "
            f"Pod {meta.namespace}/{meta.name} ({who})"
        )
    if not any(_is_for(pod, group, consumer) for consumer in claim.status.reserved_for or ()):
        raise ClaimError(
            f"pod {meta.name} ({meta.uid}) is not allowed to use ResourceClaim {name.name} ({its.uid})"
        )
    if claim.status.allocation is None:
        raise ClaimError(f"ResourceClaim {its.name}: not allocated")
    drivers = {result.driver for result in claim.status.allocation.devices.results or ()}
    return Claim(
        uid=its.uid,
        name=its.name,
        namespace=its.namespace,
        drivers=dict.fromkeys(sorted(drivers), ()),
    )


def _group(pod: v1.Pod) -> str | None:
    """The name of the pod's PodGroup; its UID a pod does not know."""
    return pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else None


def _was_made_for(pod: v1.Pod, group: str | None, claim: _Metadata) -> bool:
    owner = next((each for each in claim.owner_references or () if each.controller), ClaimOwner())
    if owner.uid == pod.metadata.uid:
        return True
    of_group = owner.kind == "PodGroup" and owner.api_version.startswith(f"{_SCHEDULING}/")
    return group is not None and of_group and owner.name == group


def _is_for(pod: v1.Pod, group: str | None, consumer: _Consumer) -> bool:
    if consumer.uid == pod.metadata.uid:
        return True
    of_group = consumer.api_group == _SCHEDULING and consumer.resource == "podgroups"
    return group is not None and of_group and consumer.name == group
