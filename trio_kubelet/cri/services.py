"""CRI's two services, what the agent may ask of the runtime: requests built, answers unpacked and checked.

Every method has a deadline of its own (the kubelet's rules, see `cri.deadlines`) and raises
`cri.errors.CRIError`. A cancelled or timed-out call is ambiguous: the runtime may have executed it. Callers
find out by looking (list, status), never by assuming.

The checks on answers are the kubelet's: a status without an id or a creation time, or an image without a
size, is an error here rather than nonsense further in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from google.protobuf.message import Message

from trio_kubelet.common.log import get_logger, go_quote
from trio_kubelet.cri import deadlines
from trio_kubelet.cri.caller import M
from trio_kubelet.cri.doors import Caller, ContainerEvent, ExecResult, Repeat
from trio_kubelet.cri.errors import CRIError, ResourceExhausted, Unimplemented, UnusableAnswer
from trio_kubelet.cri.proto import api_pb2 as cri

log = get_logger(__name__)


class ListStreaming:
    """Which of the streaming lists the peer lacks, remembered until the connection changes.

    CRI 1.36 has a streaming twin of each list call, for answers beyond the message limit. An older runtime
    answers UNIMPLEMENTED, and is asked no more on that connection.
    """

    def __init__(self, caller: Caller, enabled: bool) -> None:
        self._caller = caller
        self._enabled = enabled
        self._missing: set[str] = set()
        self._connection = -1

    def wanted(self, method: str) -> bool:
        """Whether to try the streaming method."""
        if self._connection != self._caller.connection():
            self._missing.clear()
        return self._enabled and method not in self._missing

    def missing(self, method: str) -> None:
        """The runtime said that it has no such method."""
        self._connection = self._caller.connection()
        self._missing.add(method)


class _Service:
    """What the two services share."""

    def __init__(
        self,
        caller: Caller,
        request_timeout: float = deadlines.DEFAULT_REQUEST_TIMEOUT,
        use_streaming: bool = True,
    ) -> None:
        self._caller = caller
        self._timeout = request_timeout
        self._streaming = ListStreaming(caller, use_streaming)

    def _call(
        self, method: str, request: Message, response: type[M], timeout: float | None = None
    ) -> Awaitable[M]:
        return self._caller.unary(method, request, response, self._timeout if timeout is None else timeout)

    async def _raw_list(
        self, stream: str, stream_request: Message, unary: str, request: Message
    ) -> Sequence[bytes]:
        if self._streaming.wanted(stream):
            try:
                return await self._caller.raw(stream, stream_request, self._timeout)
            except Unimplemented:
                log.v(2).info("The runtime has no streaming list, using the unary one", method=stream)
                self._streaming.missing(stream)
        return await self._caller.raw(unary, request, self._timeout)

    async def _list(self, stream: str, stream_request: Message, unary: str, request: Message, out: M) -> M:
        return _merged(out, await self._raw_list(stream, stream_request, unary, request))


class RuntimeService(_Service):
    """Sandboxes and containers; method for method CRI's RuntimeService."""

    async def version(self, api_version: str = "0.1.0") -> cri.VersionResponse:
        """The runtime's name, version and API version."""
        answer = await self._call("Version", cri.VersionRequest(version=api_version), cri.VersionResponse)
        names = ("version", "runtime_name", "runtime_api_version", "runtime_version")
        if missing := [name for name in names if not getattr(answer, name)]:
            raise UnusableAnswer(
                f"not all fields are set in VersionResponse (missing {', '.join(missing)})", "Version"
            )
        return answer

    async def status(self, verbose: bool = False) -> cri.StatusResponse:
        """Conditions (RuntimeReady, NetworkReady, …), runtime handlers and features."""
        answer = await self._call("Status", cri.StatusRequest(verbose=verbose), cri.StatusResponse)
        if len(answer.status.conditions) < 2:
            raise UnusableAnswer("RuntimeReady or NetworkReady condition are not set", "Status")
        return answer

    async def run_pod_sandbox(self, config: cri.PodSandboxConfig, runtime_handler: str = "") -> str:
        """Creates and starts a sandbox; returns its id."""
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=runtime_handler)
        timeout = deadlines.run_pod_sandbox(self._timeout)
        answer = await self._call("RunPodSandbox", request, cri.RunPodSandboxResponse, timeout)
        if not answer.pod_sandbox_id:
            raise UnusableAnswer(
                f"PodSandboxId is not set for sandbox {go_quote(config.metadata.name)}", "RunPodSandbox"
            )
        return answer.pod_sandbox_id

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        """Stops the sandbox and everything in it; idempotent."""
        await self._call(
            "StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=sandbox_id), cri.StopPodSandboxResponse
        )

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        """Removes the sandbox and its containers, by force; idempotent."""
        await self._call(
            "RemovePodSandbox",
            cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id),
            cri.RemovePodSandboxResponse,
        )

    async def pod_sandbox_status(self, sandbox_id: str) -> cri.PodSandboxStatusResponse:
        """One sandbox's status; NotFound if there is none."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)
        answer = await self._call("PodSandboxStatus", request, cri.PodSandboxStatusResponse)
        if problem := sandbox_status_problem(answer.status, sandbox_id):
            raise UnusableAnswer(problem, "PodSandboxStatus")
        return answer

    async def list_pod_sandboxes(self, filter: cri.PodSandboxFilter | None = None) -> list[cri.PodSandbox]:
        """The sandboxes that the filter admits."""
        messages = await self.list_pod_sandboxes_raw(filter)
        return list(_merged(cri.ListPodSandboxResponse(), messages).items)

    async def list_pod_sandboxes_raw(self, filter: cri.PodSandboxFilter | None = None) -> Sequence[bytes]:
        """The same list undecoded: the bytes of one or more messages, each with repeated PodSandbox in field
        1.
        """
        return await self._raw_list(
            "StreamPodSandboxes",
            cri.StreamPodSandboxesRequest(filter=filter),
            "ListPodSandbox",
            cri.ListPodSandboxRequest(filter=filter),
        )

    async def create_container(
        self, sandbox_id: str, config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig
    ) -> str:
        """Creates a container in a sandbox; returns its id."""
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config
        )
        answer = await self._call("CreateContainer", request, cri.CreateContainerResponse)
        if not answer.container_id:
            raise UnusableAnswer(
                f"ContainerId is not set for container {go_quote(config.metadata.name)}", "CreateContainer"
            )
        return answer.container_id

    async def start_container(self, container_id: str) -> None:
        """Starts a created container."""
        request = cri.StartContainerRequest(container_id=container_id)
        await self._call("StartContainer", request, cri.StartContainerResponse)

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Stop signal, SIGKILL after `timeout_s` seconds; returns when it has ended. Idempotent."""
        request = cri.StopContainerRequest(container_id=container_id, timeout=timeout_s)
        timeout = deadlines.stop_container(self._timeout, timeout_s)
        await self._call("StopContainer", request, cri.StopContainerResponse, timeout)

    async def remove_container(self, container_id: str) -> None:
        """Removes the container, by force; idempotent."""
        request = cri.RemoveContainerRequest(container_id=container_id)
        await self._call("RemoveContainer", request, cri.RemoveContainerResponse)

    async def list_containers(self, filter: cri.ContainerFilter | None = None) -> list[cri.Container]:
        """The containers that the filter admits."""
        messages = await self.list_containers_raw(filter)
        return list(_merged(cri.ListContainersResponse(), messages).containers)

    async def list_containers_raw(self, filter: cri.ContainerFilter | None = None) -> Sequence[bytes]:
        """The same list undecoded: the bytes of one or more messages, each with repeated Container in field
        1.

        A runtime that cannot stream sends one message, with containerd of 16 MiB at most. Where the list has
        become longer (a few pods of thousands of containers are enough, or of hooks with long commands) it is
        asked for by sandbox: a node without a list is none.
        """
        try:
            return await self._raw_list(
                "StreamContainers",
                cri.StreamContainersRequest(filter=filter),
                "ListContainers",
                cri.ListContainersRequest(filter=filter),
            )
        except ResourceExhausted as error:
            if filter is not None and (filter.id or filter.pod_sandbox_id):
                raise
            log.v(2).info("The list of containers is too long for one message, asking by sandbox", err=error)
        messages = list[bytes]()
        for sandbox in await self.list_pod_sandboxes():
            narrower = cri.ContainerFilter(pod_sandbox_id=sandbox.id)
            if filter is not None:
                narrower.MergeFrom(filter)
            messages += await self.list_containers_raw(narrower)
        return messages

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
        """One container's status; NotFound if there is none."""
        request = cri.ContainerStatusRequest(container_id=container_id)
        answer = await self._call("ContainerStatus", request, cri.ContainerStatusResponse)
        if problem := container_status_problem(answer.status, container_id):
            raise UnusableAnswer(problem, "ContainerStatus")
        return answer

    async def update_container_resources(self, container_id: str, linux: cri.LinuxContainerResources) -> None:
        """Changes a running container's limits."""
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        await self._call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    async def update_pod_sandbox_resources(
        self, sandbox_id: str, overhead: cri.LinuxContainerResources, resources: cri.LinuxContainerResources
    ) -> None:
        """Tells the runtime of changed pod limits."""
        request = cri.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=sandbox_id, overhead=overhead, resources=resources
        )
        await self._call("UpdatePodSandboxResources", request, cri.UpdatePodSandboxResourcesResponse)

    async def reopen_container_log(self, container_id: str) -> None:
        """Lets the runtime open the log file anew after a rotation."""
        request = cri.ReopenContainerLogRequest(container_id=container_id)
        await self._call("ReopenContainerLog", request, cri.ReopenContainerLogResponse)

    async def exec_sync(
        self, container_id: str, cmd: Sequence[str], timeout_s: float = 0, enough: int | None = None
    ) -> ExecResult:
        """Runs a command and waits for it. `timeout_s` 0: no limit at all; DeadlineExceeded when it runs
        longer. `enough`: so many bytes of each of its outputs will do.
        """
        request = cri.ExecSyncRequest(container_id=container_id, cmd=cmd, timeout=int(timeout_s))
        timeout = deadlines.exec_sync(self._timeout, timeout_s)
        answer = await self._caller.unary("ExecSync", request, cri.ExecSyncResponse, timeout, enough)
        return _exec_result(answer)

    def repeat_exec(
        self,
        container_id: str,
        cmd: Sequence[str],
        timeout_s: float,
        due: float,
        period: float,
        passed: Callable[[float], None],
        end: Callable[[ExecResult | CRIError | None, float], None],
    ) -> Repeat | None:
        """Runs a command again and again while it passes; see `Caller.repeat_exec`."""
        request = cri.ExecSyncRequest(container_id=container_id, cmd=cmd, timeout=int(timeout_s))
        timeout = deadlines.exec_sync(self._timeout, timeout_s)
        body = request.SerializeToString()
        return self._caller.repeat_exec(body, _exec_answer, timeout, due, period, passed, end)

    async def exec(self, request: cri.ExecRequest) -> str:
        """Prepares an exec stream; returns its URL."""
        answer = await self._call("Exec", request, cri.ExecResponse)
        return _url(answer.url, "Exec")

    async def attach(self, request: cri.AttachRequest) -> str:
        """Prepares an attach stream; returns its URL."""
        answer = await self._call("Attach", request, cri.AttachResponse)
        return _url(answer.url, "Attach")

    async def port_forward(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        """Prepares a port-forward stream; returns its URL."""
        request = cri.PortForwardRequest(pod_sandbox_id=sandbox_id, port=ports)
        answer = await self._call("PortForward", request, cri.PortForwardResponse)
        return _url(answer.url, "PortForward")

    async def container_stats(self, container_id: str) -> cri.ContainerStats:
        """One container's resource use."""
        request = cri.ContainerStatsRequest(container_id=container_id)
        return (await self._call("ContainerStats", request, cri.ContainerStatsResponse)).stats

    async def list_container_stats(
        self, filter: cri.ContainerStatsFilter | None = None
    ) -> list[cri.ContainerStats]:
        """Resource use of the containers that the filter admits."""
        answer = await self._list(
            "StreamContainerStats",
            cri.StreamContainerStatsRequest(filter=filter),
            "ListContainerStats",
            cri.ListContainerStatsRequest(filter=filter),
            cri.ListContainerStatsResponse(),
        )
        return list(answer.stats)

    async def update_runtime_config(self, pod_cidr: str) -> None:
        """Tells the runtime the node's pod CIDR."""
        config = cri.RuntimeConfig(network_config=cri.NetworkConfig(pod_cidr=pod_cidr))
        request = cri.UpdateRuntimeConfigRequest(runtime_config=config)
        await self._call("UpdateRuntimeConfig", request, cri.UpdateRuntimeConfigResponse)

    async def checkpoint_container(self, container_id: str, location: str, timeout_s: int = 0) -> None:
        """Writes a checkpoint archive to `location`."""
        timeout = deadlines.checkpoint(self._timeout, timeout_s)
        request = cri.CheckpointContainerRequest(
            container_id=container_id, location=location, timeout=int(timeout)
        )
        await self._call("CheckpointContainer", request, cri.CheckpointContainerResponse, timeout)

    async def runtime_config(self) -> cri.RuntimeConfigResponse:
        """The runtime's cgroup driver; Unimplemented in older runtimes."""
        return await self._call("RuntimeConfig", cri.RuntimeConfigRequest(), cri.RuntimeConfigResponse)

    def container_events(
        self, capacity: int = 1000
    ) -> AbstractAsyncContextManager[AsyncIterator[ContainerEvent]]:
        """Opens the event stream; leaving the context cancels it.

        The iterator ends when the runtime ends the stream, and raises CRIError when it fails (Unimplemented
        only shows here, at the first step). At most `capacity` events wait for a slow reader; when there is
        no room they are all replaced by one `EVERYTHING_DIRTY`. Keep only one stream open: runtimes exist
        that split the events among several.
        """
        return self._caller.events(capacity)


class ImageService(_Service):
    """Images; method for method CRI's ImageService."""

    async def list_images(self) -> list[cri.Image]:
        """All images."""
        answer = await self._list(
            "StreamImages",
            cri.StreamImagesRequest(),
            "ListImages",
            cri.ListImagesRequest(),
            cri.ListImagesResponse(),
        )
        return list(answer.images)

    async def image_status(self, image: cri.ImageSpec) -> cri.ImageStatusResponse:
        """One image; the response has no `image` if the runtime does not have it (that is no error)."""
        request = cri.ImageStatusRequest(image=image)
        answer = await self._call("ImageStatus", request, cri.ImageStatusResponse)
        if answer.HasField("image") and not (answer.image.id and answer.image.size):
            raise UnusableAnswer(f"Id or size of image {go_quote(image.image)} is not set", "ImageStatus")
        return answer

    async def pull_image(
        self,
        image: cri.ImageSpec,
        auth: cri.AuthConfig | None = None,
        sandbox_config: cri.PodSandboxConfig | None = None,
    ) -> str:
        """Pulls an image; returns its reference. Has no deadline of its own beyond the runtime's (as the
        kubelet).
        """
        request = cri.PullImageRequest(image=image, auth=auth, sandbox_config=sandbox_config)
        answer = await self._call("PullImage", request, cri.PullImageResponse, deadlines.UNBOUNDED)
        if not answer.image_ref:
            raise UnusableAnswer(f"imageRef of image {go_quote(image.image)} is not set", "PullImage")
        return answer.image_ref

    async def remove_image(self, image: cri.ImageSpec) -> None:
        """Removes an image; idempotent."""
        await self._call("RemoveImage", cri.RemoveImageRequest(image=image), cri.RemoveImageResponse)

    async def image_fs_info(self) -> cri.ImageFsInfoResponse:
        """Use of the filesystems that hold images and containers."""
        return await self._call("ImageFsInfo", cri.ImageFsInfoRequest(), cri.ImageFsInfoResponse)


def _merged(out: M, messages: Sequence[bytes]) -> M:
    """A whole list; the streaming and the unary answer differ in name only, both repeat field 1."""
    for message in messages:
        out.MergeFromString(message)
    return out


def _exec_answer(message: bytes) -> ExecResult:
    return _exec_result(cri.ExecSyncResponse.FromString(message))


def _exec_result(answer: cri.ExecSyncResponse) -> ExecResult:
    return ExecResult(answer.stdout, answer.stderr, answer.exit_code)


def _url(url: str, method: str) -> str:
    if not url:
        raise UnusableAnswer("URL is not set", method)
    return url


def sandbox_status_problem(status: cri.PodSandboxStatus, asked: str) -> str:
    """What makes the status of the sandbox that was asked for unusable; "" if nothing does."""
    if status.id != asked:
        return f"status.Id is that of {status.id[:100]}, not {asked}" if status.id else "status.Id is not set"
    meta = status.metadata
    if not status.HasField("metadata"):
        return "status.Metadata is not set"
    if not (meta.name and meta.namespace and meta.uid):
        return f"metadata.Name, metadata.Namespace or metadata.Uid is not set in sandbox {status.id}"
    return "" if status.created_at else "status.CreatedAt is not set"


def container_status_problem(status: cri.ContainerStatus, asked: str) -> str:
    """What makes the status of the container that was asked for unusable; "" if nothing does."""
    if status.id != asked:
        return f"status.Id is that of {status.id[:100]}, not {asked}" if status.id else "status.Id is not set"
    if not status.HasField("metadata"):
        return "status.Metadata is not set"
    if not status.metadata.name:
        return f"metadata.Name is not set in container {status.id}"
    if not status.created_at:
        return "status.CreatedAt is not set"
    if not status.image.image:
        return "status.Image is not set"
    return "" if status.image_ref else "status.ImageRef is not set"
