"""What the simulated runtime knows of one sandbox and one container, and how CRI shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.behaviour import Behaviour

REASON_COMPLETED = "Completed"
REASON_ERROR = "Error"
REASON_OOM = "OOMKilled"
REASON_START_ERROR = "StartError"
START_ERROR_EXIT_CODE = 128


@dataclass(slots=True, eq=False)
class Sandbox:
    """One pod sandbox. `listed` caches its entry in a list answer, `name` is reserved as long as it
    exists.
    """

    id: str
    name: str
    config: cri.PodSandboxConfig
    runtime_handler: str
    created_ns: int
    ip: str
    ready: bool = True
    container_ids: dict[str, None] = field(default_factory=dict)
    listed: bytes | None = None

    @property
    def state(self) -> cri.PodSandboxState.ValueType:
        return cri.SANDBOX_READY if self.ready else cri.SANDBOX_NOTREADY

    def as_item(self) -> cri.PodSandbox:
        """The sandbox in a list."""
        return cri.PodSandbox(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_ns,
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.runtime_handler,
        )

    def as_status(self) -> cri.PodSandboxStatus:
        """The sandbox in detail; its IP goes when it stops, as its network namespace does."""
        status = cri.PodSandboxStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_ns,
            network=cri.PodSandboxNetworkStatus(ip=self.ip if self.ready else ""),
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.runtime_handler,
        )
        options = self.config.linux.security_context.namespace_options
        status.linux.namespaces.options.CopyFrom(options)
        return status


@dataclass(slots=True, eq=False)
class Container:
    """One container. Moments in ns since the epoch, 0 for one that has not come."""

    id: str
    name: str
    sandbox_id: str
    config: cri.ContainerConfig
    image: cri.Image
    log_path: str
    behaviour: Behaviour
    created_ns: int
    state: cri.ContainerState.ValueType = cri.CONTAINER_CREATED
    started_ns: int = 0
    finished_ns: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    starts: int = 0
    """How often it was started: more than once would be a fault of the runtime."""
    term_sent: bool = False
    written: int = 0
    """Lines of output already in the log."""
    listed: bytes | None = None

    def as_item(self) -> cri.Container:
        """The container in a list."""
        return cri.Container(
            id=self.id,
            pod_sandbox_id=self.sandbox_id,
            metadata=self.config.metadata,
            image=self.config.image,
            image_ref=self.image.id,
            image_id=self.image.id,
            state=self.state,
            created_at=self.created_ns,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )

    def as_status(self) -> cri.ContainerStatus:
        """The container in detail; as in containerd, the image shows by its tag and its repository digest."""
        status = cri.ContainerStatus(
            id=self.id,
            metadata=self.config.metadata,
            state=self.state,
            created_at=self.created_ns,
            started_at=self.started_ns,
            finished_at=self.finished_ns,
            exit_code=self.exit_code,
            image=cri.ImageSpec(image=next(iter(self.image.repo_tags), self.config.image.image)),
            image_ref=next(iter(self.image.repo_digests), self.image.id),
            image_id=self.image.id,
            reason=self.reason,
            message=self.message,
            labels=self.config.labels,
            annotations=self.config.annotations,
            mounts=self.config.mounts,
            log_path=self.log_path,
            stop_signal=self.config.stop_signal or cri.SIGTERM,
        )
        status.resources.linux.CopyFrom(self.config.linux.resources)
        user = self.config.linux.security_context
        status.user.linux.uid = user.run_as_user.value
        status.user.linux.gid = user.run_as_group.value
        return status


def list_entry(item: cri.PodSandbox | cri.Container) -> bytes:
    """The item as an element of field 1 of a list answer: tag, length, message."""
    if isinstance(item, cri.PodSandbox):
        return cri.ListPodSandboxResponse(items=[item]).SerializeToString()
    return cri.ListContainersResponse(containers=[item]).SerializeToString()
