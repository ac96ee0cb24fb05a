"""The node-local agent over given doors: the rooms joined, the tasks in one nursery.

The agent of a real node gets doors to containerd and the kernel (`agent.run`), the simulation doors in
memory; everything in between is the same. A task that ends with an error here ends the agent, because
without it the agent would be wrong; those under `keep_running` only make it slower or less tidy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.native import RelistTable
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.pleg.evented import EventedPLEG
from trio_kubelet.pleg.generic import GenericPLEG
from trio_kubelet.pleg.metrics import PLEGMetrics
from trio_kubelet.podinfo.doors import ConfigError
from trio_kubelet.podinfo.recorder import EventRecorder, PodEvent, log_event
from trio_kubelet.podinfo.updates import PodUpdate
from trio_kubelet.pods.admission.allocating import Allocating
from trio_kubelet.pods.doors import (
    Admitter,
    CgroupsDoor,
    ClusterDoor,
    DirectoriesDoor,
    NoCluster,
    NothingPlugged,
    PluggedDoor,
    SourcesDoor,
    TracesDoor,
    Untraced,
    VolumesDoor,
)
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.room import PodsRoom
from trio_kubelet.pods.start_latency import PodStarts
from trio_kubelet.pods.status.reporter import NodeView
from trio_kubelet.pods.work import WorkerPeriods
from trio_kubelet.probes.manager import ProbeManager
from trio_kubelet.probes.metrics import ProbeMetrics
from trio_kubelet.runtime.doors import AccessCheck, GCPolicy, PodConfigs, PodLimits
from trio_kubelet.runtime.image_access import OpenToAll
from trio_kubelet.runtime.metrics import RuntimeMetrics
from trio_kubelet.runtime.pod_runtime import PodRuntime, RuntimeSettings
from trio_kubelet.runtime.status_reader import nobody_knows


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator can set of the node-local agent."""

    runtime: RuntimeSettings = RuntimeSettings()
    gc: GCPolicy = GCPolicy()
    workers: WorkerPeriods = WorkerPeriods()
    use_events: bool = True
    ipv6_first: bool = False  # by `--node-ip`: the family statuses begin with
    stop_signals: bool = False  # gate `ContainerStopSignals`: statuses show them
    forgets_readiness: bool = False  # gate `ChangeContainerStatusOnKubeletRestart`
    ready_to_start: bool = True  # gate `PodReadyToStartContainersCondition`: there is one
    pod_resources: bool = True  # gate `InPlacePodLevelResourcesVerticalScaling`: statuses show them


