"""The configs the kubelet sent for recorded pods."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trio_kubelet.api import v1
from trio_kubelet.inspect import render
from trio_kubelet.podinfo.context import ContainerInputs, EnvSources, NodeContext, VolumeMountPoint
from trio_kubelet.podinfo.paths import volume_dir
from trio_kubelet.runtime.configs.container import container_config
from trio_kubelet.runtime.configs.sandbox import sandbox_config

_GOLDEN = Path(__file__).parents[1] / "golden"
_CASES: list[dict[str, Any]] = json.loads((_GOLDEN / "cri-configs.json").read_text())["cases"]
_CLUSTER: dict[str, Any] = json.loads((_GOLDEN / "cluster-node.json").read_text())

_NODE = NodeContext(
    node_name="node1",
    root_dir="${ROOT}",
    pod_logs_dir="${PODLOGS}",
    memory_capacity=24684084 * 1024,
    swap_controller=True,
    huge_page_sizes=("2MB", "1GB"),
    allocatable={"cpu": "2", "memory": "24581684Ki", "ephemeral-storage": "243497856212"},
)

_ADDED_BY_CONTAINERD = {
    # The sandbox configs were read back from containerd, which writes its own defaults into a sysctl map
    # it was given.
    "net.ipv4.ip_unprivileged_port_start": "0",
    "net.ipv4.ping_group_range": "0 2147483647",
}
_PLUGINS = {
    "empty_dir": "kubernetes.io/empty-dir",
    "config_map": "kubernetes.io/configmap",
    "secret": "kubernetes.io/secret",
    "projected": "kubernetes.io/projected",
}


def _volumes(pod: v1.Pod) -> dict[str, VolumeMountPoint]:
    points: dict[str, VolumeMountPoint] = {}
    for volume in pod.spec.volumes or ():
        if volume.host_path is not None:
            points[volume.name] = VolumeMountPoint(volume.host_path.path)
        for source, plugin in _PLUGINS.items():
            if getattr(volume, source) is not None:
                path = volume_dir("${ROOT}", pod.metadata.uid, plugin, volume.name)
                points[volume.name] = VolumeMountPoint(path, read_only=source != "empty_dir")
    return points


def _containers(pod: v1.Pod) -> dict[str, v1.Container]:
    return {c.name: c for c in [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]}


def _unordered_env(config: dict[str, Any]) -> dict[str, Any]:
    """The kubelet writes variables in random order."""
    return {**config, "envs": sorted((e["key"], e.get("value", "")) for e in config.get("envs", []))}


def _inputs(pod: v1.Pod, recorded: dict[str, Any]) -> ContainerInputs:
    """What only the recording knows: the image's id and the random name of the termination log."""
    paths = [mount["host_path"] for mount in recorded["mounts"]]
    logs = [path for path in paths if re.search("/containers/[^/]+/[0-9a-f]{8}$", path)]
    return ContainerInputs(
        image_ref=recorded["image"]["image"],
        pod_ips=("10.244.0.2",),
        volumes=_volumes(pod),
        termination_log=logs[0],
    )


@pytest.mark.parametrize("case", _CASES, ids=[case["manifest"]["metadata"]["name"] for case in _CASES])
def test_recorded_static_pod(case: dict[str, Any]) -> None:
    pod = msgspec.convert(case["pod"], v1.Pod)
    recorded = case["sandbox_config"]
    sandbox = render(sandbox_config(pod, _NODE))
    if "sysctls" in sandbox["linux"]:
        sandbox["linux"]["sysctls"].update(_ADDED_BY_CONTAINERD)
    assert sandbox == recorded
    containers = _containers(pod)
    for entry in case["containers"]:
        container = containers[entry["name"]]
        config = container_config(pod, container, _NODE, _inputs(pod, entry["config"]))
        assert render(config) == entry["config"]


def test_recorded_pod_with_config_maps_secrets_and_services() -> None:
    pod = msgspec.convert(_CLUSTER["pods"]["cfg"], v1.Pod)
    recorded = _CLUSTER["criContainerConfigs"]["cfg/c"]
    own = {"A", "U", "UPPER", "a", "b.txt", "S_pass", "S_user"}
    sources = EnvSources(
        services={e["key"]: e["value"] for e in recorded["envs"] if e["key"] not in own},
        config_maps={"cm": {"a": "1", "b.txt": "two", "UPPER": "x"}},
        secrets={"se": {"user": b"u", "pass": b"p w"}},
    )
    inputs = msgspec.structs.replace(_inputs(pod, recorded), env_sources=sources)
    config = container_config(pod, _containers(pod)["c"], _NODE, inputs)
    assert _unordered_env(render(config)) == _unordered_env(recorded)
