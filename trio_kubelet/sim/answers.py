"""The simulated runtime's answers to CRI calls, method by method.

Here the state machine meets time: a stop waits until its container has ended, an exec and a pull take as long
as they take. Faults and restarts are somebody else's (`sim.service`).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio
from google.protobuf.message import Message

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.duration import format_duration
from trio_kubelet.cri.errors import DeadlineExceeded, Unimplemented, Unknown
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.behaviour import ExecOutcome, exec_of_command
from trio_kubelet.sim.records import Container, Sandbox
from trio_kubelet.sim.runtime import SimRuntime, selected

_MIB: Final = 1 << 20
_NANO_CORES: Final = 5_000_000


def _weight(container: Container) -> int:
    """1 to 16, fixed for a container."""
    return 1 + int(container.id[:1], 16)


def _age(container: Container, now_ns: int) -> int:
    end = container.finished_ns or now_ns
    return max(end - container.started_ns, 0) if container.started_ns else 0


def container_stats(container: Container, now_ns: int) -> cri.ContainerStats:
    """A container's use of CPU, memory and disk."""
    running = container.state == cri.CONTAINER_RUNNING
    weight = _weight(container)
    stats = cri.ContainerStats(
        attributes=cri.ContainerAttributes(
            id=container.id,
            metadata=container.config.metadata,
            labels=container.config.labels,
            annotations=container.config.annotations,
        )
    )
    stats.writable_layer.timestamp = now_ns
    stats.writable_layer.fs_id.mountpoint = "/var/lib/sim/snapshots"
    stats.writable_layer.used_bytes.value = weight * 4096
    stats.writable_layer.inodes_used.value = weight
    if running:
        stats.cpu.timestamp = stats.memory.timestamp = now_ns
        stats.cpu.usage_core_nano_seconds.value = _age(container, now_ns) * weight // 200
        stats.cpu.usage_nano_cores.value = _NANO_CORES * weight
        _fill_memory(stats.memory, weight * _MIB)
    return stats


def _fill_memory(memory: cri.MemoryUsage, used: int) -> None:
    memory.working_set_bytes.value = used
    memory.usage_bytes.value = used + _MIB
    memory.rss_bytes.value = used // 2
    memory.page_faults.value = used // 4096
    memory.major_page_faults.value = 0


RUNTIME_NAME: Final = "trio-kubelet-sim"
RUNTIME_VERSION: Final = "2.1.0"

Answer = Message | bytes
_STREAM_URL = "http://127.0.0.1:1"
"""Where exec, attach and port-forward send their callers: nobody is there."""
ExecScript = Callable[[Container, Sequence[str]], ExecOutcome | None]


