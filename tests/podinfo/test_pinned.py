"""Containers with CPUs of their own may use all of their time; so may their pod."""

from __future__ import annotations

import msgspec
import pytest

from tests.pods.build import make_pod
from trio_kubelet.api import v1
from trio_kubelet.cgroups.plan import pod_cgroup_limits
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.pinned import is_pinned, pod_is_pinned
from trio_kubelet.runtime.configs.resources import container_resources, sandbox_resources


def container(name: str, cpu: str) -> v1.Container:
    amounts = {"cpu": cpu, "memory": "64Mi"}
    return v1.Container(name=name, resources=v1.ResourceRequirements(requests=amounts, limits=amounts))


ALONE, HALF = container("alone", "2"), container("half", "500m")
POD = make_pod("pod", uid="u", containers=[ALONE, HALF])
AMOUNTS = {"cpu": "4", "memory": "1Gi"}
WHOLE = make_pod(
    "pod",
    uid="u",
    containers=[ALONE, HALF],
    spec={"resources": v1.ResourceRequirements(requests=AMOUNTS, limits=AMOUNTS)},
)
PLAIN = NodeContext(node_name="n")
PINNING = msgspec.structs.replace(PLAIN, pinned={"u": {"alone": None}})
OF_A_WHOLE = msgspec.structs.replace(PLAIN, pinned={"u": {"alone": None, "half": None}})


def test_the_cpu_time_of_others_is_limited() -> None:
    assert container_resources(POD, ALONE, PLAIN).cpu_quota == 200_000
    assert sandbox_resources(POD, PLAIN).cpu_quota == 250_000
    assert pod_cgroup_limits(POD, PLAIN).cpu_quota == 250_000


def test_that_of_pinned_containers_and_their_pods_is_not() -> None:
    alone = container_resources(POD, ALONE, PINNING)
    assert (alone.cpu_quota, alone.cpu_period, alone.cpu_shares) == (-1, 100_000, 2048)
    assert container_resources(POD, HALF, PINNING).cpu_quota == 50_000
    assert sandbox_resources(POD, PINNING).cpu_quota == -1
    limits = pod_cgroup_limits(POD, PINNING)
    assert (limits.cpu_quota, limits.cpu_period, limits.cpu_shares) == (-1, 100_000, 2560)


def test_without_quotas_there_is_nothing_to_lift() -> None:
    off = msgspec.structs.replace(PINNING, cpu_cfs_quota=False)
    assert container_resources(POD, ALONE, off).cpu_quota == 0


@pytest.mark.parametrize(("name", "alone"), [("alone", True), ("half", False)])
def test_of_a_pod_that_has_its_cpus_as_a_whole_all_have_to_be(name: str, alone: bool) -> None:
    """`half` shares what the pod has."""
    each = ALONE if name == "alone" else HALF
    assert is_pinned(WHOLE, each, OF_A_WHOLE.pinned) is alone
    assert not pod_is_pinned(WHOLE, OF_A_WHOLE.pinned)
    only = msgspec.structs.replace(WHOLE, spec=msgspec.structs.replace(WHOLE.spec, containers=[ALONE]))
    assert pod_is_pinned(only, OF_A_WHOLE.pinned)
