"""Which objects of the API server a pod refers to, and how. Pure.

A node may read a config map or secret only while a pod on it refers to it, so this list decides what is
watched. Objects that are files in a volume have to be followed; what only fed variables or a pull does not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.api.containers import containers_with_path


class ReferenceKind(enum.StrEnum):
    """Kinds of objects pods read, as their paths name them."""

    CONFIG_MAPS = "configmaps"
    SECRETS = "secrets"


class Reference(NamedTuple):
    """One object."""

    resource: ReferenceKind
    namespace: str
    name: str


def references(pod: v1.Pod) -> dict[Reference, bool]:
    """Everything the pod refers to; true for what is shown in a volume of it."""
    found: dict[Reference, bool] = {}
    namespace = pod.metadata.namespace
    for resource, name in _outside_volumes(pod.spec):
        if name:
            found[Reference(resource, namespace, name)] = False
    for volume in pod.spec.volumes or ():
        for resource, name in _in_volume(volume):
            if name:
                found[Reference(resource, namespace, name)] = True
    return found


def _outside_volumes(spec: v1.PodSpec) -> Iterator[tuple[ReferenceKind, str]]:
    for pull_secret in spec.image_pull_secrets or ():
        yield ReferenceKind.SECRETS, pull_secret.name
    for container, _ in containers_with_path(spec):
        for source in container.env_from or ():
            if source.config_map_ref is not None:
                yield ReferenceKind.CONFIG_MAPS, source.config_map_ref.name
            if source.secret_ref is not None:
                yield ReferenceKind.SECRETS, source.secret_ref.name
        for variable in container.env or ():
            origin = variable.value_from
            if origin is not None and origin.config_map_key_ref is not None:
                yield ReferenceKind.CONFIG_MAPS, origin.config_map_key_ref.name
            if origin is not None and origin.secret_key_ref is not None:
                yield ReferenceKind.SECRETS, origin.secret_key_ref.name


def _in_volume(volume: v1.Volume) -> Iterator[tuple[ReferenceKind, str]]:
    if volume.config_map is not None:
        yield ReferenceKind.CONFIG_MAPS, volume.config_map.name
    if volume.secret is not None:
        yield ReferenceKind.SECRETS, volume.secret.secret_name
    for source in (volume.projected.sources or ()) if volume.projected is not None else ():
        if source.config_map is not None:
            yield ReferenceKind.CONFIG_MAPS, source.config_map.name
        if source.secret is not None:
            yield ReferenceKind.SECRETS, source.secret.name
