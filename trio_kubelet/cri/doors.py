"""The door to the container runtime: what the rest of the agent may ask of it.

`RuntimeService` and `ImageService` are Protocols. Behind them stands a gRPC channel (`cri.grpc`) or a
simulated runtime in memory (`sim.door`); nobody outside `cri/` knows which. Every method is a Trio function,
has a deadline of its own (the kubelet's rules, see `cri.deadlines`) and raises `cri.errors.CRIError`.

A cancelled or timed-out call is ambiguous: the runtime may have executed it. Callers find out by looking
(list, status), never by assuming.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import Code


class ExecResult(NamedTuple):
    """What a command run inside a container left behind."""

    stdout: bytes
    stderr: bytes
    exit_code: int


class EventsLost(enum.Enum):
    """Type of the mark that stands in an event stream where events had no room."""

    EVERYTHING_DIRTY = "everything dirty"


EVERYTHING_DIRTY: Final = EventsLost.EVERYTHING_DIRTY
"""In place of events that were dropped because the reader was slow: any pod may have changed."""

ContainerEvent = cri.ContainerEventResponse | EventsLost
"""What an event stream yields."""


class RuntimeService(Protocol):
    """Sandboxes and containers; method for method CRI's RuntimeService."""

    async def version(self, api_version: str = "0.1.0") -> cri.VersionResponse:
        """The runtime's name, version and API version."""
        ...

    async def status(self, verbose: bool = False) -> cri.StatusResponse:
        """Conditions (RuntimeReady, NetworkReady, …), runtime handlers and features."""
        ...

    async def run_pod_sandbox(self, config: cri.PodSandboxConfig, runtime_handler: str = "") -> str:
        """Creates and starts a sandbox; returns its id."""
        ...

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """Stops the sandbox and everything in it; idempotent."""
        ...

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """Removes the sandbox and its containers, by force; idempotent."""
        ...

    async def pod_sandbox_status(self, sandbox_id: str) -> cri.PodSandboxStatusResponse:
        """One sandbox's status; NotFound if there is none."""
        ...

    async def list_pod_sandboxes(self, filter: cri.PodSandboxFilter | None = None) -> list[cri.PodSandbox]:
        """The sandboxes that the filter admits."""
        ...

    async def list_pod_sandboxes_raw(self, filter: cri.PodSandboxFilter | None = None) -> Sequence[bytes]:
        """The same list undecoded: the bytes of one or more messages, each with repeated PodSandbox in field
        1.
        """
        ...

    async def create_container(
        self, sandbox_id: str, config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig
    ) -> str:
        """Creates a container in a sandbox; returns its id."""
        ...

    async def start_container(self, container_id: str) -> None:
        """Starts a created container."""
        ...

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Stop signal, SIGKILL after `timeout_s` seconds; returns when it has ended. Idempotent."""
        ...

    async def remove_container(self, container_id: str) -> None:
        """Removes the container, by force; idempotent."""
        ...

    async def list_containers(self, filter: cri.ContainerFilter | None = None) -> list[cri.Container]:
        """The containers that the filter admits."""
        ...

    async def list_containers_raw(self, filter: cri.ContainerFilter | None = None) -> Sequence[bytes]:
        """The same list undecoded: the bytes of one or more messages, each with repeated Container in field
        1.
        """
        ...

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
        """One container's status; NotFound if there is none."""
        ...

    async def update_container_resources(
        self,
        container_id: str,
        linux: cri.LinuxContainerResources,
    ) -> None:
        """Changes a running container's limits."""
        ...

    async def update_pod_sandbox_resources(
        self, sandbox_id: str, overhead: cri.LinuxContainerResources, resources: cri.LinuxContainerResources
    ) -> None:
        """Tells the runtime of changed pod limits."""
        ...

    async def reopen_container_log(self, container_id: str) -> None:
        """Lets the runtime open the log file anew after a rotation."""
        ...

    async def exec_sync(self, container_id: str, cmd: Sequence[str], timeout_s: float = 0) -> ExecResult:
        """Runs a command and waits for it. `timeout_s` 0: no limit at all; DeadlineExceeded when it runs
        longer.
        """
        ...

    async def exec(self, request: cri.ExecRequest) -> str:
        """Prepares an exec stream; returns its URL."""
        ...

    async def attach(self, request: cri.AttachRequest) -> str:
        """Prepares an attach stream; returns its URL."""
        ...

    async def port_forward(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        """Prepares a port-forward stream; returns its URL."""
        ...

    async def container_stats(self, container_id: str) -> cri.ContainerStats:
        """One container's resource use."""
        ...

    async def list_container_stats(
        self, filter: cri.ContainerStatsFilter | None = None
    ) -> list[cri.ContainerStats]:
        """Resource use of the containers that the filter admits."""
        ...

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Tells the runtime the node's pod CIDR."""
        ...

    async def checkpoint_container(self, container_id: str, location: str, timeout_s: int = 0) -> None:
        """Writes a checkpoint archive to `location`."""
        ...

    async def runtime_config(self) -> cri.RuntimeConfigResponse:
        """The runtime's cgroup driver; Unimplemented in older runtimes."""
        ...

    def container_events(
        self, capacity: int = 1000
    ) -> AbstractAsyncContextManager[AsyncIterator[ContainerEvent]]:
        """Opens the event stream; leaving the context cancels it.

        The iterator ends when the runtime ends the stream, and raises CRIError when it fails (Unimplemented
        only shows here, at the first step). At most `capacity` events wait for a slow reader; when there is
        no room they are all replaced by one `EVERYTHING_DIRTY`. Keep only one stream open: runtimes exist
        that split the events among several.
        """
        ...


class ImageService(Protocol):
    """Images; method for method CRI's ImageService."""

    async def list_images(self) -> list[cri.Image]:
        """All images."""
        ...

    async def image_status(self, image: cri.ImageSpec) -> cri.ImageStatusResponse:
        """One image; the response has no `image` if the runtime does not have it (that is no error)."""
        ...

    async def pull_image(
        self,
        image: cri.ImageSpec,
        auth: cri.AuthConfig | None = None,
        sandbox_config: cri.PodSandboxConfig | None = None,
    ) -> str:
        """Pulls an image; returns its reference. Has no deadline of its own beyond the runtime's (as the
        kubelet).
        """
        ...

    async def remove_image(self, image: cri.ImageSpec) -> None:
        """Removes an image; idempotent."""
        ...

    async def image_fs_info(self) -> cri.ImageFsInfoResponse:
        """Use of the filesystems that hold images and containers."""
        ...


M = TypeVar("M", bound=Message)


class Caller(Protocol):
    """Carries calls; every method raises CRIError, and DeadlineExceeded after `timeout` seconds."""

    async def unary(self, method: str, request: Message, response: type[M], timeout: float) -> M:
        """One request, one answer."""
        ...

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        """One request; all messages of the answer (one, or a stream's) as they came."""
        ...

    def events(self, capacity: int) -> AbstractAsyncContextManager[AsyncIterator[ContainerEvent]]:
        """The event stream; see `RuntimeService.container_events`."""
        ...

    def connection(self) -> int:
        """A number that changes when the connection does: what was learnt about the peer holds no longer."""
        ...


class CallSpan(Protocol):
    """One traced call. `metadata`: headers by which the runtime joins its own spans to it."""

    @property
    def metadata(self) -> Mapping[str, str]: ...

    def end(self, code: Code) -> None:
        """The call is over."""
        ...


BeginSpan = Callable[[str], CallSpan]
"""Called before each call with the method's name, in the task that makes it."""
