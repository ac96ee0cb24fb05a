"""What drivers are asked, made from volumes and pods. Pure."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.storage.specs import READ_WRITE_MANY, READ_WRITE_ONCE, READ_WRITE_ONCE_POD, Spec

Capability = csi.NodeServiceCapability.RPC.Type
AccessMode = csi.VolumeCapability.AccessMode

STAGE: Final = csi.NodeServiceCapability.RPC.STAGE_UNSTAGE_VOLUME
STATS: Final = csi.NodeServiceCapability.RPC.GET_VOLUME_STATS
EXPAND: Final = csi.NodeServiceCapability.RPC.EXPAND_VOLUME
CONDITION: Final = csi.NodeServiceCapability.RPC.VOLUME_CONDITION
MULTI_WRITER: Final = csi.NodeServiceCapability.RPC.SINGLE_NODE_MULTI_WRITER
MOUNT_GROUP: Final = csi.NodeServiceCapability.RPC.VOLUME_MOUNT_GROUP

_MODES: Final = {
    READ_WRITE_ONCE: AccessMode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": AccessMode.MULTI_NODE_READER_ONLY,
    READ_WRITE_MANY: AccessMode.MULTI_NODE_MULTI_WRITER,
    READ_WRITE_ONCE_POD: AccessMode.SINGLE_NODE_WRITER,
}
_MULTI_WRITER_MODES: Final = {
    **_MODES,
    READ_WRITE_ONCE: AccessMode.SINGLE_NODE_MULTI_WRITER,
    READ_WRITE_ONCE_POD: AccessMode.SINGLE_NODE_SINGLE_WRITER,
}


def capability(
    spec: Spec, abilities: frozenset[int], options: tuple[str, ...] = (), group: int | None = None
) -> csi.VolumeCapability:
    """How the volume is to be used. `group` is for a driver that gives files to a group itself."""
    modes = _MULTI_WRITER_MODES if MULTI_WRITER in abilities else _MODES
    wanted = csi.VolumeCapability(
        access_mode=AccessMode(mode=modes.get(spec.access_mode, AccessMode.UNKNOWN))
    )
    if spec.block:
        wanted.block.SetInParent()
    else:
        wanted.mount.fs_type = fs_type(spec)
        wanted.mount.mount_flags.extend(options)
        wanted.mount.volume_mount_group = "" if group is None else str(group)
    return wanted


def fs_type(spec: Spec) -> str:
    """The filesystem that is asked for, "" for the driver's choice."""
    source = spec.source
    if isinstance(source, v1.CSIPersistentVolumeSource | v1.CSIVolumeSource):
        return source.fs_type or ""
    return ""


def attributes(spec: Spec) -> dict[str, str]:
    """The attributes the volume was made with."""
    source = spec.source
    if isinstance(source, v1.CSIPersistentVolumeSource | v1.CSIVolumeSource):
        return dict(source.volume_attributes or {})
    return {}


def stage_secret(spec: Spec) -> v1.SecretReference | None:
    """The secret for staging."""
    source = spec.source
    return source.node_stage_secret_ref if isinstance(source, v1.CSIPersistentVolumeSource) else None


def expand_secret(spec: Spec) -> v1.SecretReference | None:
    """The secret for expanding."""
    source = spec.source
    return source.node_expand_secret_ref if isinstance(source, v1.CSIPersistentVolumeSource) else None


def publish_secret(spec: Spec, pod: v1.Pod) -> v1.SecretReference | None:
    """The secret for publishing; a pod's own volume names one of the pod's namespace."""
    source = spec.source
    if isinstance(source, v1.CSIPersistentVolumeSource):
        return source.node_publish_secret_ref
    if isinstance(source, v1.CSIVolumeSource) and source.node_publish_secret_ref is not None:
        return v1.SecretReference(name=source.node_publish_secret_ref.name, namespace=pod.metadata.namespace)
    return None
