"""The cgroups kubelet v1.36.2 made on a machine with cgroup v2, with both drivers, against the agent's plan:
every file of every cgroup, and every property of systemd's units.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.cgroups.planned import planned_tree
from trio_kubelet.api import v1
from trio_kubelet.cgroups.files import version_2_files
from trio_kubelet.cgroups.limits import Limits
from trio_kubelet.cgroups.plan import CgroupSettings, cgroup_settings
from trio_kubelet.cgroups.units import INFINITY, new_slice, properties, unit_name, with_whole_percents
from trio_kubelet.config.decode import decode_configuration
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.machine.facts import MachineFacts, node_context
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.runtime.configs.resources import container_resources

MEMORY = {"systemd": 6_219_538_432, "cgroupfs": 6_219_530_240}
"""Of the recorded machine, which was started anew in between."""

EXTRA = ("64Mi", "32Mi")
"""Guaranteed pods with 50m of CPU that were over when the trees were read, and still counted as active."""


@cache
def golden() -> dict[str, Any]:
    text = (Path(__file__).parents[1] / "golden" / "modern-node-cgroups.json").read_text()
    return json.loads(text)  # type: ignore[no-any-return]


def recorded_node(driver: str) -> tuple[NodeContext, CgroupSettings]:
    facts = MachineFacts(
        cpus=2,
        cpu_list="0-1",
        memory=MEMORY[driver],
        swap=2_097_148 << 10,
        swap_controller=True,
        huge_pages={2 << 20: 0, 1 << 30: 0},
        pids=47_308,
        cgroup_v2=True,
    )
    config, _ = decode_configuration(yaml.safe_load(golden()["config"]))
    config = msgspec.structs.replace(config, cgroup_driver=driver)
    gates = resolve_gates(config.feature_gates)
    node = node_context(facts, config, gates, node_name="node", root_dir="/var/lib/kubelet")
    return node, cgroup_settings(config, facts, memory_qos=True)


def recorded_pods(driver: str) -> dict[str, v1.Pod]:
    """By the name their cgroup has in the recording."""
    pods = {}
    for name, manifest in golden()["manifests"].items():
        shown = f"<{name}-node>"
        if name == "ns" and driver == "systemd":
            shown = "9d6d755e7b34f26b6e2c4a4d5535a685"
        if name != "oom":
            static = yaml.safe_load(manifest)
            static["metadata"]["annotations"] = {"kubernetes.io/config.source": "file"}
            pods[shown] = _defaulted(static)
    for memory in EXTRA:
        resources = {"limits": {"cpu": "50m", "memory": memory}}
        pods[f"over{memory}"] = _defaulted(
            {"metadata": {"name": memory}, "spec": {"containers": [{"name": "c", "resources": resources}]}}
        )
    return pods


def _defaulted(manifest: dict[str, Any]) -> v1.Pod:
    """A limit without a request is a request too, as in the API."""
    for container in manifest["spec"]["containers"]:
        resources = container.get("resources", {})
        if "limits" in resources:
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    return msgspec.convert(manifest, v1.Pod, strict=False)


def plan(driver: str) -> dict[str, Limits]:
    """The plan, with the recording's names."""
    node, settings = recorded_node(driver)
    pods, names = [], {}
    for number, (shown, pod) in enumerate(recorded_pods(driver).items()):
        uid = f"u{number}u"
        names[uid] = shown
        pods.append(msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid)))
    tree = planned_tree(pods, node, settings)
    for uid, shown in names.items():
        tree = {path.replace(uid, shown): limits for path, limits in tree.items()}
    return {
        path: with_whole_percents(limits) if driver == "systemd" else limits for path, limits in tree.items()
    }


UNSET = {
    "cpu.idle": "0",
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpu.weight": "100",
    "cpuset.cpus": "",
    "cpuset.cpus.partition": "member",
    "cpuset.mems": "",
    "hugetlb.1GB.max": "max",
    "hugetlb.1GB.rsvd.max": "max",
    "hugetlb.2MB.max": "max",
    "hugetlb.2MB.rsvd.max": "max",
    "io.weight": "default 100",
    "memory.high": "max",
    "memory.low": "0",
    "memory.max": "max",
    "memory.min": "0",
    "memory.oom.group": "0",
    "memory.swap.high": "max",
    "memory.swap.max": "max",
    "pids.max": "max",
}
"""What a cgroup's files show when nobody has written to them."""

