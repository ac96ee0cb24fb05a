"""What a relist tells and how it fails: the values both relist tables (C and pure Python) speak in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from trio_kubelet.observed.types import ContainerState, PodLifecycleEvent

ListName: TypeAlias = Literal["sandboxes", "containers"]
ListAnswer: TypeAlias = bytes | Iterable[bytes]
"""A list answer undecoded: the one message of the unary call, or the messages of the stream in order."""


class MalformedList(ValueError):
    """A list answer that is not a well-formed protobuf message; nothing of it was used.

    `list` names the list, `message` is the index of the message in it (0 for a unary answer),
    `offset` the byte in that message where reading stopped, `reason` what was wrong there.
    """

    def __init__(self, list_name: ListName, message: int, offset: int, reason: str) -> None:
        super().__init__(f"malformed list of {list_name}: message {message}, offset {offset}: {reason}")
        self.list: ListName = list_name
        self.message = message
        self.offset = offset
        self.reason = reason


class PodChange(NamedTuple):
    """A pod whose containers or sandboxes differ from what was last committed.

    The events stand in the kubelet's order: what the pod had (containers, then sandboxes), then what
    is new, each newest first.
    """

    uid: str
    events: tuple[PodLifecycleEvent, ...]


class ListedContainer(NamedTuple):
    """A container in the last relist.

    Only `state` and `created_at_ns` follow every relist. The other fields cannot change during a
    container's life (CRI) and are those of the list in which it appeared (or was created anew).
    """

    id: str
    name: str
    state: ContainerState
    created_at_ns: int
    sandbox_id: str
    image: str  # reference the user gave
    image_ref: str
    image_id: str  # falls back to image_ref, as older runtimes do not set it
    hash: str  # annotation io.kubernetes.container.hash, hex


class SandboxView(NamedTuple):
    """A sandbox in the last relist; ready counts as running, not ready as exited."""

    id: str
    state: ContainerState
    created_at_ns: int
    attempt: int


class PodView(NamedTuple):
    """A pod in the last relist (kubelet: `kubecontainer.Pod`), built when asked for.

    Containers stand newest first, sandboxes by attempt, then newest first. `created_at_ns` is that of
    the oldest sandbox, 0 without one. Name and namespace come from the newest sandbox, without one
    from the labels of the newest container.
    """

    uid: str
    name: str
    namespace: str
    created_at_ns: int
    containers: tuple[ListedContainer, ...]
    sandboxes: tuple[SandboxView, ...]


class RelistCounts(NamedTuple):
    """Numbers for the metrics (kubelet: `updateRunningPodAndContainerMetrics`)."""

    containers: Mapping[ContainerState, int]  # every state is there
    running_pods: int  # pods with a ready sandbox
