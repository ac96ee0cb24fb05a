"""From a pod's volume to the volume that is mounted: claims, persistent volumes, inline sources. Pure.

Rules and texts are those of the kubelet's `createVolumeSpec`. Objects are given; who reads them is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path
from trio_kubelet.podinfo.amounts import amount, whole
from trio_kubelet.storage.migration import migrated_persistent, migrated_volume
from trio_kubelet.storage.names import (
    csi_name,
    fc_name,
    inline_handle,
    unique_name,
    unique_pod_name,
    with_port,
)
from trio_kubelet.storage.specs import (
    BLOCK,
    CSI,
    FC,
    FILESYSTEM,
    FLEX,
    HOST_PATH,
    ISCSI,
    LOCAL,
    NFS,
    ClaimRef,
    Source,
    Spec,
)
from trio_kubelet.volumes.errors import VolumeError

PROTECTION = "kubernetes.io/pvc-protection"
GID_ANNOTATION = "pv.beta.kubernetes.io/gid"
OPTIONS_ANNOTATION = "volume.beta.kubernetes.io/mount-options"
_UNKNOWN = 'failed to get Plugin from volumeSpec for volume "{}" err=no volume plugin matched'


def claim_name(pod: v1.Pod, volume: v1.Volume) -> str | None:
    """The claim a volume stands for, None if it is none. A generic ephemeral one is called after pod and
    volume.
    """
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    if volume.ephemeral is not None:
        return f"{pod.metadata.name}-{volume.name}"
    return None


def check_claim(pod: v1.Pod, volume: v1.Volume, claim: v1.PersistentVolumeClaim) -> None:
    """That the claim may be used by this pod now. Raises VolumeError."""
    meta = claim.metadata
    where = f"error processing PVC {pod.metadata.namespace}/{meta.name}"
    if meta.deletion_timestamp and PROTECTION not in (meta.finalizers or ()):
        raise VolumeError(f"{where}: PVC is being deleted")
    if claim.status.phase != "Bound":
        raise VolumeError(f"{where}: PVC is not bound")
    if not claim.spec.volume_name:
        raise VolumeError(f"{where}: PVC has empty pvc.Spec.VolumeName")
    if volume.persistent_volume_claim is None and not _is_controlled_by(meta, pod.metadata.uid):
        raise VolumeError(
            f"PVC {meta.namespace}/{meta.name} was not created for pod "
            f"{pod.metadata.namespace}/{pod.metadata.name} (pod is not owner)"
        )


def claimed_spec(
    pod: v1.Pod, volume: v1.Volume, claim: v1.PersistentVolumeClaim, found: v1.PersistentVolume
) -> Spec:
    """The volume behind a claim that was checked. Raises VolumeError."""
    name, ref = found.metadata.name, found.spec.claim_ref
    where = f"error processing PVC {pod.metadata.namespace}/{claim.metadata.name}"
    if ref is None:
        raise VolumeError(
            f"{where}: found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet "
            "bound to the claim"
        )
    if ref.uid != claim.metadata.uid:
        raise VolumeError(
            f"{where}: found PV object {name} but its pv.Spec.ClaimRef.UID {ref.uid} does not point to "
            f"claim.UID {claim.metadata.uid}"
        )
    described, found = found, migrated_persistent(found)
    mode = found.spec.volume_mode or FILESYSTEM
    _check_mode(pod, volume.name, mode)
    of_pod = volume.persistent_volume_claim
    spec = persistent_spec(pod.metadata.uid, found, of_pod is not None and of_pod.read_only)
    sizes = claim.status.capacity or {}
    return msgspec.structs.replace(
        spec,
        claim=ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid),
        claim_size=_size(sizes),
        migrated=found is not described,
    )


def persistent_spec(uid: str, found: v1.PersistentVolume, read_only: bool) -> Spec:
    """A persistent volume for a pod, which says whether it may write; what the source says of that counts
    for no plugin (kubelet: `spec.ReadOnly`). Raises VolumeError for kinds this agent does not know.
    """
    spec, name = found.spec, found.metadata.name
    plugin, handle, device, source = _persistent_source(found)
    mode = spec.volume_mode or FILESYSTEM
    named = unique_name(plugin, _own_name(source) or name) if device else unique_pod_name(plugin, uid, name)
    return Spec(
        unique_name=named,
        api_name=_api_name(source),
        name=name,
        plugin=plugin,
        source=source,
        driver=getattr(source, "driver", ""),
        handle=handle,
        block=mode == BLOCK,
        device=device,
        attachable=plugin in (ISCSI, FC),
        read_only=read_only,
        access_modes=tuple(spec.access_modes or ()),
        options=_options(found, plugin),
        uid=found.metadata.uid,
        gid=(found.metadata.annotations or {}).get(GID_ANNOTATION, ""),
        persistent=True,
        capacity=_size(spec.capacity or {}),
        nodes=spec.node_affinity.required if spec.node_affinity is not None else None,
    )


def inline_spec(pod: v1.Pod, volume: v1.Volume) -> Spec:
    """A volume that the pod describes itself. Raises VolumeError for kinds this agent does not know."""
    uid = pod.metadata.uid
    if (disk := migrated_volume(volume, pod.metadata.namespace)) is not None:
        return msgspec.structs.replace(persistent_spec(uid, disk, read_only=False), migrated=True)
    if volume.csi is not None:
        return Spec(
            unique_name=unique_pod_name(CSI, uid, volume.name),
            name=volume.name,
            plugin=CSI,
            source=volume.csi,
            driver=volume.csi.driver,
            handle=inline_handle(uid, volume.name),
            ephemeral=True,
            read_only=bool(volume.csi.read_only),
        )
    if volume.nfs is not None:
        return Spec(
            unique_name=unique_pod_name(NFS, uid, volume.name),
            name=volume.name,
            plugin=NFS,
            source=volume.nfs,
            read_only=volume.nfs.read_only,
        )
    if volume.flex_volume is not None:
        return Spec(
            unique_name=unique_pod_name(volume.flex_volume.driver, uid, volume.name),
            name=volume.name,
            plugin=FLEX,
            source=volume.flex_volume,
            driver=volume.flex_volume.driver,
            read_only=volume.flex_volume.read_only,
        )
    if volume.iscsi is not None or volume.fc is not None:
        return _attached_disk(volume, _with_namespace(volume.iscsi, pod.metadata.namespace) or volume.fc)
    raise VolumeError(_UNKNOWN.format(volume.name))


def _attached_disk(
    volume: v1.Volume, source: v1.ISCSIPersistentVolumeSource | v1.FCVolumeSource | None
) -> Spec:
    assert source is not None
    plugin = ISCSI if isinstance(source, v1.ISCSIPersistentVolumeSource) else FC
    return Spec(
        unique_name=unique_name(plugin, _own_name(source)),
        api_name=_api_name(source),
        name=volume.name,
        plugin=plugin,
        source=source,
        device=True,
        attachable=True,
        read_only=source.read_only,
    )


def _with_namespace(
    source: v1.ISCSIVolumeSource | None, namespace: str
) -> v1.ISCSIPersistentVolumeSource | None:
    """A pod's own disk as a persistent volume describes it: its secret is one of the pod's namespace."""
    if source is None:
        return None
    secret = source.secret_ref
    ref = v1.SecretReference(name=secret.name, namespace=namespace) if secret is not None else None
    fields = {name: getattr(source, name) for name in source.__struct_fields__}
    return v1.ISCSIPersistentVolumeSource(**{**fields, "secret_ref": ref})


def _own_name(source: Source) -> str:
    """The name of what is mounted among those of its plugin, "" where that is the volume's."""
    if isinstance(source, v1.CSIPersistentVolumeSource):
        return csi_name(source.driver, source.volume_handle)
    if isinstance(source, v1.ISCSIPersistentVolumeSource):
        return f"{with_port(source.target_portal)}:{source.iqn}:{source.lun}"
    return fc_name(source) if isinstance(source, v1.FCVolumeSource) else ""


