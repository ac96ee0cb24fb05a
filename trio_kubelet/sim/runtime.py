"""The state machines of a simulated container runtime: sandboxes, containers, events. No clock, no I/O.

Every operation takes the moment it happens at (`now_ns`) and does at once what a runtime does: it changes
state, emits events to the listeners and plans what comes later (a container's end, a kill after the grace
period). `advance(now_ns)` carries out what is due. Ids come from a seeded generator, so the same calls at the
same moments give the same runtime, byte for byte.

Where it shows, the behaviour is containerd's: names are reserved per pod and attempt, stop and remove of
something that is gone succeed, SIGTERM is sent once, exit codes are 143 and 137, and so are the error texts.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from google.protobuf.message import Message

from trio_kubelet.cri.errors import NotFound, Unknown
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.behaviour import EXIT_SIGKILL, behaviour_of
from trio_kubelet.sim.images import ImageStore
from trio_kubelet.sim.records import (
    REASON_COMPLETED,
    REASON_ERROR,
    REASON_OOM,
    REASON_START_ERROR,
    START_ERROR_EXIT_CODE,
    Container,
    Sandbox,
    list_entry,
)

NS: Final = 1_000_000_000
PAUSE_IMAGE: Final = "registry.k8s.io/pause:3.10"

M = TypeVar("M", bound=Message)
R = TypeVar("R")
Kept = TypeVar("Kept", Sandbox, Container)

EventListener = Callable[[Callable[[], cri.ContainerEventResponse]], None]
EndListener = Callable[[Container], None]


class SimRuntime:
    """Everything that a simulated node runs.

    `on_end` is called for each container that ends, `on_plan` when `next_due_ns` may be earlier than before,
    and `listeners` get a function that makes the event (nobody may want it). Raises CRIError from the
    operations as a runtime answers.
    """

    def __init__(
        self, seed: int = 0, handlers: Iterable[str] = ("", "runc"), preload: tuple[str, ...] = ()
    ) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, Container] = {}
        self.images = ImageStore(preload, pinned=(PAUSE_IMAGE,))
        self.handlers = tuple(handlers)
        self.listeners: list[EventListener] = []
        self.on_end: list[EndListener] = []
        self.on_plan: list[Callable[[], None]] = []
        self._random = random.Random(seed)
        self._names: dict[str, str] = {}
        self._due: list[tuple[int, int, str, int, str]] = []
        self._planned = 0
        self._addresses = 0
        self._lists: dict[str, bytes] = {}

    def emptied(self) -> SimRuntime:
        """A runtime with these images and nothing else; ids and addresses are not used again."""
        fresh = SimRuntime(handlers=self.handlers)
        fresh.images = self.images
        fresh._random = self._random
        fresh._addresses = self._addresses
        return fresh

    # Time

    def next_due_ns(self) -> int | None:
        """When `advance` has something to do next."""
        return self._due[0][0] if self._due else None

    def advance(self, now_ns: int) -> None:
        """Lets everything happen that is due by now, in the order of its time."""
        while self._due and self._due[0][0] <= now_ns:
            due, _, container_id, code, reason = heapq.heappop(self._due)
            container = self.containers.get(container_id)
            if container is not None and container.state == cri.CONTAINER_RUNNING:
                self._end(container, due, code, reason)

    def clock_was_set(self, by_ns: int) -> None:
        """The wall clock was set forward, or back, by so much; what is planned comes when it would have."""
        self._due = [(due + by_ns, number, id, code, reason) for due, number, id, code, reason in self._due]

    def _plan_end(self, container: Container, due_ns: int, code: int, reason: str = "") -> None:
        self._planned += 1
        heapq.heappush(self._due, (due_ns, self._planned, container.id, code, reason))
        for listener in self.on_plan:
            listener()

    # Sandboxes

    def run_sandbox(self, config: cri.PodSandboxConfig, handler: str, now_ns: int) -> Sandbox:
        """Creates and starts a sandbox."""
        if not config.HasField("metadata"):
            raise Unknown("sandbox config must include metadata")
        if handler not in self.handlers:
            raise Unknown(
                f'failed to get sandbox runtime: no runtime for "{handler}" is configured', "RunPodSandbox"
            )
        meta = config.metadata
        name = f"{meta.name}_{meta.namespace}_{meta.uid}_{meta.attempt}"
        sandbox_id = self._new_id()
        self._reserve("sandbox", name, sandbox_id)
        host = config.linux.security_context.namespace_options.network == cri.NODE
        sandbox = Sandbox(
            id=sandbox_id,
            name=name,
            config=_copy(config),
            runtime_handler=handler,
            created_ns=now_ns,
            ip="" if host else self._new_ip(),
        )
        self.sandboxes[sandbox_id] = sandbox
        self._changed(sandbox)
        self._emit(sandbox_id, sandbox, cri.CONTAINER_CREATED_EVENT, now_ns)
        self._emit(sandbox_id, sandbox, cri.CONTAINER_STARTED_EVENT, now_ns)
        return sandbox

    def stop_sandbox(self, sandbox_id: str, now_ns: int) -> None:
        """Kills its containers and gives its network back; nothing to do for one that is gone."""
        sandbox = self.find_sandbox(sandbox_id)
        if sandbox is None:
            return
        for container_id in tuple(sandbox.container_ids):
            self.kill(container_id, now_ns)
        self.sandbox_dies(sandbox, now_ns)

    def sandbox_dies(self, sandbox: Sandbox, now_ns: int) -> None:
        """The sandbox itself ends (its pause container dies); its containers are left as they are."""
        if sandbox.ready:
            sandbox.ready = False
            self._changed(sandbox)
            self._emit(sandbox.id, sandbox, cri.CONTAINER_STOPPED_EVENT, now_ns)

    def remove_sandbox(self, sandbox_id: str, now_ns: int) -> None:
        """Stops and removes a sandbox with all that is in it; nothing to do for one that is gone."""
        sandbox = self.find_sandbox(sandbox_id)
        if sandbox is None:
            return
        self.stop_sandbox(sandbox.id, now_ns)
        for container_id in tuple(sandbox.container_ids):
            self.remove_container(container_id, now_ns)
        self._emit(sandbox.id, sandbox, cri.CONTAINER_DELETED_EVENT, now_ns)
        del self.sandboxes[sandbox.id]
        self._names.pop("sandbox " + sandbox.name, None)
        self._lists.pop("sandboxes", None)

    def find_sandbox(self, sandbox_id: str) -> Sandbox | None:
        """By id, or by the beginning of one if it is the only one."""
        return _find(self.sandboxes, sandbox_id)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """As `find_sandbox`, but raises NotFound."""
        if (found := self.find_sandbox(sandbox_id)) is None:
            raise NotFound("an error occurred when try to find sandbox: not found")
        return found

    # Containers

    def create_container(
        self, sandbox_id: str, config: cri.ContainerConfig, sandbox_config: cri.PodSandboxConfig, now_ns: int
    ) -> Container:
        """Creates a container in a sandbox that is ready."""
        sandbox = self.find_sandbox(sandbox_id)
        if sandbox is None:
            raise NotFound(f'failed to find sandbox id "{sandbox_id}": not found')
        if not sandbox.ready:
            raise Unknown(f'sandbox container "{sandbox.id}" is not running')
        if not config.HasField("metadata"):
            raise Unknown("container config must include metadata")
        image = self.images.find(config.image.image)
        if image is None:
            raise NotFound(f'failed to resolve image "{config.image.image}": not found')
        pod = sandbox.config.metadata
        name = f"{config.metadata.name}_{pod.name}_{pod.namespace}_{pod.uid}_{config.metadata.attempt}"
        container_id = self._new_id()
        self._reserve("container", name, container_id)
        log_directory = sandbox_config.log_directory or sandbox.config.log_directory
        container = Container(
            id=container_id,
            name=name,
            sandbox_id=sandbox.id,
            config=_copy(config),
            image=_copy(image),
            log_path=f"{log_directory}/{config.log_path}" if log_directory and config.log_path else "",
            behaviour=behaviour_of(config, sandbox.config.annotations),
            created_ns=now_ns,
        )
        self.containers[container_id] = container
        sandbox.container_ids[container_id] = None
        self._changed(container)
        self._emit(container_id, sandbox, cri.CONTAINER_CREATED_EVENT, now_ns)
        return container

    def start_container(self, container_id: str, now_ns: int) -> None:
        """Starts a created container."""
        container = self.container(container_id)
        sandbox = self.sandboxes[container.sandbox_id]
        if container.state != cri.CONTAINER_CREATED:
            state = cri.ContainerState.Name(container.state)
            raise Unknown(
                f'failed to set starting state for container "{container.id}": container is in {state} state'
            )
        if not sandbox.ready:
            raise Unknown(f'sandbox container "{sandbox.id}" is not running')
        if container.behaviour.start_error:
            self._fail_start(container, now_ns)
        container.state = cri.CONTAINER_RUNNING
        container.started_ns = now_ns
        container.starts += 1
        self._changed(container)
        behaviour = container.behaviour
        if behaviour.run_seconds is not None:
            due = now_ns + round(behaviour.run_seconds * NS)
            self._plan_end(container, due, behaviour.exit_code, REASON_OOM if behaviour.oom else "")
        self._emit(container.id, sandbox, cri.CONTAINER_STARTED_EVENT, now_ns)

    def _fail_start(self, container: Container, now_ns: int) -> None:
        message = (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc "
            f"create failed: unable to start container process: {container.behaviour.start_error}: unknown"
        )
        container.state = cri.CONTAINER_EXITED
        container.finished_ns = now_ns
        container.exit_code = START_ERROR_EXIT_CODE
        container.reason = REASON_START_ERROR
        container.message = message
        self._changed(container)
        raise Unknown(message)

    def stop_container(self, container_id: str, grace_seconds: float, now_ns: int) -> Container | None:
        """Begins to stop a container; returns it while it still runs, None when there is nothing to wait
        for.
        """
        container = self.find_container(container_id)
        if container is None or container.state != cri.CONTAINER_RUNNING:
            return None
        if grace_seconds <= 0:
            self.kill(container.id, now_ns)
            return None
        behaviour = container.behaviour
        if not container.term_sent and not behaviour.ignore_term:
            due = now_ns + round(behaviour.term_seconds * NS)
            self._plan_end(container, due, behaviour.term_exit_code)
        container.term_sent = True
        self._plan_end(container, now_ns + round(grace_seconds * NS), EXIT_SIGKILL)
        self.advance(now_ns)
        return container if container.state == cri.CONTAINER_RUNNING else None

    def kill(self, container_id: str, now_ns: int, exit_code: int = EXIT_SIGKILL, reason: str = "") -> None:
        """A running container ends at once."""
        container = self.find_container(container_id)
        if container is not None and container.state == cri.CONTAINER_RUNNING:
            self._end(container, now_ns, exit_code, reason)

    def remove_container(self, container_id: str, now_ns: int) -> None:
        """Kills and removes a container; nothing to do for one that is gone."""
        container = self.find_container(container_id)
        if container is None:
            return
        self.kill(container.id, now_ns)
        sandbox = self.sandboxes[container.sandbox_id]
        del self.containers[container.id]
        del sandbox.container_ids[container.id]
        self._names.pop("container " + container.name, None)
        self._lists.pop("containers", None)
        self._emit(container.id, sandbox, cri.CONTAINER_DELETED_EVENT, now_ns)

    def update_resources(self, container_id: str, linux: cri.LinuxContainerResources) -> None:
        """New limits: the fields that are set replace the old ones."""
        container = self.container(container_id)
        container.config.linux.resources.MergeFrom(linux)

    def find_container(self, container_id: str) -> Container | None:
        """By id, or by the beginning of one if it is the only one."""
        return _find(self.containers, container_id)

    def container(self, container_id: str) -> Container:
        """As `find_container`, but raises NotFound."""
        if (found := self.find_container(container_id)) is None:
            raise NotFound(f'an error occurred when try to find container "{container_id}": not found')
        return found

    def _end(self, container: Container, at_ns: int, code: int, reason: str) -> None:
        container.state = cri.CONTAINER_EXITED
        container.finished_ns = at_ns
        container.exit_code = code
        container.reason = reason or (REASON_ERROR if code else REASON_COMPLETED)
        self._changed(container)
        for listener in self.on_end:
            listener(container)
        self._emit(container.id, self.sandboxes[container.sandbox_id], cri.CONTAINER_STOPPED_EVENT, at_ns)

    # Lists

    def listed_sandboxes(self, filter: cri.PodSandboxFilter) -> bytes:
        """The serialized ListPodSandboxResponse; without a filter from cached bytes."""
        if not filter.ByteSize():
            return self._joined("sandboxes", self.sandboxes)
        return b"".join(map(_entry, _admitted(filter, self.sandboxes.values())))

    def listed_containers(self, filter: cri.ContainerFilter) -> bytes:
        """The serialized ListContainersResponse; without a filter from cached bytes."""
        if not filter.ByteSize():
            return self._joined("containers", self.containers)
        wanted = self.find_sandbox(filter.pod_sandbox_id) if filter.pod_sandbox_id else None
        ids = wanted.container_ids if wanted else () if filter.pod_sandbox_id else self.containers
        return b"".join(map(_entry, _admitted(filter, (self.containers[i] for i in ids))))

    def _joined(self, key: str, records: Mapping[str, Sandbox | Container]) -> bytes:
        if key not in self._lists:
            self._lists[key] = b"".join(map(_entry, records.values()))
        return self._lists[key]

    def _changed(self, record: Sandbox | Container) -> None:
        record.listed = None
        self._lists.pop("sandboxes" if isinstance(record, Sandbox) else "containers", None)

    # Small things

    def statuses(self, sandbox: Sandbox) -> list[cri.ContainerStatus]:
        """The statuses of all containers in a sandbox."""
        return [self.containers[i].as_status() for i in sandbox.container_ids]

    def _emit(
        self, record_id: str, sandbox: Sandbox, kind: cri.ContainerEventType.ValueType, now_ns: int
    ) -> None:
        def event() -> cri.ContainerEventResponse:
            return cri.ContainerEventResponse(
                container_id=record_id,
                container_event_type=kind,
                created_at=now_ns,
                pod_sandbox_status=sandbox.as_status(),
                containers_statuses=self.statuses(sandbox),
            )

        for listener in tuple(self.listeners):
            listener(event)

    def _reserve(self, what: str, name: str, record_id: str) -> None:
        holder = self._names.setdefault(f"{what} {name}", record_id)
        if holder != record_id:
            raise Unknown(f'failed to reserve {what} name "{name}": name "{name}" is reserved for "{holder}"')

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(256):064x}"

    def _new_ip(self) -> str:
        """A loopback address: what probes a simulated pod must not reach another machine."""
        self._addresses += 1
        return f"127.88.{self._addresses // 250 % 256}.{self._addresses % 250 + 2}"


def _copy(message: M) -> M:
    """A message of our own: the caller may go on using his."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _find(records: Mapping[str, R], wanted: str) -> R | None:
    if (found := records.get(wanted)) is not None or not wanted:
        return found
    matches = [record for key, record in records.items() if key.startswith(wanted)]
    return matches[0] if len(matches) == 1 else None


def _entry(record: Sandbox | Container) -> bytes:
    if record.listed is None:
        record.listed = list_entry(record.as_item())
    return record.listed


def _admitted(filter: cri.PodSandboxFilter | cri.ContainerFilter, records: Iterable[Kept]) -> Iterator[Kept]:
    """Those that the filter lets through, which is read once, not for each of many records."""
    start, selector = filter.id, dict(filter.label_selector)
    state = filter.state.state if filter.HasField("state") else None
    for record in records:
        if (
            state in (None, record.state)
            and record.id.startswith(start)
            and selected(selector, record.config.labels)
        ):
            yield record


def selected(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether labels have everything that a selector asks for."""
    return all(labels.get(key) == value for key, value in selector.items())
