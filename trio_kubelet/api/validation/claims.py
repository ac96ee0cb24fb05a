"""The claim template of an ephemeral volume."""

from __future__ import annotations

from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.quantity import ZERO
from trio_kubelet.api.validation.formats import dns_label, dns_subdomain
from trio_kubelet.api.validation.metadata import validate_annotations, validate_labels
from trio_kubelet.api.validation.problems import Problems, amount
from trio_kubelet.api.validation.scheduling import validate_label_selector

_ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_VOLUME_MODES: Final = ("Block", "Filesystem")
_NOT_IN_TEMPLATES: Final = {
    "name": "name",
    "generate_name": "generateName",
    "namespace": "namespace",
    "self_link": "selfLink",
    "uid": "uID",  # as the API's own errors spell it
    "resource_version": "resourceVersion",
    "generation": "generation",
    "creation_timestamp": "creationTimestamp",
    "deletion_timestamp": "deletionTimestamp",
    "deletion_grace_period_seconds": "deletionGracePeriodSeconds",
    "owner_references": "ownerReferences",
    "finalizers": "finalizers",
}


def validate_claim_template(
    template: v1.PersistentVolumeClaimTemplate, here: str, problems: Problems
) -> None:
    metadata = template.metadata
    validate_annotations(metadata.annotations, f"{here}.metadata.annotations", problems)
    validate_labels(metadata.labels, f"{here}.metadata.labels", problems)
    empty = v1.ObjectMeta()
    for name, field in _NOT_IN_TEMPLATES.items():
        if getattr(metadata, name) != getattr(empty, name):
            problems.forbidden(f"{here}.metadata.{field}", "cannot be set")
    _claim(template.spec, f"{here}.spec", problems)


def _claim(spec: v1.PersistentVolumeClaimSpec, here: str, problems: Problems) -> None:
    modes = spec.access_modes or []
    if not modes:
        problems.required(f"{here}.accessModes", "at least 1 access mode is required")
    validate_label_selector(spec.selector, f"{here}.selector", problems)
    for mode in modes:
        if mode not in _ACCESS_MODES:
            problems.unsupported(f"{here}.accessModes", mode, _ACCESS_MODES)
    if "ReadWriteOncePod" in modes and set(modes) & set(_ACCESS_MODES[:3]):
        why = "may not use ReadWriteOncePod with other access modes"
        problems.forbidden(f"{here}.accessModes", why)
    storage = (spec.resources.requests or {}).get("storage")
    if storage is None:
        problems.required(f"{here}.resources[storage]")
    elif amount(storage).compare(ZERO) <= 0:
        problems.invalid(f"{here}.resources[storage]", storage, "must be greater than zero")
    if spec.storage_class_name:
        problems.check(f"{here}.storageClassName", spec.storage_class_name, dns_subdomain)
    if spec.volume_mode is not None and spec.volume_mode not in _VOLUME_MODES:
        problems.unsupported(f"{here}.volumeMode", spec.volume_mode, _VOLUME_MODES)
    _data_sources(spec, here, problems)
    if spec.volume_attributes_class_name:
        problems.check(f"{here}.volumeAttributesClassName", spec.volume_attributes_class_name, dns_subdomain)


def _data_sources(spec: v1.PersistentVolumeClaimSpec, here: str, problems: Problems) -> None:
    source, reference = spec.data_source, spec.data_source_ref
    for each, where in ((source, f"{here}.dataSource"), (reference, f"{here}.dataSourceRef")):
        if each is None:
            continue
        if not each.name:
            problems.required(f"{where}.name")
        if not each.kind:
            problems.required(f"{where}.kind")
        if each.api_group:
            problems.check(f"{where}.apiGroup", each.api_group, dns_subdomain)
        elif each.kind != "PersistentVolumeClaim":
            why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
            problems.invalid(where, each.kind, why)
    if reference is None:
        return
    if reference.namespace:
        problems.check(f"{here}.dataSourceRef.namespace", reference.namespace, dns_label)
        if source is not None:
            why = "may not be specified when dataSourceRef.namespace is specified"
            problems.invalid(here, {}, why)  # as the API shows a path
    elif source is not None and any(
        getattr(source, name) != getattr(reference, name) for name in ("api_group", "kind", "name")
    ):
        problems.invalid(here, {}, "must match dataSourceRef")
