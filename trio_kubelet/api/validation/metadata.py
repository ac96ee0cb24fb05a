"""Names, labels, annotations, owners and finalizers, and the annotations that mean something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.annotations import (
    APPARMOR_CONTAINER_PREFIX,
    SECCOMP_CONTAINER_PREFIX,
    SECCOMP_POD_ANNOTATION,
)
from trio_kubelet.api.containers import all_containers
from trio_kubelet.api.managed_fields import ManifestMetadata
from trio_kubelet.api.pod_rules import PodRules
from trio_kubelet.api.tolerations import decimal_integer
from trio_kubelet.api.uid_text import internal_json
from trio_kubelet.api.validation.formats import (
    any_case_name,
    dns_label,
    dns_subdomain,
    label_value,
    prefix_of_name,
    qualified_name,
    relative_path,
)
from trio_kubelet.api.validation.problems import Problems
from trio_kubelet.api.validation.scheduling import validate_tolerations

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_TOLERATIONS_ANNOTATION: Final = "scheduler.alpha.kubernetes.io/tolerations"
_DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"

MAX_ANNOTATIONS: Final = 256 * 1024
_MAX_FIELD_MANAGER: Final = 128
_MAX_SUBRESOURCE: Final = 256
_FINALIZERS: Final = ("kubernetes", "orphan", "foregroundDeletion")


def validate_metadata(metadata: v1.ObjectMeta, problems: Problems) -> None:
    """What every namespaced object's metadata must satisfy."""
    here = "metadata"
    if metadata.generate_name:
        problems.check(f"{here}.generateName", metadata.generate_name, prefix_of_name)
    problems.named(f"{here}.name", metadata.name, dns_subdomain)
    problems.named(f"{here}.namespace", metadata.namespace, dns_label)
    problems.not_negative(f"{here}.generation", metadata.generation)
    validate_labels(metadata.labels, f"{here}.labels", problems)
    validate_annotations(metadata.annotations, f"{here}.annotations", problems)
    _owners(metadata.owner_references or [], f"{here}.ownerReferences", problems)
    _finalizers(metadata.finalizers or [], f"{here}.finalizers", problems)
    if isinstance(metadata, ManifestMetadata):
        for index, entry in enumerate(metadata.managed_fields or ()):
            _managed(entry, f"{here}.managedFields[{index}]", problems)
    for index, finalizer in enumerate(metadata.finalizers or ()):
        if "/" not in finalizer and finalizer not in _FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            problems.invalid(f"{here}.finalizers[{index}]", finalizer, why)


def validate_labels(labels: Mapping[str, str] | None, here: str, problems: Problems) -> None:
    for key, value in (labels or {}).items():
        problems.check(here, key, qualified_name)
        problems.check(here, value, label_value)


def validate_annotations(annotations: Mapping[str, str] | None, here: str, problems: Problems) -> None:
    size = 0
    for key, value in (annotations or {}).items():
        problems.check(here, key, any_case_name)
        size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATIONS:
        problems.too_long(here, MAX_ANNOTATIONS)


def _owners(owners: list[v1.OwnerReference], here: str, problems: Problems) -> None:
    controller = ""
    for owner in owners:
        version = owner.api_version.rpartition("/")[2]
        if not version or owner.api_version.count("/") > 1:
            problems.invalid(f"{here}.apiVersion", owner.api_version, "version must not be empty")
        for field, value in (("kind", owner.kind), ("name", owner.name), ("uid", owner.uid)):
            if not value:
                problems.invalid(f"{here}.{field}", value, "must not be empty")
        if (owner.api_version.removeprefix("/"), owner.kind) == ("v1", "Event"):
            why = "/v1, Kind=Event is disallowed from being an owner"
            problems.invalid(here, internal_json("v1.OwnerReference", owner), why)
        if owner.controller:
            if controller:
                both = f"{controller} and {owner.kind}/{owner.name}"
                why = f'Found "true" in references for {both}'
                why = f"Only one reference can have Controller set to true. {why}"
                problems.invalid(here, internal_json("[]v1.OwnerReference", owners), why)
            controller = controller or f"{owner.kind}/{owner.name}"


