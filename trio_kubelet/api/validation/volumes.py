"""Volumes: exactly one source each, and the rules of every source."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from trio_kubelet.api import v1
from trio_kubelet.api.validation.claims import validate_claim_template
from trio_kubelet.api.validation.downward import validate_field_selector, validate_resource_selector
from trio_kubelet.api.validation.formats import (
    between,
    dns_label,
    dns_subdomain,
    file_in_volume,
    path_without_backsteps,
    relative_path,
)
from trio_kubelet.api.validation.problems import Problems, is_negative
from trio_kubelet.api.validation.projections import validate_projected

_HOST_PATH_TYPES: Final = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_DOWNWARD_FILE_FIELDS: Final = (
    "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
)  # fmt: skip
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_ISCSI_NAMES: Final = {
    "iqn": re.compile(r"iqn\.\d{4}-\d{2}\.([A-Za-z0-9.-]+)(:[^,;*&$|\s]+)\Z", re.ASCII),
    "eui": re.compile(r"^eui.[A-Za-z0-9]{16}\Z"),
    "naa": re.compile(r"^naa.[A-Za-z0-9]{32}\Z"),
}

_AZURE_DISKS: Final = {
    True: (
        "/subscriptions/",
        "{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
    ),
    False: ("https://", "{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"),
}
_TOO_LONG_FOR_ISCSI: Final = (
    "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is"
    " specified."
)
_LONGEST_DRIVER: Final = 63

_Check = Callable[[Any, str, Problems], None]


def validate_volumes(
    volumes: Sequence[v1.Volume], pod_name: str, here: str, problems: Problems
) -> dict[str, v1.Volume]:
    """Check the volumes; returns the valid ones by name, which containers may mount."""
    valid: dict[str, v1.Volume] = {}
    created_claims = {f"{pod_name}-{volume.name}" for volume in volumes if volume.ephemeral is not None}
    for index, volume in enumerate(volumes):
        where = f"{here}[{index}]"
        found = len(problems.found)
        _source(volume, pod_name, where, problems)
        problems.named(f"{where}.name", volume.name, dns_label)
        if volume.name in valid:
            problems.duplicate(f"{where}.name", volume.name)
        if len(problems.found) == found:
            valid[volume.name] = volume
        claim = volume.persistent_volume_claim
        if claim is not None and claim.claim_name in created_claims:
            name = f"{where}.persistentVolumeClaim.claimName"
            why = "must not reference a PVC that gets created for an ephemeral volume"
            problems.invalid(name, claim.claim_name, why)
    return valid


def _source(volume: v1.Volume, pod_name: str, here: str, problems: Problems) -> None:
    count = 0
    for attribute, name, extra_name, check in _SOURCES:
        source = getattr(volume, attribute)
        if source is None:
            continue
        count += 1
        if count > 1:
            problems.forbidden(f"{here}.{extra_name}", "may not specify more than 1 volume type")
        else:
            check(source, f"{here}.{name}", problems)
        if attribute == "iscsi" and _is_too_long(volume, source):
            problems.invalid(f"{here}.name", volume.name, _TOO_LONG_FOR_ISCSI)
        if attribute == "ephemeral" and count == 1 and volume.name:
            claim = f"{pod_name}-{volume.name}"
            for why in dns_subdomain(claim):
                problems.invalid(f"{here}.name", volume.name, f'PVC name "{claim}": {why}')
    if count == 0:
        problems.required(here, "must specify a volume type")


def _is_too_long(volume: v1.Volume, iscsi: v1.ISCSIVolumeSource) -> bool:
    """With an own initiator name, volume name and portal together name the connection."""
    joined = f"{volume.name}:{iscsi.target_portal}"
    return iscsi.initiator_name is not None and len(joined.encode()) > 64


def _empty_dir(source: v1.EmptyDirVolumeSource, here: str, problems: Problems) -> None:
    if source.size_limit is not None and is_negative(source.size_limit):
        problems.forbidden(f"{here}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _host_path(source: v1.HostPathVolumeSource, here: str, problems: Problems) -> None:
    if not source.path:
        problems.required(f"{here}.path")
        return
    problems.check(f"{here}.path", source.path, path_without_backsteps)
    if source.type is not None and source.type not in _HOST_PATH_TYPES:
        problems.unsupported(f"{here}.type", source.type, _HOST_PATH_TYPES)


def _git_repo(source: v1.GitRepoVolumeSource, here: str, problems: Problems) -> None:
    if not source.repository:
        problems.required(f"{here}.repository")
    problems.check(f"{here}.directory", source.directory, relative_path)


def _disk(field: str, attribute: str) -> _Check:
    def check(source: Any, here: str, problems: Problems) -> None:
        if not getattr(source, attribute):
            problems.required(f"{here}.{field}")
        if not 0 <= source.partition <= 255:
            # The words are the API's; 0 is allowed.
            problems.invalid(f"{here}.partition", source.partition, between(1, 255))

    return check


def _key_files(
    source: v1.SecretVolumeSource | v1.ConfigMapVolumeSource, here: str, problems: Problems
) -> None:
    problems.file_mode(f"{here}.defaultMode", source.default_mode)
    for index, item in enumerate(source.items or ()):
        validate_key_to_path(item, f"{here}.items[{index}]", problems)


def _secret(source: v1.SecretVolumeSource, here: str, problems: Problems) -> None:
    if not source.secret_name:
        problems.required(f"{here}.secretName")
    _key_files(source, here, problems)


def _config_map(source: v1.ConfigMapVolumeSource, here: str, problems: Problems) -> None:
    if not source.name:
        problems.required(f"{here}.name")
    _key_files(source, here, problems)


def validate_key_to_path(item: v1.KeyToPath, here: str, problems: Problems) -> None:
    """One key of a secret or config map and the file it becomes."""
    if not item.key:
        problems.required(f"{here}.key")
    problems.named(f"{here}.path", item.path, file_in_volume)
    problems.file_mode(f"{here}.mode", item.mode)


def _nfs(source: v1.NFSVolumeSource, here: str, problems: Problems) -> None:
    if not source.server:
        problems.required(f"{here}.server")
    if not source.path:
        problems.required(f"{here}.path")
    if not source.path.startswith("/"):
        problems.invalid(f"{here}.path", source.path, "must be an absolute path")


def _iscsi(source: v1.ISCSIVolumeSource, here: str, problems: Problems) -> None:
    if not source.target_portal:
        problems.required(f"{here}.targetPortal")
    problems.named(f"{here}.iqn", source.iqn, _iscsi_name)
    if not 0 <= source.lun <= 255:
        problems.invalid(f"{here}.lun", source.lun, between(0, 255))
    if (source.chap_auth_discovery or source.chap_auth_session) and source.secret_ref is None:
        problems.required(f"{here}.secretRef")
    if source.initiator_name is not None:
        problems.check(f"{here}.initiatorname", source.initiator_name, _iscsi_name)


def _iscsi_name(name: str) -> list[str]:
    pattern = _ISCSI_NAMES.get(name[:3])
    if pattern is None:
        return ["must be valid format starting with iqn, eui, or naa"]
    return [] if pattern.search(name) else ["must be valid format"]


def _flocker(source: v1.FlockerVolumeSource, here: str, problems: Problems) -> None:
    if not source.dataset_name and not source.dataset_uuid:
        problems.required(here, "one of datasetName and datasetUUID is required")
    if source.dataset_name and source.dataset_uuid:
        why = "datasetName and datasetUUID can not be specified simultaneously"
        problems.invalid(here, "resource", why)
    if "/" in source.dataset_name:
        problems.invalid(f"{here}.datasetName", source.dataset_name, "must not contain '/'")


def _quobyte(source: v1.QuobyteVolumeSource, here: str, problems: Problems) -> None:
    pairs = "must be a host:port pair or multiple pairs separated by commas"
    if not source.registry:
        problems.required(f"{here}.registry", pairs)
    elif len(source.tenant.encode()) >= 65:
        why = "must be a UUID and may not exceed a length of 64 characters"
        problems.required(f"{here}.tenant", why)
    else:
        for pair in source.registry.split(","):
            if not _is_host_port(pair):
                problems.invalid(f"{here}.registry", source.registry, pairs)
    if not source.volume:
        problems.required(f"{here}.volume")


def _is_host_port(pair: str) -> bool:
    return re.fullmatch(r"(\[[^\[\]]*\]|[^:\[\]]*):[^:\[\]]*", pair) is not None


def _fc(source: v1.FCVolumeSource, here: str, problems: Problems) -> None:
    if not source.target_wwns and not source.wwids:
        why = "must specify either targetWWNs or wwids, but not both"
        problems.required(f"{here}.targetWWNs", why)
    if source.target_wwns and source.wwids:
        why = "targetWWNs and wwids can not be specified simultaneously"
        problems.invalid(f"{here}.targetWWNs", source.target_wwns, why)
    if source.target_wwns:
        if source.lun is None:
            problems.required(f"{here}.lun", "lun is required if targetWWNs is specified")
        elif not 0 <= source.lun <= 255:
            problems.invalid(f"{here}.lun", source.lun, between(0, 255))


def _flex(source: v1.FlexVolumeSource, here: str, problems: Problems) -> None:
    if not source.driver:
        problems.required(f"{here}.driver")
    for key in source.options or {}:
        domain = "." + key.partition("/")[0].lower()
        if domain.endswith((".kubernetes.io", ".k8s.io")):
            why = "kubernetes.io and k8s.io namespaces are reserved"
            problems.invalid(f"{here}.options[{key}]", key, why)


def _azure_disk(source: v1.AzureDiskVolumeSource, here: str, problems: Problems) -> None:
    if not source.disk_name:
        problems.required(f"{here}.diskName")
    if not source.disk_uri:
        problems.required(f"{here}.diskURI")
    for value, field, supported in (
        (source.caching_mode, "cachingMode", ("None", "ReadOnly", "ReadWrite")),
        (source.kind, "kind", ("Dedicated", "Managed", "Shared")),
    ):
        if value is not None and value not in supported:
            problems.unsupported(f"{here}.{field}", value, supported)
    if source.kind is not None:
        start, rest = _AZURE_DISKS[source.kind == "Managed"]
        if not source.disk_uri.startswith(start):
            problems.unsupported(f"{here}.diskURI", source.disk_uri, (start + rest,))


def _storageos(source: v1.StorageOSVolumeSource, here: str, problems: Problems) -> None:
    problems.named(f"{here}.volumeName", source.volume_name, dns_label)
    if source.volume_namespace:
        problems.check(f"{here}.volumeNamespace", source.volume_namespace, dns_label)
    _secret_ref(source.secret_ref, f"{here}.secretRef", problems)


def _secret_ref(reference: v1.LocalObjectReference | None, here: str, problems: Problems) -> None:
    if reference is not None and not reference.name:
        problems.required(f"{here}.name")


def _cinder(source: v1.CinderVolumeSource, here: str, problems: Problems) -> None:
    if not source.volume_id:
        problems.required(f"{here}.volumeID")
    _secret_ref(source.secret_ref, f"{here}.secretRef", problems)


def _csi(source: v1.CSIVolumeSource, here: str, problems: Problems) -> None:
    if not source.driver:
        problems.required(f"{here}.driver")
    else:
        if len(source.driver.encode()) > _LONGEST_DRIVER:
            problems.too_long(f"{here}.driver", _LONGEST_DRIVER)
        for why in dns_subdomain(source.driver.lower()):
            problems.invalid(f"{here}.driver", source.driver, why)
    secret = source.node_publish_secret_ref
    _secret_ref(secret, f"{here}.nodePublishSecretRef", problems)
    if secret is not None and secret.name:
        problems.check(f"{here}.name", secret.name, dns_subdomain)


def _downward(source: v1.DownwardAPIVolumeSource, here: str, problems: Problems) -> None:
    problems.file_mode(f"{here}.defaultMode", source.default_mode)
    for item in source.items or ():
        validate_downward_file(item, here, problems)


def validate_downward_file(file: v1.DownwardAPIVolumeFile, here: str, problems: Problems) -> None:
    """One file of pod information."""
    problems.named(f"{here}.path", file.path, file_in_volume)
    if file.field_ref is not None:
        validate_field_selector(file.field_ref, _DOWNWARD_FILE_FIELDS, f"{here}.fieldRef", problems)
        if file.resource_field_ref is not None:
            why = "fieldRef and resourceFieldRef can not be specified simultaneously"
            problems.invalid(here, "resource", why)
    elif file.resource_field_ref is not None:
        where = f"{here}.resourceFieldRef"
        validate_resource_selector(file.resource_field_ref, where, problems, needs_container=True)
    else:
        problems.required(here, "one of fieldRef and resourceFieldRef is required")
    problems.file_mode(f"{here}.mode", file.mode)


def _projected(source: v1.ProjectedVolumeSource, here: str, problems: Problems) -> None:
    problems.file_mode(f"{here}.defaultMode", source.default_mode)
    validate_projected(source.sources or [], here, problems, validate_key_to_path, validate_downward_file)


def _ephemeral(source: v1.EphemeralVolumeSource, here: str, problems: Problems) -> None:
    if source.volume_claim_template is None:
        problems.required(f"{here}.volumeClaimTemplate")
    else:
        validate_claim_template(source.volume_claim_template, f"{here}.volumeClaimTemplate", problems)


def _image(source: v1.ImageVolumeSource, here: str, problems: Problems) -> None:
    problems.one_of(f"{here}.pullPolicy", source.pull_policy, PULL_POLICIES)


def _needs(**fields: str) -> _Check:
    """A source of which some fields must not be empty: attribute → name in the API."""

    def check(source: Any, here: str, problems: Problems) -> None:
        for attribute, name in fields.items():
            if not getattr(source, attribute):
                problems.required(f"{here}.{name}")

    return check


# Attribute, name in errors, name in the error that it is one source too many, rules.
_SOURCES: Final[Sequence[tuple[str, str, str, _Check]]] = (
    ("empty_dir", "emptyDir", "emptyDir", _empty_dir),
    ("host_path", "hostPath", "hostPath", _host_path),
    ("git_repo", "gitRepo", "gitRepo", _git_repo),
    ("gce_persistent_disk", "persistentDisk", "gcePersistentDisk", _disk("pdName", "pd_name")),
    (
        "aws_elastic_block_store", "awsElasticBlockStore", "awsElasticBlockStore",
        _disk("volumeID", "volume_id"),
    ),
    ("secret", "secret", "secret", _secret),
    ("nfs", "nfs", "nfs", _nfs),
    ("iscsi", "iscsi", "iscsi", _iscsi),
    ("glusterfs", "glusterfs", "glusterfs", _needs(endpoints="endpoints", path="path")),
    ("flocker", "flocker", "flocker", _flocker),
    (
        "persistent_volume_claim", "persistentVolumeClaim", "persistentVolumeClaim",
        _needs(claim_name="claimName"),
    ),
    ("rbd", "rbd", "rbd", _needs(monitors="monitors", image="image")),
    ("cinder", "cinder", "cinder", _cinder),
    ("cephfs", "cephfs", "cephFS", _needs(monitors="monitors")),
    ("quobyte", "quobyte", "quobyte", _quobyte),
    # The API itself misspells this one.
    ("downward_api", "downwardAPI", "downwarAPI", _downward),
    ("fc", "fc", "fc", _fc),
    ("flex_volume", "flexVolume", "flexVolume", _flex),
    ("config_map", "configMap", "configMap", _config_map),
    ("azure_file", "azureFile", "azureFile", _needs(secret_name="secretName", share_name="shareName")),
    ("vsphere_volume", "vsphereVolume", "vsphereVolume", _needs(volume_path="volumePath")),
    ("photon_persistent_disk", "photonPersistentDisk", "photonPersistentDisk", _needs(pd_id="pdID")),
    ("portworx_volume", "portworxVolume", "portworxVolume", _needs(volume_id="volumeID")),
    ("azure_disk", "azureDisk", "azureDisk", _azure_disk),
    ("storageos", "storageos", "storageos", _storageos),
    ("projected", "projected", "projected", _projected),
    ("scale_io", "scaleIO", "scaleIO", _needs(gateway="gateway", system="system", volume_name="volumeName")),
    ("csi", "csi", "csi", _csi),
    ("ephemeral", "ephemeral", "ephemeral", _ephemeral),
    ("image", "image", "image", _image),
)  # fmt: skip