class Answers:
    """CRI's methods over a `SimRuntime`.

    `exec_script` may say what an exec does (None: the command speaks for itself). With `write_logs`,
    containers write CRI logs where their log directory exists.
    """

    def __init__(
        self,
        runtime: SimRuntime,
        clock: Clock,
        exec_script: ExecScript | None,
        write_logs: bool,
    ) -> None:
        self._clock = clock
        self._exec_script = exec_script
        self._write_logs = write_logs
        self._streams = 0
        self._ended: dict[str, trio.Event] = {}
        self.pod_cidr = ""
        self.use(runtime)

    def use(self, runtime: SimRuntime) -> None:
        """Answers for another state from now on (the old one was lost)."""
        self.runtime = runtime
        runtime.on_end.append(self._on_end)
        for event in self._ended.values():
            event.set()
        self._ended.clear()

    def now_ns(self) -> int:
        """The runtime's time."""
        return self._clock.now_ns()

    async def answer(self, method: str, request: Message) -> Answer:
        """A message, or its bytes; raises CRIError."""
        handler = METHODS.get(method)
        if handler is None:
            raise Unimplemented(f"unknown method {method}", method)
        self.runtime.advance(self.now_ns())
        answer = handler(self, request)
        return await answer if isinstance(answer, Awaitable) else answer

    def _on_end(self, container: Container) -> None:
        if self._write_logs:
            write_log(container, container.finished_ns)
        if (event := self._ended.pop(container.id, None)) is not None:
            event.set()

    # The runtime

    def version(self, request: cri.VersionRequest) -> Answer:
        return cri.VersionResponse(
            version="0.1.0",
            runtime_name=RUNTIME_NAME,
            runtime_version=RUNTIME_VERSION,
            runtime_api_version="v1",
        )

    def status(self, request: cri.StatusRequest) -> Answer:
        answer = cri.StatusResponse(
            info={"config": json.dumps({"simulated": True, "podCIDR": self.pod_cidr})}
            if request.verbose
            else {}
        )
        for condition in ("RuntimeReady", "NetworkReady"):
            answer.status.conditions.add(type=condition, status=True)
        for handler in self.runtime.handlers:
            features = answer.runtime_handlers.add(name=handler).features
            features.recursive_read_only_mounts = True
        answer.features.supplemental_groups_policy = True
        return answer

    def update_runtime_config(self, request: cri.UpdateRuntimeConfigRequest) -> Answer:
        self.pod_cidr = request.runtime_config.network_config.pod_cidr
        return cri.UpdateRuntimeConfigResponse()

    def runtime_config(self, request: cri.RuntimeConfigRequest) -> Answer:
        return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS))

    # Sandboxes

    def run_pod_sandbox(self, request: cri.RunPodSandboxRequest) -> Answer:
        sandbox = self.runtime.run_sandbox(request.config, request.runtime_handler, self.now_ns())
        return cri.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    def stop_pod_sandbox(self, request: cri.StopPodSandboxRequest) -> Answer:
        self.runtime.stop_sandbox(request.pod_sandbox_id, self.now_ns())
        return cri.StopPodSandboxResponse()

    def remove_pod_sandbox(self, request: cri.RemovePodSandboxRequest) -> Answer:
        self.runtime.remove_sandbox(request.pod_sandbox_id, self.now_ns())
        return cri.RemovePodSandboxResponse()

    def pod_sandbox_status(self, request: cri.PodSandboxStatusRequest) -> Answer:
        sandbox = self.runtime.sandbox(request.pod_sandbox_id)
        info = {"info": json.dumps({"runtimeHandler": sandbox.runtime_handler})} if request.verbose else {}
        return cri.PodSandboxStatusResponse(status=sandbox.as_status(), info=info)

    def list_pod_sandbox(self, request: cri.ListPodSandboxRequest) -> Answer:
        return self.runtime.listed_sandboxes(request.filter)

    def update_pod_sandbox_resources(self, request: cri.UpdatePodSandboxResourcesRequest) -> Answer:
        linux = self.runtime.sandbox(request.pod_sandbox_id).config.linux
        linux.overhead.CopyFrom(request.overhead)
        linux.resources.CopyFrom(request.resources)
        return cri.UpdatePodSandboxResourcesResponse()

    # Containers

    def create_container(self, request: cri.CreateContainerRequest) -> Answer:
        container = self.runtime.create_container(
            request.pod_sandbox_id, request.config, request.sandbox_config, self.now_ns()
        )
        return cri.CreateContainerResponse(container_id=container.id)

    def start_container(self, request: cri.StartContainerRequest) -> Answer:
        self.runtime.start_container(request.container_id, self.now_ns())
        if self._write_logs:
            write_log(self.runtime.container(request.container_id), self.now_ns())
        return cri.StartContainerResponse()

    async def stop_container(self, request: cri.StopContainerRequest) -> Answer:
        container = self.runtime.stop_container(request.container_id, request.timeout, self.now_ns())
        if container is not None:
            await self._ended.setdefault(container.id, trio.Event()).wait()
        return cri.StopContainerResponse()

    def remove_container(self, request: cri.RemoveContainerRequest) -> Answer:
        self.runtime.remove_container(request.container_id, self.now_ns())
        return cri.RemoveContainerResponse()

    def list_containers(self, request: cri.ListContainersRequest) -> Answer:
        return self.runtime.listed_containers(request.filter)

    def container_status(self, request: cri.ContainerStatusRequest) -> Answer:
        container = self.runtime.container(request.container_id)
        info = {"info": json.dumps({"sandboxID": container.sandbox_id})} if request.verbose else {}
        return cri.ContainerStatusResponse(status=container.as_status(), info=info)

    def update_container_resources(self, request: cri.UpdateContainerResourcesRequest) -> Answer:
        self.runtime.update_resources(request.container_id, request.linux)
        return cri.UpdateContainerResourcesResponse()

    def reopen_container_log(self, request: cri.ReopenContainerLogRequest) -> Answer:
        container = self._running(request.container_id)
        if self._write_logs:
            write_log(container, self.now_ns())
        return cri.ReopenContainerLogResponse()

    def checkpoint_container(self, request: cri.CheckpointContainerRequest) -> Answer:
        self._running(request.container_id)
        raise Unimplemented("a simulated container has no memory to checkpoint", "CheckpointContainer")

    def _running(self, container_id: str) -> Container:
        container = self.runtime.container(container_id)
        if container.state != cri.CONTAINER_RUNNING:
            raise Unknown(f"container is in {cri.ContainerState.Name(container.state)} state")
        return container

    # Exec, attach, port-forward

    async def exec_sync(self, request: cri.ExecSyncRequest) -> Answer:
        container = self._running(request.container_id)
        outcome = self._exec_script(container, request.cmd) if self._exec_script else None
        if outcome is None:
            outcome = exec_of_command(request.cmd)
        if request.timeout and outcome.seconds > request.timeout:
            await trio.sleep(request.timeout)
            timeout = format_duration(request.timeout)
            raise DeadlineExceeded(
                f"failed to exec in container: timeout {timeout} exceeded: context deadline exceeded"
            )
        with trio.move_on_after(outcome.seconds):
            await self._ended.setdefault(container.id, trio.Event()).wait()
            return cri.ExecSyncResponse(exit_code=137)  # killed with its container
        return cri.ExecSyncResponse(stdout=outcome.stdout, stderr=outcome.stderr, exit_code=outcome.exit_code)

    def exec(self, request: cri.ExecRequest) -> Answer:
        self._running(request.container_id)
        return cri.ExecResponse(url=self._url("exec"))

    def attach(self, request: cri.AttachRequest) -> Answer:
        self._running(request.container_id)
        return cri.AttachResponse(url=self._url("attach"))

    def port_forward(self, request: cri.PortForwardRequest) -> Answer:
        self.runtime.sandbox(request.pod_sandbox_id)
        return cri.PortForwardResponse(url=self._url("portforward"))

    def _url(self, what: str) -> str:
        self._streams += 1
        return f"{_STREAM_URL}/{what}/{self._streams}"

    # Stats

    def container_stats(self, request: cri.ContainerStatsRequest) -> Answer:
        container = self.runtime.container(request.container_id)
        return cri.ContainerStatsResponse(stats=container_stats(container, self.now_ns()))

    def list_container_stats(self, request: cri.ListContainerStatsRequest) -> Answer:
        wanted = request.filter
        found = (
            container
            for container in self.runtime.containers.values()
            if _admits(wanted.id, wanted.label_selector, container)
            and (not wanted.pod_sandbox_id or container.sandbox_id == wanted.pod_sandbox_id)
        )
        now_ns = self.now_ns()
        return cri.ListContainerStatsResponse(stats=[container_stats(c, now_ns) for c in found])

    # Images

    def list_images(self, request: cri.ListImagesRequest) -> Answer:
        name = request.filter.image.image
        if not name:
            return cri.ListImagesResponse(images=list(self.runtime.images))
        image = self.runtime.images.find(name)
        return cri.ListImagesResponse(images=[] if image is None else [image])

    def image_status(self, request: cri.ImageStatusRequest) -> Answer:
        return cri.ImageStatusResponse(image=self.runtime.images.find(request.image.image))

    async def pull_image(self, request: cri.PullImageRequest) -> Answer:
        name = request.image.image
        await trio.sleep(self.runtime.images.pull_seconds(name))
        return cri.PullImageResponse(image_ref=self.runtime.images.pull(name))

    def remove_image(self, request: cri.RemoveImageRequest) -> Answer:
        self.runtime.images.remove(request.image.image)
        return cri.RemoveImageResponse()

    def image_fs_info(self, request: cri.ImageFsInfoRequest) -> Answer:
        answer = cri.ImageFsInfoResponse()
        usage = answer.image_filesystems.add(timestamp=self.now_ns())
        usage.fs_id.mountpoint = "/var/lib/sim"
        usage.used_bytes.value = self.runtime.images.used_bytes()
        usage.inodes_used.value = 1000 * sum(1 for _ in self.runtime.images)
        answer.container_filesystems.add().CopyFrom(usage)
        return answer


