"""Names and paths of volumes: the kubelet's layout below its root directory. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.podinfo.paths import pod_dir, pods_dir
from trio_kubelet.storage.specs import CSI

DATA_FILE: Final = "vol_data.json"
_GLOBAL: Final = "globalmount"
_ISCSI_PORT: Final = "3260"


def escape(qualified: str) -> str:
    """A qualified name as part of a path."""
    return qualified.replace("/", "~")


def unique_name(plugin: str, name: str) -> str:
    """A volume that is the same for all pods of the node."""
    return f"{plugin}/{name}"


def unique_pod_name(plugin: str, uid: str, name: str) -> str:
    """A volume that is mounted for each pod on its own."""
    return f"{plugin}/{uid}-{name}"


def csi_name(driver: str, handle: str) -> str:
    """The name of a CSI volume among those of its plugin."""
    return f"{driver}^{handle}"


def with_port(portal: str) -> str:
    """A portal of an iSCSI target with its port."""
    return portal if ":" in portal else f"{portal}:{_ISCSI_PORT}"


def fc_name(source: v1.FCVolumeSource) -> str:
    """The name of a Fibre Channel disk among those of its plugin: lists as Go prints them."""
    if source.target_wwns and source.lun is not None:
        return f"[{' '.join(source.target_wwns)}]:{source.lun}"
    return f"[{' '.join(source.wwids)}]" if source.wwids else ""


def attachment_name(handle: str, driver: str, node: str) -> str:
    """The VolumeAttachment of a volume on a node."""
    return f"csi-{_digest(f'{handle}{driver}{node}')}"


def inline_handle(uid: str, name: str) -> str:
    """What a driver knows a volume by that a pod describes itself."""
    return f"csi-{_digest(f'{uid}{name}')}"


def plugin_dir(root_dir: str, plugin: str) -> str:
    """Where a plugin keeps what is mounted once for the node."""
    return f"{root_dir}/plugins/{plugin}"


def csi_global_mount(root_dir: str, driver: str, handle: str) -> str:
    """Where a driver stages a volume; the data file is beside it."""
    return f"{plugin_dir(root_dir, CSI)}/{driver}/{_digest(handle)}/{_GLOBAL}"


def pod_volume(root_dir: str, uid: str, plugin: str, name: str) -> str:
    """A pod's directory of a volume."""
    return f"{pod_dir(root_dir, uid)}/volumes/{escape(plugin)}/{name}"


def csi_pod_mount(root_dir: str, uid: str, name: str) -> str:
    """Where a driver publishes a volume to a pod; the data file is beside it. The name of an Azure disk that
    a pod names itself is a path.
    """
    return f"{pod_volume(root_dir, uid, CSI, escape(name))}/mount"


def pod_devices(root_dir: str, uid: str, plugin: str) -> str:
    """A pod's directory of block devices; each is a link named like its volume."""
    return f"{pod_dir(root_dir, uid)}/volumeDevices/{escape(plugin)}"


def pod_subpaths(root_dir: str, uid: str, volume: str) -> str:
    """Where parts of one of the pod's volumes are bound; a persistent one has its own name there."""
    return f"{pod_dir(root_dir, uid)}/volume-subpaths/{volume}"


def all_pods(root_dir: str) -> str:
    """The directory of all pods."""
    return pods_dir(root_dir)


def block_root(root_dir: str, plugin: str) -> str:
    """Where a plugin keeps its block devices."""
    return f"{plugin_dir(root_dir, plugin)}/volumeDevices"


def csi_block_dir(root_dir: str, name: str) -> str:
    """A CSI block volume's directory, with `dev` (one bound device for each pod) and `data`."""
    return f"{block_root(root_dir, CSI)}/{name}"


def csi_block_staging(root_dir: str, name: str) -> str:
    """Where a driver stages a block volume."""
    return f"{block_root(root_dir, CSI)}/staging/{name}"


def csi_block_publish(root_dir: str, name: str, uid: str) -> str:
    """Where a driver publishes a block volume to a pod."""
    return f"{block_root(root_dir, CSI)}/publish/{name}/{uid}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
