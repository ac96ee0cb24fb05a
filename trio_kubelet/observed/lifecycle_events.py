"""Pod lifecycle events: what the PLEG tells the sync loop (names and values as the kubelet's)."""

from __future__ import annotations

import enum
from typing import NamedTuple


class PodLifecycleEventType(enum.StrEnum):
    """What happened to a container (or sandbox) of a pod."""

    CONTAINER_STARTED = "ContainerStarted"
    CONTAINER_DIED = "ContainerDied"
    CONTAINER_REMOVED = "ContainerRemoved"
    POD_SYNC = "PodSync"
    CONTAINER_CHANGED = "ContainerChanged"


class PodLifecycleEvent(NamedTuple):
    """One change of a pod; `data` is the id of the container or sandbox it is about."""

    pod_uid: str
    type: PodLifecycleEventType
    data: str
