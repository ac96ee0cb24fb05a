"""What pod sources hand to PodConfig and PodConfig hands to the sync loop, and where a pod comes from.

Rules as in the kubelet (`pkg/kubelet/types`): a pod whose source is not the API server is static; a mirror
pod is the API server's picture of a static pod and is never run itself.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from trio_kubelet.api.v1 import Pod

FILE_SOURCE = "file"
HTTP_SOURCE = "http"
API_SOURCE = "api"

CONFIG_SOURCE_ANNOTATION = "kubernetes.io/config.source"
CONFIG_SEEN_ANNOTATION = "kubernetes.io/config.seen"
CONFIG_HASH_ANNOTATION = "kubernetes.io/config.hash"
CONFIG_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


class PodOperation(enum.Enum):
    """What an update does with the pods of its source (kubelet: `kubetypes.PodOperation`)."""

    SET = enum.auto()
    ADD = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()
    REMOVE = enum.auto()
    RECONCILE = enum.auto()


class PodUpdate(NamedTuple):
    """Pods of one source and what is to be done with them."""

    op: PodOperation
    source: str
    pods: tuple[Pod, ...]


def pod_source(pod: Pod) -> str:
    """The source that delivered the pod, "" when it does not say."""
    return (pod.metadata.annotations or {}).get(CONFIG_SOURCE_ANNOTATION, "")


def is_static(pod: Pod) -> bool:
    """Whether the pod was delivered by a file or URL."""
    return pod_source(pod) not in ("", API_SOURCE)


def may_be_of_api(uid: str) -> bool:
    """Whether a pod of that UID may be the API server's: those made up for manifests have no dashes."""
    return "-" in uid


def is_mirror(pod: Pod) -> bool:
    """Whether the pod is the API server's picture of a static pod."""
    return CONFIG_MIRROR_ANNOTATION in (pod.metadata.annotations or {})


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Whether the mirror shows this very version of the static pod, not an earlier one of the same name."""
    shown = (mirror.metadata.annotations or {}).get(CONFIG_MIRROR_ANNOTATION)
    return shown is not None and shown == (pod.metadata.annotations or {}).get(CONFIG_HASH_ANNOTATION)
