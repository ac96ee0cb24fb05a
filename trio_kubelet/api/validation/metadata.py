"""Names, labels, annotations, owners and finalizers, and the annotations that mean something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import all_containers
from trio_kubelet.api.pod_rules import PodRules
from trio_kubelet.api.tolerations import decimal_integer
from trio_kubelet.api.validation.formats import (
    dns_label,
    dns_subdomain,
    label_value,
    masked_prefix,
    qualified_name,
    relative_path,
)
from trio_kubelet.api.validation.problems import Problems
from trio_kubelet.api.validation.scheduling import validate_tolerations

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
SECCOMP_POD_ANNOTATION: Final = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_CONTAINER_PREFIX: Final = "container.seccomp.security.alpha.kubernetes.io/"
APPARMOR_CONTAINER_PREFIX: Final = "container.apparmor.security.beta.kubernetes.io/"
_TOLERATIONS_ANNOTATION: Final = "scheduler.alpha.kubernetes.io/tolerations"
_DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"

_MAX_ANNOTATIONS: Final = 256 * 1024
_FINALIZERS: Final = ("kubernetes", "orphan", "foregroundDeletion")


def validate_metadata(metadata: v1.ObjectMeta, problems: Problems) -> None:
    """What every namespaced object's metadata must satisfy."""
    here = "metadata"
    if metadata.generate_name:
        masked = masked_prefix(metadata.generate_name)
        if dns_subdomain(masked):
            problems.invalid(f"{here}.generateName", metadata.generate_name, "is no prefix of a name")
    problems.named(f"{here}.name", metadata.name, dns_subdomain)
    problems.named(f"{here}.namespace", metadata.namespace, dns_label)
    problems.not_negative(f"{here}.generation", metadata.generation)
    validate_labels(metadata.labels, f"{here}.labels", problems)
    validate_annotations(metadata.annotations, f"{here}.annotations", problems)
    _owners(metadata.owner_references or [], f"{here}.ownerReferences", problems)
    _finalizers(metadata.finalizers or [], f"{here}.finalizers", problems)


def validate_labels(labels: Mapping[str, str] | None, here: str, problems: Problems) -> None:
    for key, value in (labels or {}).items():
        problems.check(here, key, qualified_name)
        problems.check(here, value, label_value)


def validate_annotations(annotations: Mapping[str, str] | None, here: str, problems: Problems) -> None:
    size = 0
    for key, value in (annotations or {}).items():
        if qualified_name(key.lower()):
            problems.check(here, key, lambda name: qualified_name(name.lower()))
        size += len(key.encode()) + len(value.encode())
    if size > _MAX_ANNOTATIONS:
        problems.add(here, f"is too long: more than {_MAX_ANNOTATIONS} bytes")


def _owners(owners: list[v1.OwnerReference], here: str, problems: Problems) -> None:
    controller = ""
    for owner in owners:
        version = owner.api_version.rpartition("/")[2]
        if not version or owner.api_version.count("/") > 1:
            problems.invalid(f"{here}.apiVersion", owner.api_version, "must name a version")
        for field, value in (("kind", owner.kind), ("name", owner.name), ("uid", owner.uid)):
            if not value:
                problems.invalid(f"{here}.{field}", value, "must not be empty")
        if (owner.api_version.removeprefix("/"), owner.kind) == ("v1", "Event"):
            problems.invalid(here, owner.name, "an event owns nothing")
        if owner.controller:
            if controller:
                problems.invalid(here, owner.name, f"{controller} is the controller already")
            controller = controller or f"{owner.kind}/{owner.name}"


def _finalizers(finalizers: list[str], here: str, problems: Problems) -> None:
    for finalizer in finalizers:
        problems.check(here, finalizer, qualified_name)
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        problems.invalid(here, finalizers, "orphan and foregroundDeletion exclude each other")
    for index, finalizer in enumerate(finalizers):
        if "/" not in finalizer and finalizer not in _FINALIZERS:
            problems.invalid(f"{here}[{index}]", finalizer, "must be a standard finalizer or have a domain")


def validate_pod_annotations(pod: v1.Pod, rules: PodRules, problems: Problems) -> None:
    """Annotations that carry settings of older releases, and a few newer ones."""
    here = "metadata.annotations"
    annotations = pod.metadata.annotations or {}
    if MIRROR_ANNOTATION in annotations and not pod.spec.node_name:
        problems.invalid(
            f"{here}[{MIRROR_ANNOTATION}]", annotations[MIRROR_ANNOTATION], "needs spec.nodeName"
        )
    if annotations.get(_TOLERATIONS_ANNOTATION):
        _tolerations(annotations[_TOLERATIONS_ANNOTATION], here, rules, problems)
    cost = annotations.get(_DELETION_COST_ANNOTATION)
    if rules.deletion_cost and cost is not None and decimal_integer(cost, 32) is None:
        problems.invalid(f"{here}[{_DELETION_COST_ANNOTATION}]", cost, "must be a 32 bit integer")
    names = {container.name for container in all_containers(pod.spec)}
    for key, value in annotations.items():
        if key == SECCOMP_POD_ANNOTATION or key.startswith(SECCOMP_CONTAINER_PREFIX):
            _seccomp(value, f"{here}.{key}", problems)
        if key.startswith(APPARMOR_CONTAINER_PREFIX):
            container = key.removeprefix(APPARMOR_CONTAINER_PREFIX)
            if container not in names:
                problems.invalid(f"{here}[{key}]", container, "is no container of the pod")
            if value not in ("", "runtime/default", "unconfined") and not value.startswith("localhost/"):
                problems.invalid(f"{here}[{key}]", value, "must be an AppArmor profile")


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
        problems.invalid(here, profile, "must be a seccomp profile")
