"""QoS classes, sums over containers, CRI resources, OOM scores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime_configs.pods import NODE, container, first, node, pod
from trio_kubelet.podinfo.amounts import UNIT, amount, huge_page_size_name, milli, whole
from trio_kubelet.podinfo.context import Features
from trio_kubelet.podinfo.qos import QOSClass, is_node_critical_pod, pod_qos
from trio_kubelet.podinfo.totals import pod_limits, pod_requests
from trio_kubelet.runtime.configs.resources import (
    container_resources,
    huge_page_limits,
    oom_score_adj,
    overhead_resources,
    quota_of,
    sandbox_resources,
    shares_of,
)

_FULL = {"cpu": "1", "memory": "1Gi"}


def _with(
    requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    return container(resources={"requests": requests, "limits": limits}, **fields)


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("100m", UNIT // 10),
        ("1Gi", UNIT << 30),
        ("1n", 1),
        ("", 0),
        ("1e3", 1000 * UNIT),
        ("16Ei", UNIT * (2**63 - 1)),
    ],
)
def test_amounts_are_exact(text: str, nanos: int) -> None:
    assert amount(text) == nanos


def test_amounts_are_rounded_up() -> None:
    assert (milli(amount("1n")), whole(amount("1m")), whole(amount("2"))) == (1, 1, 2)


@pytest.mark.parametrize(
    ("containers", "spec", "qos"),
    [
        ([_with()], {}, QOSClass.BEST_EFFORT),
        ([_with({"cpu": "0"})], {}, QOSClass.BEST_EFFORT),
        ([_with({"nvidia.com/gpu": "1"})], {}, QOSClass.BEST_EFFORT),
        ([_with({"cpu": "1m"})], {}, QOSClass.BURSTABLE),
        ([_with(_FULL, _FULL)], {}, QOSClass.GUARANTEED),
        ([_with(_FULL, {"cpu": "1000m", "memory": "1024Mi"})], {}, QOSClass.GUARANTEED),
        ([_with(_FULL, _FULL), _with()], {}, QOSClass.BURSTABLE),
        ([_with(_FULL, _FULL)], {"initContainers": [_with(name="i")]}, QOSClass.BURSTABLE),
        ([_with({"cpu": "1"}, _FULL)], {}, QOSClass.BURSTABLE),
        ([_with({"cpu": "1"}, {"cpu": "1"})], {}, QOSClass.BURSTABLE),
        ([_with()], {"resources": {"requests": _FULL, "limits": _FULL}}, QOSClass.GUARANTEED),
        ([_with(_FULL, _FULL)], {"resources": {"requests": {"cpu": "2"}}}, QOSClass.BURSTABLE),
    ],
)
def test_qos_class(containers: list[dict[str, Any]], spec: dict[str, Any], qos: QOSClass) -> None:
    assert pod_qos(pod(*containers, **spec)) is qos


def test_the_class_said_before_stays_if_it_is_one() -> None:
    made = pod(_with(_FULL, _FULL))
    made.status.qos_class = "Burstable"
    assert pod_qos(made) is QOSClass.BURSTABLE
    made.status.qos_class = "excellent"
    assert pod_qos(made) is QOSClass.GUARANTEED


def test_pod_level_resources_are_ignored_without_the_feature() -> None:
    assert pod_qos(pod(resources={"requests": _FULL, "limits": _FULL}), False) is QOSClass.BEST_EFFORT


def test_requests_are_the_greater_of_running_and_starting() -> None:
    made = pod(
        _with({"cpu": "1"}),
        _with({"cpu": "1"}, name="d"),
        initContainers=[
            _with({"cpu": "500m"}, name="side", restartPolicy="Always"),
            _with({"cpu": "3"}, name="big"),
        ],
        overhead={"cpu": "250m"},
    )
    assert pod_requests(made)["cpu"] == amount("3750m")  # sidecar, big one, overhead
    assert pod_requests(made, overhead=False)["cpu"] == amount("3500m")
    of_pod = pod(_with({"cpu": "1"}), resources={"requests": {"cpu": "5"}})
    assert pod_requests(of_pod)["cpu"] == amount("5")
    assert pod_requests(of_pod, pod_level=False)["cpu"] == amount("1")


def test_overhead_adds_to_limits_only_where_there_are_some() -> None:
    made = pod(_with(limits={"memory": "1Gi"}), overhead={"cpu": "1", "memory": "1Gi"})
    assert pod_limits(made) == {"memory": amount("2Gi")}


@given(st.integers(0, 10**9))
def test_shares_are_what_the_kernel_takes(milli_cpu: int) -> None:
    shares = shares_of(milli_cpu)
    assert 2 <= shares <= 262_144
    assert shares == 2 or shares == 262_144 or shares == milli_cpu * 1024 // 1000


@pytest.mark.parametrize(("cpu", "quota"), [(0, 0), (1, 1000), (9, 1000), (10, 1000), (500, 50_000)])
def test_quota_is_at_least_a_millisecond(cpu: int, quota: int) -> None:
    assert quota_of(cpu, 100_000) == quota


def _container(fields: dict[str, Any], ctx: Any = NODE, **spec: Any) -> Any:
    made = pod(fields, **spec)
    return container_resources(made, first(made), ctx)


def test_shares_follow_the_limit_without_a_request() -> None:
    result = _container(_with(limits={"cpu": "500m", "memory": "64Mi"}))
    assert (result.cpu_shares, result.cpu_quota, result.cpu_period) == (512, 50_000, 100_000)
    assert result.memory_limit_in_bytes == 64 << 20
    assert _container(_with({"cpu": "0"}, {"cpu": "1"})).cpu_shares == 2


def test_no_quota_when_the_node_does_not_enforce_it() -> None:
    result = _container(_with(limits={"cpu": "1"}), node(cpu_cfs_quota=False))
    assert (result.cpu_quota, result.cpu_period, result.cpu_shares) == (0, 0, 1024)


def test_pod_level_limits_hold_for_containers_without_their_own() -> None:
    limits = {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}
    result = _container(_with(limits={"cpu": "1"}), resources={"limits": limits})
    assert (result.cpu_quota, result.memory_limit_in_bytes) == (100_000, 1 << 30)
    assert [(page.page_size, page.limit) for page in result.hugepage_limits] == [("2MB", 4 << 20), ("1GB", 0)]
    off = node(features=Features(pod_level_resources=False))
    assert _container(_with(), off, resources={"limits": limits}).memory_limit_in_bytes == 0


def test_huge_page_limits_by_size() -> None:
    result = _container(_with(limits={"hugepages-1Gi": "2Gi", "memory": "1Gi"}))
    assert [(page.page_size, page.limit) for page in result.hugepage_limits] == [("2MB", 0), ("1GB", 2 << 30)]
    twice = {"hugepages-2Mi": 4 * UNIT, "hugepages-2097152": 6 * UNIT, "hugepages-1Gi": UNIT, "memory": UNIT}
    assert huge_page_limits(twice) == {"2MB": 10, "1GB": 1}


@pytest.mark.parametrize(("size", "name"), [(2 << 20, "2MB"), (1 << 30, "1GB"), (64 << 10, "64KB")])
def test_huge_page_names(size: int, name: str) -> None:
    assert huge_page_size_name(size) == name


def test_swap_is_forbidden_by_an_equal_limit_on_version_1() -> None:
    limited = _with(limits={"memory": "64Mi"})
    assert _container(limited, node(swap_controller=True)).memory_swap_limit_in_bytes == 64 << 20
    assert _container(limited, node(swap_controller=False)).memory_swap_limit_in_bytes == 0


@pytest.mark.parametrize(
    ("requests", "limits", "meta", "swap"),
    [
        ({"memory": "100Mi"}, None, {}, "20971520"),  # a tenth of the node's memory, so of its swap
        ({"memory": "100Mi"}, {"memory": "100Mi"}, {}, "0"),
        (None, None, {}, "0"),
        ({"memory": "2000Mi"}, None, {}, "0"),
        ({"memory": "100Mi"}, None, {"annotations": {"kubernetes.io/config.source": "file"}}, "0"),
    ],
)
def test_limited_swap(requests: Any, limits: Any, meta: Any, swap: str) -> None:
    ctx = node(cgroup_v2=True, swap_controller=True, swap_behavior="LimitedSwap", swap_capacity=200 << 20)
    result = _container(_with(requests, limits), ctx, meta=meta)
    assert dict(result.unified) == {"memory.swap.max": swap}


@pytest.mark.parametrize(
    ("requests", "limits", "recorded"),
    [
        ({"memory": "64Mi"}, {"memory": "128Mi"}, 23_171_072),
        ({"memory": "96Mi"}, None, 34_754_560),
        ({"memory": "32Mi"}, None, 11_583_488),
    ],
)
def test_swap_shares_are_those_recorded_of_the_kubelet(requests: Any, limits: Any, recorded: int) -> None:
    """kubelet v1.36.2 with 6,073,768 kB of memory and 2,097,148 kB of swap; the kernel rounds to pages."""
    ctx = node(
        cgroup_v2=True,
        swap_controller=True,
        swap_behavior="LimitedSwap",
        memory_capacity=6_073_768 << 10,
        swap_capacity=2_097_148 << 10,
    )
    swap = int(_container(_with(requests, limits), ctx).unified["memory.swap.max"])
    assert swap // 4096 * 4096 == recorded


@pytest.mark.parametrize(
    ("requests", "limits", "unified"),
    [
        ({"memory": "100Mi"}, {"memory": "200Mi"}, {"memory.low": "104857600", "memory.high": "199229440"}),
        ({"memory": "100Mi"}, None, {"memory.low": "104857600", "memory.high": "954204160"}),
        ({"cpu": "1"}, None, {"memory.min": "0", "memory.low": "0"}),
        (_FULL, _FULL, {"memory.min": "1073741824"}),
    ],
)
def test_memory_qos(requests: Any, limits: Any, unified: dict[str, str]) -> None:
    ctx = node(
        cgroup_v2=True,
        features=Features(memory_qos=True),
        memory_reservation_policy="TieredReservation",
        memory_for_pods=1000 << 20,
    )
    assert dict(_container(_with(requests, limits), ctx).unified) == unified


def test_all_processes_of_a_container_are_killed_unless_told_otherwise() -> None:
    grouped = _container(_with(), node(cgroup_v2=True, single_process_oom_kill=False))
    assert dict(grouped.unified) == {"memory.oom.group": "1"}
    assert not _container(_with(), node(cgroup_v2=True)).unified


def test_sandbox_and_overhead() -> None:
    made = pod(_with({"cpu": "1"}, {"memory": "1Gi"}), overhead={"cpu": "250m", "memory": "64Mi"})
    sandbox, overhead = sandbox_resources(made, NODE), overhead_resources(made, NODE)
    assert (sandbox.cpu_shares, sandbox.cpu_quota, sandbox.memory_limit_in_bytes) == (1024, 0, 1 << 30)
    assert (overhead.cpu_shares, overhead.cpu_quota, overhead.memory_limit_in_bytes) == (
        256,
        25_000,
        64 << 20,
    )


def _score(*containers: dict[str, Any], **spec: Any) -> int:
    made = pod(*containers, **spec)
    return oom_score_adj(made, first(made), NODE)


def test_oom_score_by_class_and_request() -> None:
    assert _score(_with()) == 1000
    assert _score(_with(_FULL, _FULL)) == -997
    assert _score(_with({"memory": "100Mi"})) == 900
    assert _score(_with({"cpu": "1"})) == 999
    assert _score(_with({"memory": "999Mi"}), _with(name="d")) == 3


def test_oom_score_counts_memory_only_the_pod_requests() -> None:
    other = _with({"memory": "100Mi"}, name="d")
    resources = {"requests": {"memory": "500Mi"}}
    assert _score(_with({"memory": "100Mi"}), other, resources=resources) == 1000 - 100 - 150


def test_sidecar_scores_no_higher_than_what_it_serves() -> None:
    side = _with({"memory": "10Mi"}, name="side", restartPolicy="Always")
    made = pod(_with({"memory": "500Mi"}), _with({"memory": "300Mi"}, name="d"), initContainers=[side])
    assert made.spec.init_containers
    assert oom_score_adj(made, made.spec.init_containers[0], NODE) == 700


def test_node_critical_pods_are_spared() -> None:
    static = {"annotations": {"kubernetes.io/config.source": "file"}}
    critical = pod(meta=static, priorityClassName="system-node-critical")
    assert is_node_critical_pod(critical)
    assert oom_score_adj(critical, first(critical), NODE) == -997
    assert not is_node_critical_pod(pod(priorityClassName="system-node-critical"))
    assert is_node_critical_pod(pod(priorityClassName="system-node-critical", priority=2_000_001_000))


def test_amounts_beyond_64_bits_are_the_most_that_can_be_said() -> None:
    """The API server takes them; the sandbox of two such containers asks for twice as much."""
    huge = {"limits": {"cpu": "9223372036854775807", "memory": "9223372036854775807"}}
    made = pod(container(name="a", resources=huge), container(name="b", resources=huge))
    for found in (sandbox_resources(made, NODE), container_resources(made, first(made), NODE)):
        assert (found.cpu_quota, found.memory_limit_in_bytes) == (2**63 - 1, 2**63 - 1)