class NodeAgent:
    """The node-local agent: from pod updates to containers, over given doors."""

    def __init__(
        self,
        *,
        pods: PodManager,
        runtime: RuntimeService,
        images: ImageService,
        health: RuntimeHealth,
        configs: PodConfigs,
        volumes: VolumesDoor,
        cgroups: CgroupsDoor,
        directories: DirectoriesDoor,
        sources: SourcesDoor,
        admitter: Admitter,
        recorder: EventRecorder,
        clock: Clock,
        registry: CollectorRegistry,  # of the metrics of `/metrics`
        pod_limits: PodLimits | None = None,  # None: pods have no cgroups of their own
        cluster: ClusterDoor = NoCluster(),
        plugged: PluggedDoor = NothingPlugged(),
        image_access: AccessCheck | None = OpenToAll(),
        oom_killed: Callable[[str], bool] = nobody_knows,
        allocating: Allocating | None = None,  # None: nothing is handed out piece by piece
        traces: TracesDoor = Untraced(),
        settings: AgentSettings,
    ) -> None:
        self._configs, self._settings = configs, settings
        self._cluster, self._plugged = cluster, plugged
        self.registry = registry
        self.probe_metrics = ProbeMetrics()
        self.starts = PodStarts(registry, clock)
        self.cache = StatusCache()
        self.runtime = PodRuntime(
            runtime=runtime,
            images=images,
            configs=configs,
            recorder=recorder,
            clock=clock,
            pod_limits=pod_limits,
            metrics=RuntimeMetrics(registry),
            pulled=self.starts.pulled,
            image_access=image_access,
            oom_killed=oom_killed,
            has_ended=self.cache.has_ended,
            settings=settings.runtime,
        )
        self.pleg, self._evented = self._make_plegs(runtime, clock)
        self.health = health
        self.health.watch_pleg(self.pleg.healthy)
        self.probes = ProbeManager(
            exec_sync=runtime.exec_sync,
            repeat_exec=runtime.repeat_exec,
            recorder=recorder,
            clock=clock,
            metrics=self.probe_metrics,
            keeps_results=not settings.forgets_readiness,
        )
        self.room = PodsRoom(
            pods=pods,
            runtime=self.runtime,
            cache=self.cache,
            pleg=self.pleg,
            volumes=volumes,
            cgroups=cgroups,
            directories=directories,
            health=self.health,
            sources=sources,
            recorder=recorder,
            admitter=admitter,
            clock=clock,
            registry=registry,
            allocating=allocating,
            probes=self.probes,
            node=self._view,
            cluster=cluster,
            claims=plugged,
            traces=traces,
            gc_policy=settings.gc,
            worker_periods=settings.workers,
        )
        recorder.pod_events.listen(log_event)
        recorder.pod_events.listen(self._tell)
        self.room.statuses.changed.listen(self._status_changed)

    def _make_plegs(self, runtime: RuntimeService, clock: Clock) -> tuple[GenericPLEG, EventedPLEG]:
        """Who looks at the runtime, and who has its events make it look at once."""
        metrics = PLEGMetrics(self.registry)
        generic = GenericPLEG(
            runtime=runtime,
            reader=self.runtime,
            table=RelistTable(),
            cache=self.cache,
            clock=clock,
            metrics=metrics,
        )
        return generic, EventedPLEG(
            generic=generic, runtime=runtime, cache=self.cache, clock=clock, metrics=metrics
        )

    async def run(
        self,
        updates: trio.MemoryReceiveChannel[PodUpdate],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until `updates` is closed or it is cancelled; pods are left running."""
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as beside:  # each asks the runtime first
                beside.start_soon(nursery.start, self.health.run)
                beside.start_soon(nursery.start, self.pleg.run)
            await nursery.start(self.probes.run)
            rotate_logs = partial(self.runtime.rotate_logs, self.cache.statuses)
            nursery.start_soon(keep_running, "log rotation", rotate_logs)
            nursery.start_soon(keep_running, "log links", self.runtime.link_logs)
            await nursery.start(self.room.run, updates)
            task_status.started()

    async def follow_events(self) -> None:
        """Follows the runtime's events for ever, where they are wanted: hints that nothing waits for."""
        if self._settings.use_events:
            await keep_running("evented PLEG", self._evented.run)

    async def run_once(self, updates: trio.MemoryReceiveChannel[PodUpdate]) -> None:
        """Starts the pods of the first update and leaves them running. Raises RunOnceError."""
        await self.health.ask()
        await self.room.run_once(updates)

    def health_checks(self) -> dict[str, Callable[[], str | None]]:
        """The named checks of `/healthz` on the agent's own ports."""
        return {
            "ping": lambda: None,
            "log": lambda: None,
            "syncloop": self.room.loop.healthy,
            "device-plugin": self._plugged.healthy,
        }

    def status_line(self) -> str:
        """What `systemctl status` says of this agent."""
        pods = len(self.room.pods.pods())
        away = self.room.loop.healthy()
        return f"{pods} pod{'' if pods == 1 else 's'}" + (f", {away}" if away else "")

    def _view(self) -> NodeView:
        """What statuses say about the node."""
        return NodeView(
            host_ips=self._cluster.host_ips(),
            ipv6_first=self._settings.ipv6_first,
            runtime_name=self.health.last_name or NodeView().runtime_name,
            recursive_read_only=self._has_recursive_read_only,
            stop_signals=self._settings.stop_signals,
            ready_to_start=self._settings.ready_to_start,
            pod_resources=self._settings.pod_resources,
            given_health=self._plugged.given_health,
        )

    def _has_recursive_read_only(self, pod: Pod) -> bool:
        try:
            handler = self._configs.runtime_handler(pod)
        except ConfigError:
            return False
        return self.health.handler(handler).recursive_read_only_mounts

    def _tell(self, event: PodEvent) -> None:
        self.room.story.note(event.pod.metadata.uid, event.at_ns, "event", f"{event.reason}: {event.message}")

    def _status_changed(self, uid: str) -> None:
        """The prober and the pod start SLI see containers through the status that was made for their pod."""
        pod, status = self.room.pods.get(uid), self.room.statuses.get(uid)
        if pod is not None and status is not None:
            self.probes.pod_status_changed(pod, status)
            self.starts.status_changed(pod, status)
