"""The values that pod sources hand to PodConfig and PodConfig hands to the sync loop."""

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