def _finalizers(finalizers: list[str], here: str, problems: Problems) -> None:
    for finalizer in finalizers:
        problems.check(here, finalizer, qualified_name)
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        why = "finalizer orphan and foregroundDeletion cannot be both set"
        problems.invalid(here, finalizers, why)


def _managed(entry: v1.ManagedFieldsEntry, here: str, problems: Problems) -> None:
    if entry.operation not in ("Apply", "Update"):
        problems.invalid(f"{here}.operation", entry.operation, "must be `Apply` or `Update`")
    if entry.fields_type not in ("", "FieldsV1"):
        problems.invalid(f"{here}.fieldsType", entry.fields_type, "must be `FieldsV1`")
    manager = entry.manager.encode()
    if len(manager) > _MAX_FIELD_MANAGER:
        problems.too_long(f"{here}.manager", _MAX_FIELD_MANAGER)
    position = 0
    for char in entry.manager:
        if not char.isprintable():
            why = f"invalid character U+{ord(char):04X} (at position {position})"
            problems.invalid(f"{here}.manager", entry.manager, why)
        position += len(char.encode())
    if len(entry.subresource.encode()) > _MAX_SUBRESOURCE:
        problems.too_long(f"{here}.subresource", _MAX_SUBRESOURCE)


def validate_pod_annotations(pod: v1.Pod, rules: PodRules, problems: Problems) -> None:
    """Annotations that carry settings of older releases, and a few newer ones."""
    here = "metadata.annotations"
    annotations = pod.metadata.annotations or {}
    if MIRROR_ANNOTATION in annotations and not pod.spec.node_name:
        why = "must set spec.nodeName if mirror pod annotation is set"
        problems.invalid(f"{here}[{MIRROR_ANNOTATION}]", annotations[MIRROR_ANNOTATION], why)
    if annotations.get(_TOLERATIONS_ANNOTATION):
        _tolerations(annotations[_TOLERATIONS_ANNOTATION], here, rules, problems)
    cost = annotations.get(_DELETION_COST_ANNOTATION)
    if rules.deletion_cost and cost is not None and decimal_integer(cost, 32) is None:
        problems.invalid(f"{here}[{_DELETION_COST_ANNOTATION}]", cost, "must be a 32bit integer")
    names = {container.name for container in all_containers(pod.spec)}
    for key, value in annotations.items():
        if key == SECCOMP_POD_ANNOTATION or key.startswith(SECCOMP_CONTAINER_PREFIX):
            _seccomp(value, f"{here}.{key}", problems)
        if key.startswith(APPARMOR_CONTAINER_PREFIX):
            container = key.removeprefix(APPARMOR_CONTAINER_PREFIX)
            if container not in names:
                problems.invalid(f"{here}[{key}]", container, "container not found")
            if value not in ("", "runtime/default", "unconfined") and not value.startswith("localhost/"):
                why = f"invalid AppArmor profile name: {json.dumps(value, ensure_ascii=False)}"
                problems.invalid(f"{here}[{key}]", value, why)


def _tolerations(text: str, here: str, rules: PodRules, problems: Problems) -> None:
    try:
        entries = json.loads(text)
        tolerations = [
            v1.Toleration(
                key=entry.get("key", ""),
                operator=entry.get("operator", ""),
                value=entry.get("value", ""),
                effect=entry.get("effect", ""),
                toleration_seconds=entry.get("tolerationSeconds"),
            )
            for entry in entries or ()
        ]
    except (ValueError, AttributeError, TypeError):
        problems.invalid(here, _TOLERATIONS_ANNOTATION, "must be a JSON list of tolerations")
        return
    validate_tolerations(tolerations, f"{here}.{_TOLERATIONS_ANNOTATION}", rules, problems)


def _seccomp(profile: str, here: str, problems: Problems) -> None:
    if profile in ("runtime/default", "docker/default", "unconfined"):
        return
    if profile.startswith("localhost/"):
        problems.check(here, profile.removeprefix("localhost/"), relative_path)
    else:
        problems.invalid(here, profile, "must be a valid seccomp profile")
