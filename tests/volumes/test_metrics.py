"""What is measured of volumes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
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


def _wholly(registry: CollectorRegistry, plugin: str, what: str = "count") -> float | None:
    labels = {"plugin_name": f"kubernetes.io/{plugin}", "operation_name": "overall_volume_mount"}
    return registry.get_sample_value(f"volume_operation_total_seconds_{what}", labels)


async def test_only_volumes_made_of_files_are_measured_again(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    node = NodeContext(node_name="n", root_dir=str(tmp_path))
    manager = VolumeManager(lambda: node, metrics=VolumeMetrics(registry))
    fields = {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}
    pod = _pod("u1", {"name": "e", "emptyDir": {}}, {"name": "d", "downwardAPI": fields})
    try:
        for rounds in (1, 2, 3):
            await manager.set_up(pod)
            for plugin, expected in (("empty-dir", 1), ("downward-api", rounds)):
                assert _took(registry, "volume_mount", plugin, "success") == expected
                assert _wholly(registry, plugin) == expected
                assert _took(registry, "verify_controller_attached_volume", plugin, "success") == 1
        await manager.tear_down("u1")
        await manager.set_up(pod)
        assert _wholly(registry, "empty-dir") == 2
    finally:
        await manager.tear_down("u1")


async def test_the_whole_time_counts_from_when_a_volume_was_wanted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    registry = CollectorRegistry()
    node = NodeContext(node_name="n", root_dir=str(tmp_path))
    manager = VolumeManager(lambda: node, metrics=VolumeMetrics(registry))
    late = tmp_path / "late"
    pod = _pod("u1", {"name": "h", "hostPath": {"path": str(late), "type": "Directory"}})
    with pytest.raises(VolumeError):
        await manager.set_up(pod)
    assert _wholly(registry, "host-path") is None
    await trio.sleep(7)
    late.mkdir()
    await manager.set_up(pod)
    assert _wholly(registry, "host-path", "sum") == pytest.approx(7, abs=0.5)


async def test_a_volume_that_cannot_be_set_up_is_a_failed_operation(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    node = NodeContext(node_name="n", root_dir=str(tmp_path))
    manager = VolumeManager(lambda: node, metrics=VolumeMetrics(registry))
    missing = {"name": "h", "hostPath": {"path": str(tmp_path / "none"), "type": "Directory"}}
    with pytest.raises(VolumeError):
        await manager.set_up(_pod("u1", missing))
    assert _took(registry, "volume_mount", "host-path", "fail-unknown") == 1
    assert _there(registry, "host-path") is None


async def test_giving_volumes_to_a_group_is_measured_by_plugin(tmp_path: Path) -> None:
    """Once for a directory, and for files each time they are written anew."""
    registry = CollectorRegistry()
    node = NodeContext(node_name="n", root_dir=str(tmp_path))
    manager = VolumeManager(lambda: node, metrics=VolumeMetrics(registry))
    fields = {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    pod = _pod("u1", {"name": "e", "emptyDir": {}}, {"name": "d", "downwardAPI": fields})
    given = "volume_apply_access_control"
    try:
        await manager.set_up(pod)
        assert _took(registry, given, "empty-dir", "success") is None
        await manager.tear_down("u1")
        pod.spec.security_context = v1.PodSecurityContext(fs_group=os.getegid())
        for _ in range(2):
            await manager.set_up(pod)
        assert _took(registry, given, "downward-api", "success") == 1
        pod.metadata.labels = {"new": "label"}
        await manager.set_up(pod)
        assert _took(registry, given, "downward-api", "success") == 2
        assert _took(registry, given, "empty-dir", "success") == 2  # the files are in one, too
    finally:
        await manager.tear_down("u1")
