"""What a static pod may not refer to: objects of an API server it must be able to run without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path
from trio_kubelet.api.errors import FieldError
from trio_kubelet.api.pod_rules import DEFAULT_RULES, PodRules

# Sources that live on the API server, by attribute; the rest is local or reached over the network.
_API_VOLUMES: Final = {
    "config_map": "configmaps (via configmap volumes)",
    "secret": "secrets (via secret volumes)",
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistent_volume_claim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azure_file": "secrets (via azureFile volumes)",
}
_API_PROJECTIONS: Final = {
    "config_map": "configmaps (via projected volumes)",
    "secret": "secrets (via projected volumes)",
    "service_account_token": "serviceaccounts (via projected volumes)",
    "cluster_trust_bundle": "clustertrustbundles",
    "pod_certificate": "podcertificates",
}
_SECRET_REFERENCES: Final = (
    "cephfs", "cinder", "flex_volume", "rbd", "scale_io", "iscsi", "storageos",
)  # fmt: skip


def api_reference(pod: v1.Pod, rules: PodRules = DEFAULT_RULES) -> FieldError | None:
    """The first reference to an API object, or None (kubelet: `HasAPIObjectReference`).

    Where such references are allowed, it is the first that no static pod may have.
    """
    if rules.api_references:
        return _reference_for_nobody(pod.spec)
    spec = pod.spec
    if spec.service_account_name:
        return _refused("spec.serviceAccountName", "serviceaccounts")
    for field in _secrets(spec):
        return _refused(field, "secrets")
    for field in _config_maps(spec):
        return _refused(field, "configmaps")
    if spec.resource_claims:
        return _refused("spec.resourceClaims", "resourceclaims")
    for index, volume in enumerate(spec.volumes or ()):
        here = f"spec.volumes[{index}]"
        for attribute, resource in _API_VOLUMES.items():
            if getattr(volume, attribute) is not None:
                return _refused(here, resource)
        for position, source in enumerate((volume.projected.sources or ()) if volume.projected else ()):
            where = f"{here}.projected.sources[{position}]"
            for attribute, resource in _API_PROJECTIONS.items():
                if getattr(source, attribute) is not None:
                    return _refused(where, resource)
            if source.downward_api is None:
                return FieldError(where, "is no source this agent knows")
    return None


def _reference_for_nobody(spec: v1.PodSpec) -> FieldError | None:
    for index, volume in enumerate(spec.volumes or ()):
        for position, source in enumerate((volume.projected.sources or ()) if volume.projected else ()):
            if source.cluster_trust_bundle is not None:
                where = f"spec.volumes[{index}].projected.sources[{position}]"
                return FieldError(
                    where, "static pods may not use ClusterTrustBundle projected volume sources"
                )
    if spec.resource_claims:
        return FieldError("spec.resourceClaims", "static pods may not use ResourceClaims")
    return None


def _refused(field: str, resource: str) -> FieldError:
    return FieldError(field, f"static pods may not reference {resource}")


def _secrets(spec: v1.PodSpec) -> Iterator[str]:
    """The fields that name a secret."""
    for index, reference in enumerate(spec.image_pull_secrets or ()):
        if reference.name:
            yield f"spec.imagePullSecrets[{index}]"
    for container, here in containers_with_path(spec):
        for index, source in enumerate(container.env_from or ()):
            if source.secret_ref is not None and source.secret_ref.name:
                yield f"{here}.envFrom[{index}].secretRef"
        for index, variable in enumerate(container.env or ()):
            key = variable.value_from.secret_key_ref if variable.value_from is not None else None
            if key is not None and key.name:
                yield f"{here}.env[{index}].valueFrom.secretKeyRef"
    for index, volume in enumerate(spec.volumes or ()):
        if _has_secret(volume):
            yield f"spec.volumes[{index}]"


def _has_secret(volume: v1.Volume) -> bool:
    if volume.azure_file is not None:
        return bool(volume.azure_file.secret_name)
    if volume.secret is not None:
        return bool(volume.secret.secret_name)
    if volume.csi is not None:
        secret = volume.csi.node_publish_secret_ref
        return secret is not None and bool(secret.name)
    if volume.projected is not None:
        sources = volume.projected.sources or ()
        return any(source.secret is not None and source.secret.name for source in sources)
    return any(
        getattr(volume, name) is not None
        and getattr(volume, name).secret_ref is not None
        and bool(getattr(volume, name).secret_ref.name)
        for name in _SECRET_REFERENCES
    )


def _config_maps(spec: v1.PodSpec) -> Iterator[str]:
    """The fields that name a config map."""
    for container, here in containers_with_path(spec):
        for index, source in enumerate(container.env_from or ()):
            if source.config_map_ref is not None and source.config_map_ref.name:
                yield f"{here}.envFrom[{index}].configMapRef"
        for index, variable in enumerate(container.env or ()):
            key = variable.value_from.config_map_key_ref if variable.value_from is not None else None
            if key is not None and key.name:
                yield f"{here}.env[{index}].valueFrom.configMapKeyRef"
    for index, volume in enumerate(spec.volumes or ()):
        if volume.config_map is not None and volume.config_map.name:
            yield f"spec.volumes[{index}]"
        for projected in (volume.projected.sources or ()) if volume.projected is not None else ():
            if projected.config_map is not None and projected.config_map.name:
                yield f"spec.volumes[{index}]"
