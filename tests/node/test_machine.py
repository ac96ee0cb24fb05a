"""Capacity and what of it is left for pods."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trio_kubelet.common import mountinfo
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.load import DEFAULT_EVICTION_HARD
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import (
    MachineFacts,
    node_allocatable,
    node_capacity,
    node_context,
    read_machine,
)
from trio_kubelet.node.addresses import NodeIPs, find_host_ips, parse_node_ip_flag

_GOLDEN = Path(__file__).parents[1] / "golden" / "cluster-node.json"
_FACTS = MachineFacts(
    cpus=2, memory=24684084 << 10, disk=264212084 << 10, huge_pages={2 << 20: 0, 1 << 30: 0}
)


def test_recorded_node() -> None:
    status = json.loads(_GOLDEN.read_text())["node"]["status"]
    capacity = node_capacity(_FACTS, max_pods=1100)
    assert capacity == status["capacity"]
    config = KubeletConfiguration(eviction_hard=DEFAULT_EVICTION_HARD)
    assert node_allocatable(capacity, config) == status["allocatable"]


def test_reservations_are_taken_off_and_nothing_goes_below_zero() -> None:
    config = KubeletConfiguration(
        system_reserved={"cpu": "500m", "memory": "1Gi"}, kube_reserved={"cpu": "250m", "memory": "1Ti"}
    )
    left = node_allocatable({"cpu": "2", "memory": "24684084Ki", "pods": "110"}, config)
    assert left == {"cpu": "1250m", "memory": "0", "pods": "110"}


def test_only_addresses_are_servers_of_names() -> None:
    config = KubeletConfiguration(cluster_dns=["kube-dns", "010.0.0.10", "", "FD00:0::A"])
    node = node_context(_FACTS, config, resolve_gates({}), node_name="n", root_dir="/r")
    assert node.cluster_dns == ("10.0.0.10", "fd00::a")


@pytest.mark.parametrize(
    ("kind", "label", "writable", "enabled"),
    [
        ("selinuxfs", "system_u:system_r:unconfined_service_t:s0\0", True, True),
        ("selinuxfs", "kernel\0", True, False),  # no policy is loaded
        ("selinuxfs", "system_u:system_r:container_t:s0\0", False, False),  # as containers see it
        ("tmpfs", "unconfined\n", True, False),
    ],
)
def test_whether_files_have_selinux_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, label: str, writable: bool, enabled: bool
) -> None:
    (tmp_path / "mountinfo").write_text(f"25 1 0:22 / {tmp_path} rw - {kind} {kind} rw\n")
    (tmp_path / "label").write_text(label)
    monkeypatch.setattr(mountinfo, "_LIST", str(tmp_path / "mountinfo"))
    monkeypatch.setattr(mountinfo, "_OWN_LABEL", str(tmp_path / "label"))
    if not writable:
        shown = os.statvfs_result((*tuple(os.statvfs(tmp_path))[:8], os.ST_RDONLY, 255))
        monkeypatch.setattr(os, "statvfs", lambda path: shown)
    mountinfo.selinux_enabled.cache_clear()
    try:
        facts = read_machine(str(tmp_path))
    finally:
        mountinfo.selinux_enabled.cache_clear()
    node = node_context(facts, KubeletConfiguration(), resolve_gates({}), node_name="n", root_dir="/r")
    assert node.selinux is enabled


def test_context_of_a_configuration() -> None:
    config = KubeletConfiguration(cpu_cfs_quota_period=0.02, cgroup_root="/mine", cluster_dns=["10.0.0.10"])
    node = node_context(_FACTS, config, resolve_gates({"MemoryQoS": True}), node_name="n", root_dir="/r")
    assert (node.cpu_cfs_quota_period_us, node.cgroup_root) == (20_000, "/mine")
    assert node.huge_page_sizes == ("2MB", "1GB")
    assert node.features.memory_qos
    assert not node.features.container_stop_signals


@pytest.mark.parametrize(("flag", "field"), [(False, False), (True, False), (False, True)])
def test_the_seccomp_default_is_on_if_the_flag_or_the_configuration_says_so(flag: bool, field: bool) -> None:
    config = KubeletConfiguration(seccomp_default=field)
    node = node_context(_FACTS, config, resolve_gates({}), node_name="n", root_dir="/r", seccomp_default=flag)
    assert node.seccomp_default is (flag or field)


def test_this_machine_can_be_read() -> None:
    facts = read_machine("/nonexistent/directory")
    assert facts.cpus >= 1
    assert facts.memory > 1 << 20
    assert facts.disk > 1 << 20


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", ()),
        ("0.0.0.0", ("0.0.0.0",)),
        ("::", ("::",)),
        ("10.0.0.1, fd00:0::1", ("10.0.0.1", "fd00::1")),
    ],
)
def test_node_ip_flag(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_node_ip_flag(text).all == addresses


def test_a_name_that_can_be_no_hosts_has_no_address_of_its_own() -> None:
    assert find_host_ips("a" * 300, NodeIPs(())) == find_host_ips("no.such.name.invalid", NodeIPs(()))


def test_given_addresses_are_the_nodes() -> None:
    assert find_host_ips("no.such.name.invalid", NodeIPs(("10.0.0.1",))) == ("10.0.0.1",)
