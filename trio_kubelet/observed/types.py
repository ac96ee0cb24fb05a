"""What is observed in the runtime, in the agent's own terms (kubelet: `pkg/kubelet/container`).

Values only: they are built from CRI answers by the status reader, kept by the status cache and read
by the pod workers. Moments are nanoseconds since the epoch, 0 when they have not happened. None of them can
be part of a cycle, so the garbage collector does not have to walk the thousands of them, only one of a pod.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

POD_UID = "io.kubernetes.pod.uid"
"""On every sandbox and container of a pod: the pod's UID."""


OOM_KILLED = "OOMKilled"
"""The reason of a container whose memory ran out, as runtimes name it."""


class ContainerState(enum.StrEnum):
    """State of a container; a sandbox that is ready counts as running, else as exited."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class ContainerUser(msgspec.Struct, frozen=True, gc=False):
    """User a Linux container's first process runs as."""

    uid: int
    gid: int
    supplemental_groups: tuple[int, ...] = ()


class ContainerResources(msgspec.Struct, frozen=True, gc=False):
    """Resources the runtime says are in force (CRI `LinuxContainerResources`), None when not said."""

    cpu_period: int | None = None
    cpu_quota: int | None = None
    cpu_shares: int | None = None
    memory_limit_in_bytes: int | None = None
    unified: tuple[tuple[str, str], ...] = ()


class ContainerStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One container of a pod, alive or dead."""

    id: str  # without the `containerd://` prefix
    name: str
    state: ContainerState
    pod_sandbox_id: str = ""
    created_at_ns: int = 0
    started_at_ns: int = 0
    finished_at_ns: int = 0
    exit_code: int = 0
    image: str = ""  # reference the user gave
    image_id: str = ""
    image_ref: str = ""
    hash: str = ""  # label/annotation io.kubernetes.container.hash, hex
    restart_count: int = 0
    reason: str = ""
    message: str = ""  # from the runtime, then the termination message (file or logs)
    log_path: str = ""
    termination_message_path: str = ""
    termination_message_policy: str = ""
    termination_grace_period: int | None = None  # seconds, from the annotation of the container
    resources: ContainerResources | None = None
    user: ContainerUser | None = None
    stop_signal: str = ""


class SandboxStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sandbox of a pod."""

    id: str
    name: str
    namespace: str
    uid: str
    attempt: int
    ready: bool
    created_at_ns: int
    ips: tuple[str, ...] = ()
    network_reported: bool = True  # whether the runtime said anything about the network, if only "no address"
    host_network: bool = False
    runtime_handler: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodStatus(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything observed of a pod; sandboxes and containers newest first."""

    uid: str
    name: str
    namespace: str
    ips: tuple[str, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()
    sandboxes: tuple[SandboxStatus, ...] = ()
    timestamp_ns: int = 0  # when the look at the runtime began

    def container_status(self, name: str) -> ContainerStatus | None:
        """The newest container of that name (kubelet: `FindContainerStatusByName`)."""
        return next(iter(self.containers_named(name)), None)

    def containers_named(self, name: str) -> Sequence[ContainerStatus]:
        """All containers of that name, the newest first: by how often it was restarted, for clocks are set
        back.

        By moments, as with a kubelet, a dead one from before would be the newest until the clock is there
        again, and be restarted time and again beside its successors (kubernetes/kubernetes 45942, 134153).
        """
        return self._by_name.get(name, ())

    @cached_property
    def _by_name(self) -> dict[str, list[ContainerStatus]]:
        """Each of a pod's containers, which may be thousands, is asked for time and again."""
        found: dict[str, list[ContainerStatus]] = {}
        for status in self.containers:
            found.setdefault(status.name, []).append(status)
        for of_one in found.values():
            of_one.sort(key=lambda status: (-status.restart_count, -status.created_at_ns))
        return found

    def running(self) -> tuple[ContainerStatus, ...]:
        return tuple(c for c in self.containers if c.state is ContainerState.RUNNING)


class RunningContainer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A container (or sandbox, its name "") as a list answer shows it."""

    id: str
    name: str
    state: ContainerState
    pod_sandbox_id: str = ""
    created_at_ns: int = 0


class RunningPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod as the runtime's lists show it (kubelet: `kubecontainer.Pod`), e.g. an orphan to kill."""

    uid: str
    name: str
    namespace: str
    created_at_ns: int = 0
    containers: tuple[RunningContainer, ...] = ()
    sandboxes: tuple[RunningContainer, ...] = ()


class PodParts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is to be read of a pod: the parts in a list answer that was requested at `timestamp_ns`.

    `sandbox_ids` newest first, `ready` those of them that the list shows ready. Containers in `known` are not
    read but are as they are there. With neither, all is read.
    """

    uid: str
    name: str
    namespace: str
    sandbox_ids: Sequence[str]
    container_ids: Sequence[str]
    timestamp_ns: int
    known: Mapping[str, ContainerStatus] = {}
    ready: Sequence[str] = ()


class PodLifecycleEventType(enum.StrEnum):
    """What happened to a container (or sandbox) of a pod."""

    CONTAINER_STARTED = "ContainerStarted"
    CONTAINER_DIED = "ContainerDied"
    CONTAINER_REMOVED = "ContainerRemoved"
    CONTAINER_CHANGED = "ContainerChanged"


class PodLifecycleEvent(NamedTuple):
    """One change of a pod; `data` is the id of the container or sandbox it is about."""

    pod_uid: str
    type: PodLifecycleEventType
    data: str