def _api_name(source: Source) -> str:
    """What the API calls it, where its author decides about that."""
    if isinstance(source, v1.ISCSIPersistentVolumeSource):
        return unique_name(ISCSI, f"{source.target_portal}:{source.iqn}:{source.lun}")
    return ""


def _persistent_source(found: v1.PersistentVolume) -> tuple[str, str, bool, Source]:
    """Plugin, handle, whether it is mounted once for the node, and the source."""
    spec, name = found.spec, found.metadata.name
    if spec.csi is not None:
        return CSI, spec.csi.volume_handle, True, spec.csi
    if spec.local is not None:
        return LOCAL, name, True, spec.local
    if spec.nfs is not None:
        return NFS, name, False, spec.nfs
    if spec.iscsi is not None:
        return ISCSI, name, True, _with_claims_namespace(spec.iscsi, spec.claim_ref)
    if spec.fc is not None:
        return FC, name, True, spec.fc
    if spec.host_path is not None:
        return HOST_PATH, name, False, spec.host_path
    if spec.flex_volume is not None:
        return FLEX, name, False, spec.flex_volume
    raise VolumeError(_UNKNOWN.format(name))


def _with_claims_namespace(
    source: v1.ISCSIPersistentVolumeSource, claim: v1.ObjectReference | None
) -> v1.ISCSIPersistentVolumeSource:
    """Its secret is one of the claim's namespace unless it says another."""
    ref = source.secret_ref
    if ref is None or ref.namespace or claim is None:
        return source
    return msgspec.structs.replace(source, secret_ref=msgspec.structs.replace(ref, namespace=claim.namespace))


def _options(found: v1.PersistentVolume, plugin: str) -> tuple[str, ...]:
    """Mount options; an old annotation goes before the field, except with drivers (kubelet:
    `MountOptionFromSpec`).
    """
    text = (found.metadata.annotations or {}).get(OPTIONS_ANNOTATION)
    if text is None or plugin == CSI:
        return tuple(found.spec.mount_options or ())
    return tuple(option for option in text.split(",") if option)


def _check_mode(pod: v1.Pod, name: str, mode: str) -> None:
    mounts, devices = used_as(pod, name)
    if mounts and mode != FILESYSTEM:
        raise VolumeError(f"volume {name} has volumeMode {mode}, but is specified in volumeMounts")
    if devices and mode != BLOCK:
        raise VolumeError(f"volume {name} has volumeMode {mode}, but is specified in volumeDevices")


def _size(resources: Mapping[str, str]) -> int:
    """Bytes of storage; 0 if not said. Raises VolumeError."""
    text = resources.get("storage", "")
    try:
        return whole(amount(text))
    except ValueError as error:
        raise VolumeError(f"the size {text!r} cannot be read: {error}") from error


def used_as(pod: v1.Pod, name: str) -> tuple[bool, bool]:
    """Whether containers mount a volume, and whether they use it as a device."""
    containers = [container for container, _ in containers_with_path(pod.spec)]
    mounts = any(mount.name == name for c in containers for mount in c.volume_mounts or ())
    devices = any(device.name == name for c in containers for device in c.volume_devices or ())
    return mounts, devices


def _is_controlled_by(meta: v1.ObjectMeta, uid: str) -> bool:
    return any(owner.controller and owner.uid == uid for owner in meta.owner_references or ())
