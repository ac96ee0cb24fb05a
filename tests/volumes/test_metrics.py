"""What is measured of volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.manager import VolumeManager
from trio_kubelet.volumes.metrics import VolumeMetrics


def _pod(uid: str, *volumes: dict[str, Any]) -> v1.Pod:
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    spec = {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes}
    return msgspec.convert({"metadata": {"name": "p", "uid": uid}, "spec": spec}, v1.Pod)


def _there(registry: CollectorRegistry, plugin: str) -> float | None:
    labels = {"plugin_name": f"kubernetes.io/{plugin}", "state": "actual_state_of_world"}
    return registry.get_sample_value("volume_manager_total_volumes", labels)


def _took(registry: CollectorRegistry, operation: str, plugin: str, status: str) -> float | None:
    labels = {
        "operation_name": operation,
        "volume_plugin": f"kubernetes.io/{plugin}",
        "status": status,
        "migrated": "false",
    }
    return registry.get_sample_value("storage_operation_duration_seconds_count", labels)


async def test_volumes_are_counted_by_plugin_while_they_are_there(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    node = NodeContext(node_name="n", root_dir=str(tmp_path))
    manager = VolumeManager(lambda: node, metrics=VolumeMetrics(registry))
    path = {"name": "host", "hostPath": {"path": str(tmp_path)}}
    await manager.set_up(_pod("u1", {"name": "e", "emptyDir": {}}, path))
    await manager.set_up(_pod("u2", {"name": "e", "emptyDir": {}}))
    assert (_there(registry, "empty-dir"), _there(registry, "host-path")) == (2, 1)
    assert _took(registry, "volume_mount", "empty-dir", "success") == 2

    await manager.tear_down("u1")
    assert (_there(registry, "empty-dir"), _there(registry, "host-path")) == (1, None)
    assert _took(registry, "volume_unmount", "host-path", "success") == 1


async def test_a_volume_that_cannot_be_set_up_is_a_failed_operation(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    node = NodeContext(node_name="n", root_dir=str(tmp_path))
    manager = VolumeManager(lambda: node, metrics=VolumeMetrics(registry))
    missing = {"name": "h", "hostPath": {"path": str(tmp_path / "none"), "type": "Directory"}}
    with pytest.raises(VolumeError):
        await manager.set_up(_pod("u1", missing))
    assert _took(registry, "volume_mount", "host-path", "fail-unknown") == 1
    assert _there(registry, "host-path") is None