def _admits(wanted_id: str, selector: Mapping[str, str], record: Sandbox | Container) -> bool:
    return record.id.startswith(wanted_id) and selected(selector, record.config.labels)


METHODS: Final[dict[str, Callable[[Answers, Any], Answer | Awaitable[Answer]]]] = {
    "Version": Answers.version,
    "Status": Answers.status,
    "UpdateRuntimeConfig": Answers.update_runtime_config,
    "RuntimeConfig": Answers.runtime_config,
    "RunPodSandbox": Answers.run_pod_sandbox,
    "StopPodSandbox": Answers.stop_pod_sandbox,
    "RemovePodSandbox": Answers.remove_pod_sandbox,
    "PodSandboxStatus": Answers.pod_sandbox_status,
    "ListPodSandbox": Answers.list_pod_sandbox,
    "UpdatePodSandboxResources": Answers.update_pod_sandbox_resources,
    "CreateContainer": Answers.create_container,
    "StartContainer": Answers.start_container,
    "StopContainer": Answers.stop_container,
    "RemoveContainer": Answers.remove_container,
    "ListContainers": Answers.list_containers,
    "ContainerStatus": Answers.container_status,
    "UpdateContainerResources": Answers.update_container_resources,
    "ReopenContainerLog": Answers.reopen_container_log,
    "CheckpointContainer": Answers.checkpoint_container,
    "ExecSync": Answers.exec_sync,
    "Exec": Answers.exec,
    "Attach": Answers.attach,
    "PortForward": Answers.port_forward,
    "ContainerStats": Answers.container_stats,
    "ListContainerStats": Answers.list_container_stats,
    "ListImages": Answers.list_images,
    "ImageStatus": Answers.image_status,
    "PullImage": Answers.pull_image,
    "RemoveImage": Answers.remove_image,
    "ImageFsInfo": Answers.image_fs_info,
}
"""The unary methods; their streaming twins are made from them."""


_NS: Final = 1_000_000_000


def log_time(at_ns: int) -> str:
    """RFC 3339 with nanoseconds, in UTC."""
    seconds, rest = divmod(at_ns, _NS)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def write_log(container: Container, until_ns: int) -> None:
    """Appends to the CRI log what the container has written by `until_ns` and is not in it yet.

    The file appears with the first call after the start, if its directory exists. A disk that does not take
    it changes nothing for the container, which is not real either.
    """
    path = pathlib.Path(container.log_path)
    if not container.log_path or not container.started_ns or not path.parent.is_dir():
        return
    lines = []
    for seconds, text in container.behaviour.output[container.written :]:
        at_ns = container.started_ns + round(seconds * _NS)
        if at_ns > until_ns:
            break
        lines.append(f"{log_time(at_ns)} stdout F {text}\n")
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.writelines(lines)
        container.written += len(lines)