DERIVED = {
    "cgroup.subtree_control",
    "cgroup.type",
    "cpu.weight.nice",
    "cpuset.cpus.effective",
    "cpuset.mems.effective",
}


def made_by_agent(driver: str) -> list[str]:
    """Recorded cgroups that are no container's."""
    return [
        path
        for path in golden()[f"go-{driver}"]
        if path.endswith(".slice")
        or (driver == "cgroupfs" and path.rpartition("/")[2].startswith(("pod", "kubepods", "b")))
    ]


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
def test_every_file_of_every_cgroup(driver: str) -> None:
    planned = plan(driver)
    paths = made_by_agent(driver)
    assert len(paths) == 8
    for path in paths:
        files = UNSET | {name: value for _, name, value in version_2_files(planned[path])}
        recorded = {
            name: value for name, value in golden()[f"go-{driver}"][path].items() if name not in DERIVED
        }
        assert files == recorded, path


def shown(name: str, value: object) -> str:
    """A property as `systemctl show` prints it."""
    if name == "AllowedCPUs":
        assert isinstance(value, bytes)
        mask = int.from_bytes(value, "little")
        cpus = [str(cpu) for cpu in range(mask.bit_length()) if mask >> cpu & 1]
        return f"{cpus[0]}-{cpus[-1]}" if len(cpus) > 1 else cpus[0]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == INFINITY:
        return "infinity"
    return f"{int(str(value)) // 1000}ms" if name.endswith("USec") else str(value)


def test_every_property_of_every_slice() -> None:
    planned = {unit_name(path): (path, limits) for path, limits in plan("systemd").items()}
    by_amounts = {frozenset(_set(path, limits).items()): unit for unit, (path, limits) in planned.items()}
    for unit, recorded in golden()["units"].items():
        path, limits = planned.get(unit) or planned[_counterpart(recorded, by_amounts)]
        made = {"Slice": unit_name(path.rpartition("/")[0]) or "-.slice"} | {
            name: shown(name, value)
            for name, (_, value) in new_slice(path)
            if name not in ("Description", "Wants")
        }
        expected = {name: recorded[name] for name in made}
        assert made == expected, unit
        assert _UNSET_PROPERTIES | _set(path, limits) == {
            name: recorded[name] for name in _UNSET_PROPERTIES
        }, unit
        assert recorded["Description"] == f"libcontainer container {unit}"


_UNSET_PROPERTIES = {
    "Delegate": "no",
    "CPUWeight": "[not set]",
    "CPUQuotaPerSecUSec": "infinity",
    "CPUQuotaPeriodUSec": "infinity",
    "AllowedCPUs": "",
    "MemoryMin": "0",
    "MemoryLow": "0",
    "MemoryHigh": "infinity",
    "MemoryMax": "infinity",
    "MemorySwapMax": "infinity",
    "TasksMax": "infinity",
}


def _set(path: str, limits: Limits) -> dict[str, str]:
    """The properties that the agent sets to something else than systemd does."""
    found = {name: shown(name, value) for name, (_, value) in properties(limits, v2=True)}
    return {name: value for name, value in found.items() if value != _UNSET_PROPERTIES[name]}


def _counterpart(recorded: dict[str, str], by_amounts: dict[frozenset[tuple[str, str]], str]) -> str:
    """Which planned slice has the values of a recorded one, whose pod's UID stands for its name."""
    values = {name: recorded[name] for name in _UNSET_PROPERTIES}
    return by_amounts[frozenset((k, v) for k, v in values.items() if v != _UNSET_PROPERTIES[k])]


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
def test_what_the_runtime_is_asked_for_each_container(driver: str) -> None:
    """What the runtime wrote for a container is what it was asked for, where the kernel shows it as it was
    said.
    """
    node, _ = recorded_node(driver)
    checked = 0
    for path, recorded in golden()[f"go-{driver}"].items():
        name = path.rpartition("/")[2].removeprefix("cri-containerd-").removesuffix(".scope")
        for title, pod in recorded_pods(driver).items():
            container = next((c for c in pod.spec.containers or () if c.name == name), None)
            if container is None or f"pod{title}" not in path:
                continue
            linux = container_resources(pod, container, node)
            asked = {
                "memory.high": "max",
                "memory.low": "0",
                "memory.min": "0",
                **dict(linux.unified),
                "memory.max": str(linux.memory_limit_in_bytes or "max"),
                "cpu.max": f"{linux.cpu_quota or 'max'} 100000",
            }
            assert asked == {file: recorded[file] for file in asked}, path
            checked += 1
    assert checked >= 6
