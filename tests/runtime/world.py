"""A pod runtime on the simulated container runtime, in virtual time."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.cgroups.plan import pod_cgroup_limits
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.net.http import HTTPRequest
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.paths import clean_container_path
from trio_kubelet.runtime.configs.labels import container_annotations, container_labels, pod_labels
from trio_kubelet.runtime.configs.resources import container_resources
from trio_kubelet.runtime.doors import ContainerRequest, HookHTTPError, SyncContext
from trio_kubelet.runtime.log_links import read_restart_count
from trio_kubelet.runtime.metrics import RuntimeMetrics
from trio_kubelet.runtime.pod_amounts import PodAmounts, merged, sandbox_update
from trio_kubelet.runtime.pod_runtime import PodRuntime, RuntimeSettings
from trio_kubelet.runtime.results import PodSyncResult
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.faults import Fault, Faults, Kind
from trio_kubelet.sim.records import Container, Sandbox
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService

EPOCH_NS = 1_700_000_000_000_000_000
IMAGES = ("localhost/busybox:1",)
NODE = NodeContext(node_name="node")


class Event(NamedTuple):
    """An event that was recorded."""

    type: str
    reason: str
    message: str
    field_path: str


class Events:
    """Keeps the events that are recorded."""

    def __init__(self) -> None:
        self.all: list[Event] = []

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.all.append(Event(type, reason, message, field_path))

    def reasons(self) -> list[str]:
        return [event.reason for event in self.all]

    def of(self, reason: str) -> list[Event]:
        return [event for event in self.all if event.reason == reason]


class Configs:
    """The least that the simulated runtime needs."""

    def __init__(self, logs: str, termination_logs: Path, limits: Limits | None = None) -> None:
        self._logs = logs
        self._limits = limits
        self._termination_logs = termination_logs
        self.failure = ""
        self.sandbox_failure = ""
        self.requests: list[ContainerRequest] = []
        self.reminded = 0

    def remind(self, pod: v1.Pod) -> None:
        self.reminded += 1

    async def sandbox_config(self, pod: v1.Pod, attempt: int) -> cri.PodSandboxConfig:
        if self.sandbox_failure:
            raise ConfigError(self.sandbox_failure)
        if self._limits is not None:
            self._limits.start(pod)
        meta = pod.metadata
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(
                name=meta.name, namespace=meta.namespace, uid=meta.uid, attempt=attempt
            ),
            log_directory=f"{self._logs}/{meta.namespace}_{meta.name}_{meta.uid}",
            labels=pod_labels(pod),
        )
        options = config.linux.security_context.namespace_options
        options.network = cri.NODE if pod.spec.host_network else cri.POD
        os.makedirs(config.log_directory, exist_ok=True)
        return config

    def runtime_handler(self, pod: v1.Pod) -> str:
        return pod.spec.runtime_class_name or ""

    async def container_config(
        self, pod: v1.Pod, container: v1.Container, request: ContainerRequest
    ) -> cri.ContainerConfig:
        if self.failure:
            raise ConfigError(self.failure)
        linux = cri.LinuxContainerConfig(resources=self.container_resources(pod, container))
        self.requests.append(request)
        meta = pod.metadata
        logs = f"{self._logs}/{meta.namespace}_{meta.name}_{meta.uid}/{container.name}"
        os.makedirs(logs, exist_ok=True)
        known = request.restart_count
        restarts = read_restart_count(logs) if known is None else known
        message_file = self._termination_logs / f"{container.name}-{restarts}"
        message_file.touch()
        return cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=container.name, attempt=restarts),
            image=cri.ImageSpec(image=request.image_ref, user_specified_image=container.image),
            command=container.command or (),
            labels=container_labels(pod, container.name),
            annotations=container_annotations(pod, container, restarts),
            mounts=[
                cri.Mount(
                    host_path=str(message_file),
                    container_path=clean_container_path(container.termination_message_path),
                )
            ],
            log_path=f"{container.name}/{restarts}.log",
            linux=linux,
        )

    def container_resources(self, pod: v1.Pod, container: v1.Container) -> cri.LinuxContainerResources:
        return container_resources(pod, container, NODE)


class Limits:
    """The cgroups of pods, in memory, and which resources of them were changed."""

    def __init__(self) -> None:
        self.applied: list[tuple[float, str]] = []
        self.failure = ""
        self.known = True  # whether what is in force can be read
        self.in_use = 0  # bytes of memory
        self.amounts: dict[str, PodAmounts] = {}  # by UID

    def start(self, pod: v1.Pod) -> None:
        """The pod gets its cgroup, unless it has one."""
        self.amounts.setdefault(pod.metadata.uid, self.wanted(pod))

    def wanted(self, pod: v1.Pod) -> PodAmounts:
        limits = msgspec.structs.asdict(pod_cgroup_limits(pod, NODE))
        return PodAmounts(**{name: limits[name] for name in PodAmounts.__struct_fields__})

    async def current(self, pod: v1.Pod) -> PodAmounts:
        await trio.lowlevel.checkpoint()
        return self.amounts[pod.metadata.uid] if self.known else PodAmounts()

    async def memory_in_use(self, pod: v1.Pod) -> int | None:
        await trio.lowlevel.checkpoint()
        return self.in_use

    async def apply(self, pod: v1.Pod, amounts: PodAmounts) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure:
            raise ConfigError(self.failure)
        self.applied.append((trio.current_time(), "cpu" if amounts.memory is None else "memory"))
        self.amounts[pod.metadata.uid] = merged(self.amounts[pod.metadata.uid], amounts)

    def sandbox_update(
        self, pod: v1.Pod, amounts: PodAmounts
    ) -> tuple[cri.LinuxContainerResources, cri.LinuxContainerResources]:
        return sandbox_update(pod, amounts, NODE)


class WallClock(TrioClock):
    """A clock that somebody may set."""

    def __init__(self) -> None:
        super().__init__(EPOCH_NS)
        self._back_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() - self._back_ns

    def set_back(self, seconds: int) -> None:
        self._back_ns += seconds * NANOSECONDS


class HTTP:
    """Answers HTTP hooks; a URL in `failures` is not answered, one that `hangs` is waited for in vain."""

    def __init__(self) -> None:
        self.requests: list[HTTPRequest] = []
        self.failures: dict[str, HookHTTPError] = {}
        self.hangs = False

    async def get(self, request: HTTPRequest) -> None:
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        if self.hangs:
            await trio.sleep_forever()
        if request.url in self.failures:
            raise self.failures[request.url]


class World:
    """Everything a test wants to look at."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.logs = directory / "pods"
        self.links = directory / "containers"
        self.messages = directory / "messages"
        self.messages.mkdir(parents=True)
        self.clock = WallClock()
        self.faults = Faults()
        self.events = Events()
        self.registry = CollectorRegistry(auto_describe=False)
        self.metrics = RuntimeMetrics(self.registry)
        self.http = HTTP()
        self.exec: list[tuple[float, str, tuple[str, ...]]] = []  # when, in which container, what
        runtime = SimRuntime(preload=IMAGES)
        self.service = SimService(
            runtime, self.clock, faults=self.faults, exec_script=self._note_exec, write_logs=True
        )
        services = sim_services(self.service)
        self.cri = services.runtime
        self.pod_limits = Limits()
        self.configs = Configs(str(self.logs), self.messages, self.pod_limits)
        self.another_runtime = partial(
            PodRuntime,
            runtime=services.runtime,
            images=services.images,
            configs=self.configs,
            recorder=self.events,
            clock=self.clock,
            hook_http=self.http,
            metrics=self.metrics,
            pod_limits=self.pod_limits,
            has_ended=lambda uid, id: runtime.containers[id].state == cri.CONTAINER_EXITED,
            settings=RuntimeSettings(
                pod_logs_dir=str(self.logs), container_logs_dir=str(self.links), **settings
            ),
        )
        """A pod runtime that knows nothing yet, as after a restart of the agent."""
        self.runtime = self.another_runtime()

    def _note_exec(self, container: Container, cmd: Sequence[str]) -> None:
        self.exec.append((trio.current_time(), container.config.metadata.name, tuple(cmd)))

    async def status(self, pod: v1.Pod) -> PodStatus:
        meta = pod.metadata
        return await self.runtime.get_pod_status(meta.uid, meta.name, meta.namespace)

    async def sync(self, pod: v1.Pod, **context: Any) -> PodSyncResult:
        """Looks at the pod and syncs it."""
        return await self.runtime.sync_pod(pod, await self.status(pod), SyncContext(**context))

    async def sync_ok(self, pod: v1.Pod) -> None:
        result = await self.sync(pod)
        assert result.ok, str(result)

    async def until_running(self, a_pod: v1.Pod, *names: str) -> None:
        """Syncs once a second until exactly these containers run."""
        for _ in range(20):
            await self.sync(a_pod)
            await trio.sleep(1)
            if sorted(self.running()) == sorted(names):
                return
        raise AssertionError(f"{self.running()} instead of {names}")

    def fail(self, method: str, kind: Kind = Kind.FAIL, **more: Any) -> None:
        """The next call of the method fails."""
        more.setdefault("count", 1)
        self.faults.add(Fault(kind, method, **more))

    def measured(self, metric: str, **labels: str) -> float | None:
        """What a metric stands at."""
        return self.registry.get_sample_value(metric, labels)

    @property
    def containers(self) -> list[Container]:
        return list(self.service.runtime.containers.values())

    @property
    def sandboxes(self) -> list[Sandbox]:
        return list(self.service.runtime.sandboxes.values())

    def running(self) -> list[str]:
        """Names of the running containers, in the order of their start."""
        live = [c for c in self.containers if c.state == cri.CONTAINER_RUNNING]
        return [c.config.metadata.name for c in sorted(live, key=lambda c: c.started_ns)]

    def container(self, name: str) -> Container:
        """The newest container of that name."""
        return max((c for c in self.containers if c.config.metadata.name == name), key=lambda c: c.created_ns)


@asynccontextmanager
async def world(directory: Path, **settings: Any) -> AsyncIterator[World]:
    """A world whose simulated runtime runs until the context is left."""
    here = World(directory, settings)
    os.makedirs(here.logs, exist_ok=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(here.service.run)
        yield here
        nursery.cancel_scope.cancel()
