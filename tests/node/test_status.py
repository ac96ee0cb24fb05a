"""The Node object and its status, against the recorded one and rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.node.nodes import FACTS, NOW_NS, RECORDED, RECORDED_LATER, profile, seen
from tests.node.world import Said
from trio_kubelet.api import v1
from trio_kubelet.api.errors import aggregate_errors
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.types import KubeletConfiguration, Taint
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.devices.values import Counts
from trio_kubelet.machine.facts import capacity_of, has_cpu_quota, node_allocatable, threshold_amount
from trio_kubelet.node.conditions import NodeHealth, find, is_ready
from trio_kubelet.node.events import echo_to_node, start_events
from trio_kubelet.node.profile import declared_features
from trio_kubelet.node.registration import initial_node, reconcile
from trio_kubelet.node.runtime_health import RuntimeFeatures
from trio_kubelet.node.status import differs, shown_images, with_status
from trio_kubelet.podinfo.recorder import PodEvent

LATER_NS = NOW_NS + 60 * 10**9


def registered(flags: KubeletFlags | None = None, **config: Any) -> v1.Node:
    return initial_node(profile(flags, **config), seen())[0]


def test_recorded_node() -> None:
    node, events = initial_node(profile(), seen())
    made = msgspec.to_builtins(node)
    expected = {k: v for k, v in RECORDED["metadata"].items() if k in ("name", "labels", "annotations")}
    # What controllers put there.
    expected["annotations"] = {k: v for k, v in expected["annotations"].items() if "ttl" not in k}
    assert made["metadata"] == expected
    assert made["spec"] == RECORDED["spec"]
    assert made["status"] == RECORDED["status"]
    assert [event.reason for event in events] == [
        "NodeHasSufficientMemory",
        "NodeHasNoDiskPressure",
        "NodeHasSufficientPID",
    ]
    assert events[0].message == "Node node-a status is now: NodeHasSufficientMemory"


def test_nothing_new_is_no_difference_but_for_the_heartbeat() -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    new, events = with_status(old, profile(), seen(now_ns=LATER_NS))
    assert not differs(old, new)
    assert not events
    condition = find(new.status.conditions, "Ready")
    assert condition is not None
    assert condition.last_heartbeat_time == "2026-11-21T09:39:01Z"
    assert condition.last_transition_time == "2026-11-21T09:38:01Z"


def test_recorded_conditions_of_a_later_status() -> None:
    later_ns = parse_rfc3339(RECORDED_LATER[0]["lastHeartbeatTime"])
    new, events = with_status(msgspec.convert(RECORDED, v1.Node), profile(), seen(now_ns=later_ns))
    assert msgspec.to_builtins(new.status.conditions) == RECORDED_LATER
    assert not events


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("addresses", ("192.0.2.3",)),
        ("runtime", "containerd://9"),
        ("images", []),
        ("handlers", {}),
        ("features", RuntimeFeatures()),
        ("volumes_in_use", ("kubernetes.io/csi/d^v",)),
        ("health", NodeHealth(not_ready=["x"])),
        ("health", NodeHealth(pressures=frozenset({"DiskPressure"}))),
    ],
)
def test_what_is_new_makes_a_difference(field: str, value: object) -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    assert differs(old, with_status(old, profile(), seen(**{field: value}))[0])


def test_what_is_not_known_stays() -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    unknown = seen(addresses=None, runtime=None, images=None, features=None, volumes_in_use=None)
    assert not differs(old, with_status(old, profile(), unknown)[0])


def test_ready_turns_with_its_moment_and_event() -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    errors = ["container runtime is down", "network state unknown", "container runtime is down"]
    bad, events = with_status(old, profile(), seen(now_ns=LATER_NS, health=NodeHealth(not_ready=errors)))
    condition = find(bad.status.conditions, "Ready")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "KubeletNotReady")
    assert condition.message == "[container runtime is down, network state unknown]"
    assert condition.last_transition_time == condition.last_heartbeat_time == "2026-11-21T09:39:01Z"
    assert [event.reason for event in events] == ["NodeNotReady"]
    again, events = with_status(
        bad, profile(), seen(now_ns=LATER_NS + 10**9, health=NodeHealth(not_ready=["x"]))
    )
    condition = find(again.status.conditions, "Ready")
    assert condition is not None
    assert (condition.message, condition.last_transition_time) == ("x", "2026-11-21T09:39:01Z")
    assert not events
    good, events = with_status(again, profile(), seen(now_ns=LATER_NS))
    assert is_ready(good)
    assert [event.reason for event in events] == ["NodeReady"]


@pytest.mark.parametrize(("not_ready", "message"), [([], "kubelet is posting ready status"), (["x"], "x")])
def test_a_machine_that_cannot_limit_cpu_time_is_warned_of(not_ready: list[str], message: str) -> None:
    without = profile(facts=msgspec.structs.replace(FACTS, cpu_quota=False))
    for told, expected in (
        (without, f"{message}. WARNING: CPU hardcapping unsupported"),
        (profile(), message),
    ):
        node, _ = with_status(v1.Node(), told, seen(health=NodeHealth(not_ready=not_ready)))
        condition = find(node.status.conditions, "Ready")
        assert condition is not None
        assert condition.message == expected


def test_whether_cpu_time_can_be_limited_is_seen_by_the_files_of_cgroups(tmp_path: Path) -> None:
    assert has_cpu_quota(str(tmp_path / "absent"))
    (tmp_path / "cpu.shares").touch()
    (tmp_path / "cpu.cfs_period_us").touch()
    assert not has_cpu_quota(str(tmp_path))
    (tmp_path / "cpu.cfs_quota_us").touch()
    assert has_cpu_quota(str(tmp_path))


def test_pressure_and_back() -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    health = NodeHealth(pressures=frozenset({"MemoryPressure", "DiskPressure", "PIDPressure"}))
    new, events = with_status(old, profile(), seen(health=health))
    assert [(c.status, c.reason) for c in new.status.conditions or ()] == [
        ("True", "KubeletHasInsufficientMemory"),
        ("True", "KubeletHasDiskPressure"),
        ("True", "KubeletHasInsufficientPID"),
        ("True", "KubeletReady"),
    ]
    assert [event.reason for event in events] == [
        "NodeHasInsufficientMemory",
        "NodeHasDiskPressure",
        "NodeHasInsufficientPID",
    ]
    assert len(with_status(new, profile(), seen())[1]) == 3


def test_conditions_of_others_stay() -> None:
    other = v1.NodeCondition(type="NetworkUnavailable", status="False", reason="RouteCreated")
    old = v1.Node(status=v1.NodeStatus(conditions=[other]))
    new, _ = with_status(old, profile(), seen())
    assert [condition.type for condition in new.status.conditions or ()] == [
        "NetworkUnavailable",
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "Ready",
    ]
    assert (new.status.conditions or [])[0] == other


def test_reboot_is_told() -> None:
    old = msgspec.convert(RECORDED, v1.Node)
    info = msgspec.structs.replace(old.status.node_info, boot_id="before")
    old = msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, node_info=info))
    _, events = with_status(old, profile(), seen())
    event = events[0]
    assert len(events) == 1
    boot_id = RECORDED["status"]["nodeInfo"]["bootID"]
    assert (event.type, event.reason) == ("Warning", "Rebooted")
    assert event.message == f"Node node-a has been rebooted, boot id: {boot_id}"


def test_resources_of_others_stay_and_go_with_their_capacity() -> None:
    old = v1.Node(
        status=v1.NodeStatus(
            capacity={"example.com/gpu": "3", "cpu": "1"},
            allocatable={"example.com/gpu": "2", "example.com/gone": "1", "attachable-volumes-x": "7"},
        )
    )
    status = with_status(old, profile(), seen())[0].status
    assert status.capacity == {**RECORDED["status"]["capacity"], "example.com/gpu": "3"}
    extra = {"example.com/gpu": "3", "attachable-volumes-x": "7"}
    assert status.allocatable == {**RECORDED["status"]["allocatable"], **extra}


def test_huge_pages_of_a_size_that_is_gone_take_memory_while_they_are_shown() -> None:
    old = v1.Node(status=v1.NodeStatus(capacity={"hugepages-4Mi": "8Mi"}))
    memory = int(RECORDED["status"]["allocatable"]["memory"].removesuffix("Ki"))
    status = with_status(old, profile(register_node=False), seen())[0].status
    assert (status.allocatable or {})["memory"] == f"{memory - 8 * 1024}Ki"
    assert (status.allocatable or {})["hugepages-4Mi"] == "8Mi"


def test_a_node_of_unknown_size_is_not_ready() -> None:
    unknown = msgspec.structs.replace(profile(), capacity={"cpu": "2", "pods": "10"}, allocatable={})
    condition = find(initial_node(unknown, seen())[0].status.conditions, "Ready")
    assert condition is not None
    assert condition.message == "missing node capacity for resources: memory, ephemeral-storage"
    without = msgspec.structs.replace(unknown, local_storage=False)
    condition = find(initial_node(without, seen())[0].status.conditions, "Ready")
    assert condition is not None
    assert condition.message == "missing node capacity for resources: memory"


# Addresses


def addresses(node: v1.Node) -> list[tuple[str, str]]:
    return [(address.type, address.address) for address in node.status.addresses or ()]


def test_dual_stack() -> None:
    flags = KubeletFlags(node_ip="192.0.2.2,fd00::2")
    node, _ = initial_node(profile(flags), seen(addresses=("192.0.2.2", "fd00::2")))
    shown = [("InternalIP", "192.0.2.2"), ("InternalIP", "fd00::2"), ("Hostname", "node-a")]
    assert addresses(node) == shown


def test_external_cloud_gives_the_addresses() -> None:
    flags = KubeletFlags(cloud_provider="external")
    node = registered(flags)
    assert addresses(node) == [("Hostname", "node-a")]
    taint = (node.spec.taints or [])[0]
    assert (taint.key, taint.value, taint.effect) == (
        "node.cloudprovider.kubernetes.io/uninitialized",
        "true",
        "NoSchedule",
    )
    given = [v1.NodeAddress(type="ExternalIP", address="203.0.113.1")]
    node = msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, addresses=given))
    assert with_status(node, profile(flags), seen())[0].status.addresses == given


def test_external_cloud_with_own_addresses() -> None:
    flags = KubeletFlags(cloud_provider="external", node_ip="192.0.2.2")
    node = registered(flags)
    assert addresses(node) == [("InternalIP", "192.0.2.2"), ("Hostname", "node-a")]
    annotation = "alpha.kubernetes.io/provided-node-ip"
    assert (node.metadata.annotations or {})[annotation] == "192.0.2.2"
    # With an address the node may not have the hint is neither made nor taken back.
    kept, _ = with_status(node, profile(flags), seen(addresses=None))
    assert (kept.metadata.annotations or {})[annotation] == "192.0.2.2"
    refused, _ = with_status(registered(), profile(flags), seen(addresses=None))
    assert annotation not in (refused.metadata.annotations or {})
    # Without the cloud the hint is taken back.
    node, _ = with_status(node, profile(), seen())
    assert annotation not in (node.metadata.annotations or {})


# Registration


def test_configured_labels_and_taints() -> None:
    flags = KubeletFlags(node_labels={"zone": "a", "kubernetes.io/hostname": "other"})
    config = {"register_with_taints": [Taint(key="k", value="v", effect="NoExecute")], "provider_id": "c://1"}
    node = registered(flags, **config, enable_controller_attach_detach=False)
    labels = node.metadata.labels or {}
    assert (labels["zone"], labels["kubernetes.io/hostname"]) == ("a", "other")
    assert node.metadata.annotations is None
    assert [(t.key, t.value, t.effect) for t in node.spec.taints or ()] == [("k", "v", "NoExecute")]
    assert node.spec.provider_id == "c://1"


def test_an_existing_node_is_taken_over() -> None:
    existing = v1.Node(
        metadata=v1.ObjectMeta(
            labels={"mine": "1", "kubernetes.io/arch": "arm64", "zone": "b"}, annotations={"a": "b"}
        ),
        spec=v1.NodeSpec(taints=[v1.Taint(key="theirs")], unschedulable=True),
        status=v1.NodeStatus(
            capacity={"cpu": "64", "example.com/gpu": "3", "hugepages-64Ki": "1Mi"},
            allocatable={"cpu": "64", "example.com/gpu": "3", "hugepages-64Ki": "1Mi"},
        ),
    )
    node = reconcile(existing, registered(KubeletFlags(node_labels={"zone": "a"})), reset_extended=True)
    labels = node.metadata.labels or {}
    assert (labels["mine"], labels["kubernetes.io/arch"], labels["zone"]) == ("1", "amd64", "b")
    controller = "volumes.kubernetes.io/controller-managed-attach-detach"
    assert node.metadata.annotations == {"a": "b", controller: "true"}
    assert node.spec == existing.spec
    resources = {"cpu": "64", "example.com/gpu": "0", "hugepages-1Gi": "0", "hugepages-2Mi": "0"}
    assert node.status.capacity == node.status.allocatable == resources
    kept = reconcile(existing, registered(enable_controller_attach_detach=False), reset_extended=False)
    assert (kept.status.capacity or {})["example.com/gpu"] == "3"
    assert kept.metadata.annotations == {"a": "b"}


@pytest.mark.parametrize(
    ("machine", "known", "left"),
    [
        ({}, False, "3"),
        ({"machine_id": "other"}, False, "0"),
        ({"system_uuid": "other"}, False, "0"),
        ({"machine_id": "", "system_uuid": ""}, False, "0"),
        ({"system_uuid": "other"}, True, "3"),
        ({"boot_id": "before"}, False, "3"),
    ],
)
def test_what_others_advertise_is_lost_with_the_machine_alone(
    machine: dict[str, str], known: bool, left: str
) -> None:
    now = registered()
    info = msgspec.structs.replace(now.status.node_info, **machine)
    advertised = {"example.com/gpu": "3"}
    status = v1.NodeStatus(capacity=advertised, allocatable=advertised, node_info=info)
    found = reconcile(v1.Node(status=status), now, reset_extended=not known).status
    assert (found.capacity or {})["example.com/gpu"] == (found.allocatable or {})["example.com/gpu"] == left


def test_labels_and_annotations_that_are_not_true_any_more_are_taken_away() -> None:
    controller, kind = (
        "volumes.kubernetes.io/controller-managed-attach-detach",
        "node.kubernetes.io/instance-type",
    )
    existing = v1.Node(
        metadata=v1.ObjectMeta(labels={kind: "old", "mine": "1"}, annotations={controller: "true"})
    )
    now = registered(KubeletFlags(node_labels={kind: ""}), enable_controller_attach_detach=False)
    node = reconcile(existing, now, reset_extended=False)
    assert node.metadata.annotations is None
    assert kind not in (node.metadata.labels or {})
    assert (node.metadata.labels or {})["mine"] == "1"
    unsaid = reconcile(existing, registered(), reset_extended=False)
    assert (unsaid.metadata.labels or {})[kind] == "old"


def test_at_registration_an_operators_labels_win() -> None:
    labels = registered(KubeletFlags(node_labels={"kubernetes.io/arch": "theirs"})).metadata.labels or {}
    assert labels["kubernetes.io/arch"] == "theirs"


def test_a_registered_node_needs_nothing() -> None:
    node = registered()
    assert reconcile(node, node, reset_extended=True) == node


# Parts


def test_images_the_largest_first() -> None:
    images = [
        cri.Image(id="a", size=5, repo_tags=["t"], repo_digests=["d"]),
        cri.Image(id="b", size=7, repo_tags=[f"t{number}" for number in range(9)]),
        cri.Image(id="c", size=5),
    ]
    shown = [(image.names, image.size_bytes) for image in shown_images(images, -1)]
    assert shown == [([f"t{number}" for number in range(5)], 7), (None, 5), (["d", "t"], 5)]
    assert len(shown_images(images, 2)) == 2
    assert shown_images(images, 0) == []


def test_errors_are_joined_as_kubernetes_does() -> None:
    assert aggregate_errors(["a"]) == aggregate_errors(["a", "a"]) == "a"
    assert aggregate_errors(["a", "b", "a"]) == "[a, b]"


def test_declared_features_follow_gates_and_runtime() -> None:
    assert registered().status.declared_features == RECORDED["status"]["declaredFeatures"]
    all_of_them = (
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
        "UserNamespacesHostNetworkSupport",
    )
    none = profile(gates=dict.fromkeys((*all_of_them, "NodeDeclaredFeatures"), False))
    off, _ = initial_node(none, seen())
    assert off.status.declared_features is None
    assert declared_features(none, host_users=True) is None
    gates = {"UserNamespacesHostNetworkSupport": True, "RestartAllContainersOnContainerExits": False}
    features = RuntimeFeatures(user_namespaces_host_network=True)
    node, _ = initial_node(profile(gates=gates), seen(features=features))
    declared = node.status.declared_features or []
    assert declared == sorted(declared)
    without = {**gates, "UserNamespacesHostNetworkSupport": False}
    fewer, _ = initial_node(profile(gates=without), seen(features=features))
    assert "UserNamespacesHostNetworkSupport" not in (fewer.status.declared_features or [])
    assert "UserNamespacesHostNetworkSupport" in declared
    assert "RestartAllContainersOnContainerExits" not in declared


def test_swap_is_told_where_there_is_some() -> None:
    with_swap = msgspec.structs.replace(profile(), swap=1 << 30)
    swap = initial_node(with_swap, seen())[0].status.node_info.swap
    assert swap is not None
    assert swap.capacity == 1 << 30


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_pods": 1000}, {"pods": "1k"}),
        ({"max_pods": 110, "pods_per_core": 10}, {"pods": "20"}),
        ({"max_pods": 110, "pods_per_core": 100}, {"pods": "110"}),
        ({"system_reserved": {"cpu": "500m", "memory": "1Gi"}}, {"cpu": "1500m", "memory": "23635508Ki"}),
        ({"reserved_system_cpus": "0", "kube_reserved": {"cpu": "1"}}, {"cpu": "1"}),
        ({"eviction_hard": {"nodefs.available": "10Gi"}}, {"ephemeral-storage": "253726324Ki"}),
        ({"eviction_hard": {"memory.available": "100%"}}, {"memory": "24684084Ki"}),
    ],
)
def test_allocatable(config: dict[str, Any], expected: dict[str, str]) -> None:
    settings = KubeletConfiguration(**config)
    left = node_allocatable(capacity_of(FACTS, settings), settings)
    assert {name: left[name] for name in expected} == expected


def test_memory_in_huge_pages_is_no_other_memory() -> None:
    facts = msgspec.structs.replace(FACTS, memory=16 << 30, huge_pages={2 << 20: 1 << 30})
    config = KubeletConfiguration(local_storage_capacity_isolation=False)
    capacity = capacity_of(facts, config)
    assert capacity == {"cpu": "2", "memory": "16Gi", "hugepages-2Mi": "1Gi", "pods": "110"}
    assert node_allocatable(capacity, config)["memory"] == "15Gi"


def test_eviction_can_be_left_out_of_allocatable() -> None:
    config = KubeletConfiguration(eviction_hard={"memory.available": "100Mi"})
    capacity = capacity_of(FACTS, config)
    assert node_allocatable(capacity, config, ignore_eviction=True)["memory"] == capacity["memory"]


def test_thresholds_as_amounts() -> None:
    assert threshold_amount("10%", 1000) == threshold_amount("10%%", 1000) == 100
    # Percentage and fraction are rounded to 32 bits one after the other: 0.03 % of 16Gi and 0.09 %.
    assert threshold_amount("0.03%", 16 * 2**30) == 5153960
    assert threshold_amount("0.09%", 16 * 2**30) == 15461883
    assert threshold_amount("1.5Ki", 0) == 1536
    assert threshold_amount("0%", 1000) == threshold_amount("", 9) == 0
    assert threshold_amount("100%", 1000) == 1000


def test_what_a_starting_node_says() -> None:
    (_, warned) = start_events(KubeletConfiguration(), cgroup_v2=True, unlimited="too much is in use")
    assert (warned.type, warned.reason, warned.message) == (
        *("Warning", "FailedNodeAllocatableEnforcement"),
        "too much is in use",
    )
    said = [event.reason for event in start_events(KubeletConfiguration(), cgroup_v2=False)]
    assert said == ["Starting", "CgroupV1", "NodeAllocatableEnforced"]
    free = KubeletConfiguration(enforce_node_allocatable=["none"])
    # The cgroup of all pods is limited all the same, to what the machine has.
    assert [event.reason for event in start_events(free, cgroup_v2=True)] == [
        "Starting",
        "NodeAllocatableEnforced",
    ]
    flat = KubeletConfiguration(enforce_node_allocatable=[], cgroups_per_qos=False)
    assert [event.reason for event in start_events(flat, cgroup_v2=True)] == ["Starting"]


def test_a_pod_without_cluster_dns_is_told_of_the_node() -> None:
    said = Said()
    text = "kubelet does not have ClusterDNS IP configured"
    for reason, message in (("MissingClusterDNS", f'pod: "p_d(u)". {text}'), ("Pulled", "x")):
        event = PodEvent(pod=v1.Pod(), type="Warning", reason=reason, message=message, field_path="", at_ns=0)
        echo_to_node(said, event)
    assert said.events == [("Warning", "MissingClusterDNS", text)]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"kube_reserved": {"cpu": "1500m"}, "system_reserved": {"cpu": "1"}}, '"cpu".*2500m.*2'),
        ({"eviction_hard": {"memory.available": "1Ti"}}, '"memory" has a reservation of 1Ti'),
        (
            {"system_reserved": {"memory": "1500G"}, "eviction_hard": {"pid.available": "10%"}},
            '"memory" has a reservation of 1500G but',
        ),
    ],
)
def test_more_cannot_be_reserved_than_there_is(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        profile(**config)


def test_clouds_of_the_tree_are_gone() -> None:
    with pytest.raises(ValueError, match="--cloud-provider=aws"):
        profile(KubeletFlags(cloud_provider="aws"))


def test_devices_are_on_the_node_and_a_resource_that_is_no_more_counts_nothing() -> None:
    old = registered()
    counts = Counts({"a.b/gpu": 4, "a.b/nic": 1}, {"a.b/gpu": 3, "a.b/nic": 1}, frozenset())
    node, _ = with_status(old, profile(), msgspec.structs.replace(seen(), devices=counts))
    assert node.status.capacity is not None
    assert node.status.allocatable is not None
    assert (node.status.capacity["a.b/gpu"], node.status.allocatable["a.b/gpu"]) == ("4", "3")
    later = Counts({"a.b/gpu": 4}, {"a.b/gpu": 0}, frozenset({"a.b/nic"}))
    node, _ = with_status(node, profile(), msgspec.structs.replace(seen(), devices=later))
    assert node.status.allocatable is not None
    assert (node.status.allocatable["a.b/gpu"], node.status.allocatable["a.b/nic"]) == ("0", "0")
