"""Whose a claim is, and what containers use of it: the rules, as the kubelet has them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.pods.build import make_pod
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.dra.claims import ClaimError, Name, PodClaims, ResourceClaim, check
from trio_kubelet.dra.states import Claim, PreparedDevice

NAME = Name("c", made_for_pod=True)


def claim(owner: dict[str, Any], reserved: dict[str, Any], **request: Any) -> ResourceClaim:
    results = [{"driver": "gpu.example.com", "request": "gpu", **request}]
    plain = {
        "metadata": {"uid": "uid-c", "name": "c", "namespace": "default", "ownerReferences": [owner]},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [reserved]},
    }
    return msgspec.convert(plain, ResourceClaim)


def grouped(group: str | None = "ring") -> v1.Pod:
    spec = {"scheduling_group": v1.PodSchedulingGroup(pod_group_name=group)}
    return make_pod("web", uid="uid-web", spec=spec)


OF_GROUP = {
    "controller": True,
    "kind": "PodGroup",
    "name": "ring",
    "apiVersion": "scheduling.k8s.io/v1alpha2",
}
FOR_GROUP = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "ring", "uid": "uid-ring"}
OF_POD = {"controller": True, "kind": "Pod", "name": "web", "uid": "uid-web"}
FOR_POD = {"resource": "pods", "name": "web", "uid": "uid-web"}


def test_a_claim_of_the_pods_group_is_the_pods_with_the_gate_only() -> None:
    assert check(grouped(), NAME, claim(OF_GROUP, FOR_GROUP), of_groups=True).uid == "uid-c"
    with pytest.raises(ClaimError) as caught:
        check(grouped(), NAME, claim(OF_GROUP, FOR_GROUP))
    assert str(caught.value) == (
        "ResourceClaim default/c was not created for Pod default/web (Pod is not owner)"
    )


@pytest.mark.parametrize(
    ("owner", "reserved", "text"),
    [
        (OF_GROUP | {"name": "other"}, FOR_GROUP, "(neither Pod nor PodGroup ring is the owner)"),
        (OF_GROUP | {"apiVersion": "apps/v1"}, FOR_GROUP, "(neither Pod nor PodGroup ring is the owner)"),
        (OF_GROUP | {"kind": "Job"}, FOR_GROUP, "(neither Pod nor PodGroup ring is the owner)"),
        (OF_GROUP | {"controller": False}, FOR_GROUP, "(neither Pod nor PodGroup ring is the owner)"),
        (OF_GROUP, FOR_GROUP | {"name": "other"}, "is not allowed to use ResourceClaim c (uid-c)"),
        (OF_GROUP, FOR_GROUP | {"resource": "pods"}, "is not allowed to use ResourceClaim c (uid-c)"),
    ],
)
def test_another_groups_claim_is_refused(owner: dict[str, Any], reserved: dict[str, Any], text: str) -> None:
    with pytest.raises(ClaimError) as caught:
        check(grouped(), NAME, claim(owner, reserved), of_groups=True)
    assert text in str(caught.value)


def test_a_pod_without_a_group_has_none() -> None:
    for pod in (grouped(None), make_pod("web", uid="uid-web")):
        with pytest.raises(ClaimError):
            check(pod, NAME, claim(OF_GROUP, FOR_GROUP), of_groups=True)
        assert check(pod, NAME, claim(OF_POD, FOR_POD), of_groups=True)


def test_admin_access_changes_nothing_on_the_node() -> None:
    """Who may have it is decided at the API server; a node prepares such a claim as any other."""
    admin = check(grouped(), NAME, claim(OF_POD, FOR_POD, adminAccess=True))
    assert admin == check(grouped(), NAME, claim(OF_POD, FOR_POD))


def extended() -> tuple[v1.Pod, v1.Container]:
    """A pod whose container asks for an extended resource that a driver has."""
    amounts = {"example.com/gpu": "2"}
    main = v1.Container(name="main", resources=v1.ResourceRequirements(requests=amounts, limits=amounts))
    other = v1.Container(name="other")
    mappings = [
        v1.ContainerExtendedResourceRequest(
            container_name=name, resource_name=resource, request_name=f"{name}-{number}"
        )
        for number, (name, resource) in enumerate(
            [("main", "example.com/gpu"), ("main", "example.com/nic"), ("other", "example.com/gpu")]
        )
    ]
    pod = make_pod("web", uid="uid-web", containers=[main, other])
    status = v1.PodExtendedResourceClaimStatus(resource_claim_name="special", request_mappings=mappings)
    told = msgspec.structs.replace(pod.status, extended_resource_claim_status=status)
    return msgspec.structs.replace(pod, status=told), main


def test_an_extended_resource_of_a_driver_is_a_claim_behind_the_gate() -> None:
    pod, main = extended()
    claims = PodClaims(pod)
    assert claims.names(extended=True) == [Name("special", made_for_pod=False)]
    assert claims.names(extended=False) == []
    assert list(claims.requests(main, extended=True)) == [("special", "main-0", "example.com/gpu")]
    assert list(claims.requests(main, extended=False)) == []
    spec = msgspec.structs.replace(
        pod.spec, init_containers=[main], containers=(pod.spec.containers or [])[1:]
    )
    with_init = msgspec.structs.replace(pod, spec=spec)
    found = list(PodClaims(with_init).requests(main, extended=True))
    assert found == [("special", "main-0", "example.com/gpu")], "for an init container too"
    other = (pod.spec.containers or [])[1]
    assert list(claims.requests(other, extended=True)) == [], "it asks for none"


@pytest.mark.parametrize(
    ("request_name", "ids"),
    [
        ("", ("of gpu", "of both", "of all")),
        ("gpu", ("of gpu", "of both", "of all")),
        ("gpu/large", ("of gpu", "of both", "of all")),
        ("nic", ("of both", "of all")),
        ("other", ("of all",)),
    ],
)
def test_which_devices_of_a_claim_are_for_a_request(request_name: str, ids: tuple[str, ...]) -> None:
    devices = tuple(
        PreparedDevice(pool="p", name=name, requests=requests, cdi_ids=(name,))
        for name, requests in (("of gpu", ("gpu",)), ("of both", ("gpu", "nic")), ("of all", ()))
    )
    claim = Claim(uid="u", name="c", namespace="n", drivers={"gpu.example.com": devices})
    assert tuple(claim.cdi_ids(request_name)) == ids


def claiming(count: int, each: int) -> v1.Pod:
    """A pod with so many claims from templates, and containers that want so many of them each."""
    claims = [v1.PodResourceClaim(name=f"c{i}", resource_claim_template_name="t") for i in range(count)]
    made = [
        v1.PodResourceClaimStatus(name=f"c{i}", resource_claim_name=f"web-c{i}")
        for i in reversed(range(count))
    ]
    containers = [
        v1.Container(
            name=f"k{k}",
            resources=v1.ResourceRequirements(
                claims=[
                    v1.ResourceClaim(name=f"c{i}", request="r" * (i % 2))
                    for i in range(k, max(k - each, -1), -1)
                ]
            ),
        )
        for k in range(count)
    ]
    spec = {"resource_claims": claims}
    pod = make_pod("web", uid="uid-web", containers=containers, spec=spec)
    return msgspec.structs.replace(pod, status=v1.PodStatus(resource_claim_statuses=made))


def test_requests_come_in_the_order_of_the_pods_claims() -> None:
    pod = claiming(3, 2)
    claims = PodClaims(pod)
    assert [list(claims.requests(each, extended=False)) for each in pod.spec.containers or ()] == [
        [("web-c0", "", "claim:c0")],
        [("web-c0", "", "claim:c0"), ("web-c1", "r", "claim:c1/r")],
        [("web-c1", "r", "claim:c1/r"), ("web-c2", "", "claim:c2")],
    ]


def test_a_claim_that_is_not_made_yet_or_not_wanted() -> None:
    pod = claiming(2, 1)
    first, second = pod.spec.containers or []
    unmade = [v1.PodResourceClaimStatus(name="c0")]
    pod = msgspec.structs.replace(pod, status=v1.PodStatus(resource_claim_statuses=unmade))
    claims = PodClaims(pod)
    assert list(claims.requests(first, extended=False)) == [], "none was needed"
    with pytest.raises(ClaimError, match="ResourceClaim not created yet"):
        list(claims.requests(second, extended=False))
    assert claims.claimant("k1") is second
    assert claims.claimant("other") is None
    without = PodClaims(make_pod("web", containers=[second]))
    assert without.claimant("k1") is None, "it has no such claim"


@pytest.mark.parametrize("each", [0, 1])
def test_thousands_of_containers_and_claims_are_gone_through_once(each: int) -> None:
    """They are, whenever the pod's status is made."""
    pod = claiming(4000, each)
    for _ in within_cpu(0.5):
        claims = PodClaims(pod)
        found = [
            request
            for container in pod.spec.containers or ()
            if (wants := claims.claimant(container.name)) is not None
            for request in claims.requests(wants, extended=False)
        ]
        assert len(found) == 4000 * each
        assert len(claims.names(extended=False)) == 4000
