"""Cgroups reserved for others, and memory QoS: what a kubelet v1.36.2 did on a machine with cgroup v2 and
systemd, with the configuration in the file, against the agent's plan.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.cgroups.planned import planned_tree
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import version_2_files
from trio_kubelet.cgroups.limits import Limits
from trio_kubelet.cgroups.metrics import MemoryQOSMetrics
from trio_kubelet.cgroups.plan import CgroupSettings, asked_by, cgroup_settings
from trio_kubelet.cgroups.units import with_whole_percents
from trio_kubelet.config.decode import decode_configuration
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.machine.facts import MachineFacts, node_context
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.runtime.configs.resources import container_resources

UNSET = {
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "memory.max": "max",
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "pids.max": "max",
}
"""What is compared, and what it is in a cgroup that nobody has limited."""


@cache
def golden() -> dict[str, Any]:
    text = (Path(__file__).parents[1] / "golden" / "modern-node-reserved.json").read_text()
    return json.loads(text)  # type: ignore[no-any-return]


def recorded_node(variant: str) -> tuple[NodeContext, CgroupSettings]:
    recorded = golden()[variant]
    facts = MachineFacts(
        cpus=2,
        cpu_list="0-1",
        memory=recorded["memory_kb"] << 10,
        pids=min(int(recorded["pid_max"]), int(recorded["threads_max"])),
        cgroup_v2=True,
    )
    config, _ = decode_configuration(recorded["config"])
    gates = resolve_gates(config.feature_gates)
    node = node_context(facts, config, gates, node_name="node", root_dir="/var/lib/kubelet")
    return node, cgroup_settings(config, facts, memory_qos=True)


def pods() -> list[v1.Pod]:
    """Their UIDs are their names in the recording."""
    return [
        msgspec.convert(
            {"metadata": {"name": name, "uid": f"<{name}>"}, "spec": {"containers": [container]}}, v1.Pod
        )
        for name, container in golden()["pods"].items()
    ]


def files(limits: Limits) -> dict[str, str]:
    return UNSET | {name: value for _, name, value in version_2_files(limits) if name in UNSET}


@pytest.mark.parametrize("variant", ["full", "compressible"])
def test_cgroups_reserved_for_others(variant: str) -> None:
    _, settings = recorded_node(variant)
    assert [each.name for each in settings.reserved] == ["/sysres.slice", "/kuberes.slice"]
    for each in settings.reserved:
        recorded = golden()[variant]["reserved"][each.name]
        assert files(each.limits) == {name: recorded[name] for name in UNSET}
        assert each.limits.cpuset == recorded["cpuset.cpus"]


@pytest.mark.parametrize("variant", ["full", "compressible"])
def test_the_tree_with_memory_qos(variant: str) -> None:
    node, settings = recorded_node(variant)
    tree = planned_tree(pods(), node, settings)
    recorded = golden()[variant]["tree"]
    assert tree.keys() == {path for path in recorded if path.endswith(".slice")}
    for path, limits in tree.items():
        planned = files(with_whole_percents(limits))
        assert planned == {name: recorded[path][name] for name in UNSET}, path


@pytest.mark.parametrize("variant", ["full", "compressible"])
def test_memory_of_containers(variant: str) -> None:
    node, _ = recorded_node(variant)
    throttled = 0
    for pod in pods():
        (path,) = (p for p in golden()[variant]["tree"] if f"pod{pod.metadata.uid}" in p and "-main" in p)
        recorded = golden()[variant]["tree"][path]
        [container] = list(pod.spec.containers or ())
        unified = dict(container_resources(pod, container, node).unified)
        names = ("memory.high", "memory.low", "memory.min")
        assert {name: unified.get(name, UNSET[name]) for name in names} == {n: recorded[n] for n in names}
        throttled += recorded["memory.high"] != "max"
    assert throttled >= 2


@pytest.mark.parametrize("variant", ["full", "compressible"])
def test_metrics_of_protected_memory(variant: str) -> None:
    node, _ = recorded_node(variant)
    registry = CollectorRegistry()
    MemoryQOSMetrics(registry).set([asked_by(pod, node) for pod in pods()], node)
    for line in golden()[variant]["metrics"]:
        name, value = line.split(" ")
        assert registry.get_sample_value(name) == float(value)


def test_without_tiers_nothing_counts_as_protected() -> None:
    node, _ = recorded_node("full")
    node = msgspec.structs.replace(node, memory_reservation_policy="None")
    registry = CollectorRegistry()
    MemoryQOSMetrics(registry).set([asked_by(pod, node) for pod in pods()], node)
    assert registry.get_sample_value("kubelet_memory_qos_node_memory_min_bytes") == 0
    assert registry.get_sample_value("kubelet_memory_qos_node_memory_low_bytes") == 0
