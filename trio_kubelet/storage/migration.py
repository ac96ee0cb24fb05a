"""Disks of clouds by their old types, as volumes of the CSI drivers that have replaced these.

Handles and attributes are those of the reference's translation, so that VolumeAttachments, and volumes that
another agent has mounted, are the same ones. Pure.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.storage.specs import READ_WRITE_MANY, READ_WRITE_ONCE
from trio_kubelet.volumes.errors import VolumeError

_EBS: Final = "ebs.csi.aws.com"
_AZURE: Final = "disk.csi.azure.com"
_GCE: Final = "pd.csi.storage.gke.io"
_CINDER: Final = "cinder.csi.openstack.org"
_PORTWORX: Final = "pxd.portworx.com"
_AZURE_FILE: Final = "file.csi.azure.com"
_VSPHERE: Final = "csi.vsphere.vmware.com"
_FAILED: Final = "failed to translate in-tree pv to CSI"
_ZONE_LABELS: Final = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
_SECRET: Final = ("openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace")
_ACCOUNT: Final = re.compile(r"azure-storage-account-(.+)-secret")
_RESOURCE_GROUP: Final = "kubernetes.io/azure-file-resource-group"
_POLICY: Final = "storagepolicyname"
_READERS: Final = "ReadOnlyMany"


def migrated_persistent(volume: v1.PersistentVolume) -> v1.PersistentVolume:
    """A persistent volume with its CSI source; one that needs none as it is. Raises VolumeError."""
    try:
        return _persistent(volume)
    except VolumeError as error:
        raise VolumeError(f"{_FAILED}: {error}") from None


def migrated_volume(volume: v1.Volume, namespace: str) -> v1.PersistentVolume | None:
    """The persistent volume that stands for a disk a pod of that namespace names itself, None for other
    volumes. Raises VolumeError.
    """
    try:
        return _inline(volume, namespace)
    except VolumeError as error:
        raise VolumeError(f"{_FAILED}: {error}") from None


def _persistent(volume: v1.PersistentVolume) -> v1.PersistentVolume:
    spec = volume.spec
    annotations = volume.metadata.annotations or {}
    modes = spec.access_modes
    if (ebs := spec.aws_elastic_block_store) is not None:
        source = _ebs(ebs)
    elif (azure := spec.azure_disk) is not None:
        source = _azure(azure)
    elif (disk := spec.gce_persistent_disk) is not None:
        source = _gce(disk, _gce_place(volume.metadata.labels or {}))
        modes = _gce_modes(modes or [])
    elif (cinder := spec.cinder) is not None:
        source = _plain(_CINDER, cinder.volume_id, cinder.fs_type, cinder.read_only)
    elif (portworx := spec.portworx_volume) is not None:
        source = _portworx(portworx, annotations)
    elif (share := spec.azure_file) is not None:
        namespace = share.secret_namespace
        if namespace is None and spec.claim_ref is not None:
            namespace = spec.claim_ref.namespace
        if not namespace:
            raise VolumeError("could not find a secret namespace in PersistentVolumeSource or ClaimRef")
        source = _azure_file(share, annotations.get(_RESOURCE_GROUP, ""), volume.metadata.name, namespace)
    elif (vsphere := spec.vsphere_volume) is not None:
        source = _vsphere(vsphere)
    else:
        return volume
    changed = msgspec.structs.replace(spec, csi=source, access_modes=modes)
    return msgspec.structs.replace(volume, spec=changed)


def _inline(volume: v1.Volume, namespace: str) -> v1.PersistentVolume | None:
    read_only = False
    if (ebs := volume.aws_elastic_block_store) is not None:
        source = _ebs(ebs)
    elif (azure := volume.azure_disk) is not None:
        source = _azure(azure)
    elif (disk := volume.gce_persistent_disk) is not None:
        source, read_only = _gce(disk, "zones/UNSPECIFIED"), disk.read_only
    elif (cinder := volume.cinder) is not None:
        source = _plain(_CINDER, cinder.volume_id, cinder.fs_type, cinder.read_only)
    elif (portworx := volume.portworx_volume) is not None:
        source, read_only = _portworx(portworx, {}), portworx.read_only
    elif (share := volume.azure_file) is not None:
        source = _azure_file(share, "", volume.name, namespace or "default")
    elif (vsphere := volume.vsphere_volume) is not None:
        source = _vsphere(vsphere)
    else:
        return None
    handle = source.volume_handle
    if volume.gce_persistent_disk is not None:
        handle = volume.gce_persistent_disk.pd_name
    name = handle if source.driver in (_AZURE, _AZURE_FILE) else f"{source.driver}-{handle}"
    if ".." in name.split("/"):  # it becomes a path
        raise VolumeError(f"the name {name} leads out of its directory")
    mode = READ_WRITE_MANY if volume.azure_file is not None else _READERS if read_only else READ_WRITE_ONCE
    spec = v1.PersistentVolumeSpec(csi=source, access_modes=[mode])
    return v1.PersistentVolume(metadata=v1.ObjectMeta(name=name), spec=spec)


def _plain(driver: str, handle: str, fs_type: str, read_only: bool) -> v1.CSIPersistentVolumeSource:
    return v1.CSIPersistentVolumeSource(
        driver=driver, volume_handle=handle, fs_type=fs_type, read_only=read_only, volume_attributes={}
    )


def _ebs(disk: v1.AWSElasticBlockStoreVolumeSource) -> v1.CSIPersistentVolumeSource:
    """The id as it is, or out of `aws://zone/vol-x`."""
    handle = disk.volume_id
    if handle.startswith("aws://"):
        _, found, rest = handle.rpartition("/")[2].partition("vol-")
        if not found:
            text = f"Invalid format for AWS volume ({handle})"
            raise VolumeError(f"failed to translate Kubernetes ID to EBS Volume ID {text}")
        handle = found + rest
    source = _plain(_EBS, handle, disk.fs_type, disk.read_only)
    return msgspec.structs.replace(source, volume_attributes={"partition": str(disk.partition)})


def _azure(disk: v1.AzureDiskVolumeSource) -> v1.CSIPersistentVolumeSource:
    if disk.kind is not None and disk.kind.lower() != "managed":
        raise VolumeError(f"kind({disk.kind}) is not supported in csi migration")
    attributes = {"kind": "Managed"}
    if disk.caching_mode:
        attributes["cachingmode"] = disk.caching_mode
    if disk.fs_type is not None:
        attributes["fstype"] = disk.fs_type
    source = _plain(_AZURE, disk.disk_uri, disk.fs_type or "", bool(disk.read_only))
    return msgspec.structs.replace(source, volume_attributes=attributes)


def _gce(disk: v1.GCEPersistentDiskVolumeSource, place: str) -> v1.CSIPersistentVolumeSource:
    handle = f"projects/UNSPECIFIED/{place}/disks/{disk.pd_name}"
    source = _plain(_GCE, handle, disk.fs_type, disk.read_only)
    partition = str(disk.partition) if disk.partition else ""
    return msgspec.structs.replace(source, volume_attributes={"partition": partition})


def _gce_place(labels: dict[str, str]) -> str:
    """The zone or, for a disk in several, the region by a volume's labels. Raises VolumeError."""
    text = next((labels[label] for label in _ZONE_LABELS if labels.get(label)), "")
    zones = text.split("__") if text else []
    if len(zones) <= 1:
        return f"zones/{zones[0] if zones else 'UNSPECIFIED'}"
    regions = {zone.rpartition("-")[0] for zone in zones}
    if len(regions) != 1:
        shown = " ".join(f"{region}:{{}}" for region in sorted(regions))
        raise VolumeError(
            f"failed to get region from zones: multiple or no regions gotten from zones, got: map[{shown}]"
        )
    return f"regions/{regions.pop()}"


def _gce_modes(modes: list[str]) -> list[str]:
    """The one mode its driver knows for what used to be accepted."""
    return [_READERS] if set(modes) == {_READERS} else [READ_WRITE_ONCE]


def _azure_file(
    share: v1.AzureFilePersistentVolumeSource | v1.AzureFileVolumeSource,
    group: str,
    name: str,
    namespace: str,
) -> v1.CSIPersistentVolumeSource:
    """A share; its account is part of the secret's name where that is formed as its tools do."""
    found = _ACCOUNT.search(share.secret_name)
    account = found[1] if found is not None else share.secret_name
    handle = "#".join((group, account, share.share_name, name, namespace))
    source = _plain(_AZURE_FILE, handle, "", share.read_only)
    return msgspec.structs.replace(
        source,
        volume_attributes={"sharename": share.share_name},
        node_stage_secret_ref=v1.SecretReference(name=share.secret_name, namespace=namespace),
    )


def _vsphere(disk: v1.VsphereVirtualDiskVolumeSource) -> v1.CSIPersistentVolumeSource:
    """The topology of its zones does not matter on the node it was scheduled to."""
    source = _plain(_VSPHERE, disk.volume_path, disk.fs_type, read_only=False)
    if not disk.storage_policy_name:
        return source
    return msgspec.structs.replace(source, volume_attributes={_POLICY: disk.storage_policy_name})


def _portworx(disk: v1.PortworxVolumeSource, annotations: dict[str, str]) -> v1.CSIPersistentVolumeSource:
    source = _plain(_PORTWORX, disk.volume_id, disk.fs_type, read_only=False)
    name, namespace = (annotations.get(key) for key in _SECRET)
    if name is None or namespace is None:
        return source
    ref = v1.SecretReference(name=name, namespace=namespace)
    return msgspec.structs.replace(
        source, node_stage_secret_ref=ref, node_publish_secret_ref=ref, node_expand_secret_ref=ref
    )
