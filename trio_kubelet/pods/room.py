"""Puts the pods room together: one place where manager, workers, sync loop and their helpers are joined.

The composition root hands in the doors and starts `run` in its nursery; it ends when the update channel is
closed. Everything others ask about pods (the HTTP server, garbage collection, eviction) is an attribute.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.updates import PodUpdate
from trio_kubelet.pods.admission.allocating import Allocating, NothingToAllocate
from trio_kubelet.pods.admission.entrance import Entrance
from trio_kubelet.pods.admission.preemption import Preempter
from trio_kubelet.pods.cleaner import Cleaner
from trio_kubelet.pods.doors import (
    Admitter,
    CgroupError,
    CgroupsDoor,
    ClaimsDoor,
    ClusterDoor,
    DirectoriesDoor,
    HealthDoor,
    PlegDoor,
    ProbeResults,
    RuntimeDoor,
    SourcesDoor,
    StatusDoor,
    TracesDoor,
    Untraced,
    VolumesDoor,
)
from trio_kubelet.pods.groundwork import Groundwork
from trio_kubelet.pods.handler import SyncHandler
from trio_kubelet.pods.housekeeping import Housekeeper
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.resize.progress import ResizeProgress
from trio_kubelet.pods.resize.resizes import Resizes
from trio_kubelet.pods.rounds import ReasonCache, RoundSteps
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.status.reporter import NodeView, StatusReporter
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.sync_loop import SyncLoop
from trio_kubelet.pods.syncer import Syncer
from trio_kubelet.pods.victims import Victims
from trio_kubelet.pods.work import WorkerPeriods
from trio_kubelet.pods.workers import PodWorkers
from trio_kubelet.runtime.doors import GCPolicy

log = get_logger(__name__)

CLASSES_PERIOD = 60.0
"""Seconds between updates of the classes of service (kubelet: `periodicQOSCgroupUpdateInterval`)."""


class PodsRoom:
    """The assembled room."""

    def __init__(
        self,
        *,
        pods: PodManager,
        runtime: RuntimeDoor,
        cache: StatusDoor,
        pleg: PlegDoor,
        volumes: VolumesDoor,
        cgroups: CgroupsDoor,
        directories: DirectoriesDoor,
        health: HealthDoor,
        sources: SourcesDoor,
        recorder: RecorderDoor,
        admitter: Admitter,
        clock: Clock,
        registry: CollectorRegistry,
        allocating: Allocating | None,  # None: nothing is handed out piece by piece
        probes: ProbeResults,
        cluster: ClusterDoor,
        claims: ClaimsDoor,
        node: Callable[[], NodeView] = NodeView,
        traces: TracesDoor = Untraced(),
        gc_policy: GCPolicy,
        worker_periods: WorkerPeriods,
    ) -> None:
        self._runtime, self._cache, self._pleg, self._probes = runtime, cache, pleg, probes
        self._cgroups, self._directories = cgroups, directories
        self._sources, self._health, self._cluster = sources, health, cluster
        self._admitter, self._allocating = admitter, allocating or Allocating(NothingToAllocate())
        self._recorder, self._clock = recorder, clock
        self.metrics, self.story = PodMetrics(registry), Story()
        self.steps, self.reasons = RoundSteps(clock), ReasonCache()
        self.pods = pods
        self.statuses = StatusManager(pods, clock, self.metrics.container_ended)
        self.cleaner = Cleaner(
            runtime=runtime,
            cache=cache,
            volumes=volumes,
            cgroups=cgroups,
            directories=directories,
            sources=sources,
            policy=gc_policy,
            recorder=recorder,
            span=traces.span,
        )
        self._resizes = ResizeProgress(
            statuses=self.statuses,
            recorder=recorder,
            clock=clock,
            granted=admitter.as_granted,
            as_actuated=admitter.as_actuated,
        )
        self._syncer = self._make_syncer(volumes, claims, node)
        self.workers = PodWorkers(
            syncer=traces.syncer(self._syncer),
            status=cache,
            pleg=pleg,
            clock=clock,
            metrics=self.metrics,
            recorder=recorder,
            story=self.story,
            periods=worker_periods,
        )
        self._preempter = Preempter(self.workers, recorder, self.metrics)
        self.handler = self._make_handler()
        self._resizes.actuated.listen(self.handler.actuated)
        self.loop = self._make_loop()
        self.victims = Victims(
            active=self.handler.active_pods,
            workers=self.workers,
            observed=cache,
            recorder=recorder,
            story=self.story,
            clock=clock,
        )

    def _make_syncer(self, volumes: VolumesDoor, claims: ClaimsDoor, node: Callable[[], NodeView]) -> Syncer:
        """Who does what a pod's stage asks for."""
        as_actuated = self._admitter.as_actuated
        reporter = StatusReporter(
            statuses=self.statuses,
            node=node,
            as_actuated=as_actuated,
            probes=self._probes,
            reasons=self.reasons,
            recorder=self._recorder,
            clock=self._clock,
        )
        ground = Groundwork(
            cgroups=self._cgroups,
            directories=self._directories,
            volumes=volumes,
            runtime=self._runtime,
            as_actuated=as_actuated,
            reporter=reporter,
            steps=self.steps,
            recorder=self._recorder,
            metrics=self.metrics,
            clock=self._clock,
        )
        return Syncer(
            runtime=self._runtime,
            statuses=self.statuses,
            reporter=reporter,
            ground=ground,
            resizes=self._resizes,
            probes=self._probes,
            health=self._health,
            cluster=self._cluster,
            claims=claims,
            settled=self.cleaner.settled,
            steps=self.steps,
            story=self.story,
            recorder=self._recorder,
            metrics=self.metrics,
            clock=self._clock,
        )

    def _make_handler(self) -> SyncHandler:
        """Who decides what news mean for the workers."""
        entrance = Entrance(
            pods=self.pods,
            workers=self.workers,
            statuses=self.statuses,
            admitter=self._admitter,
            pleg=self._pleg,
            recorder=self._recorder,
            metrics=self.metrics,
            story=self.story,
            clock=self._clock,
            preempt=self._preempter.preempt,
            allocate=self._allocating.begin,
        )
        resizes = Resizes(
            pods=self.pods,
            statuses=self.statuses,
            admitter=self._admitter,
            recorder=self._recorder,
            metrics=self.metrics,
            story=self.story,
            clock=self._clock,
            active=entrance.active,
            preempt=self._preempter.preempt,
        )
        return SyncHandler(
            pods=self.pods,
            workers=self.workers,
            statuses=self.statuses,
            admitter=self._admitter,
            cache=self._cache,
            recorder=self._recorder,
            metrics=self.metrics,
            story=self.story,
            clock=self._clock,
            cleaner=self.cleaner,
            entrance=entrance,
            resizes=resizes,
        )

    def _make_loop(self) -> SyncLoop:
        """Who receives all news, and keeps house."""
        housekeeper = Housekeeper(
            pods=self.pods,
            workers=self.workers,
            handler=self.handler,
            statuses=self.statuses,
            probes=self._probes,
            runtime=self._runtime,
            sources=self._sources,
            cache=self._cache,
            pleg=self._pleg,
            metrics=self.metrics,
            story=self.story,
            clock=self._clock,
            cgroups=self._cgroups,
            directories=self._directories,
            cleaner=self.cleaner,
            mirrors=self._cluster.mirrors,
        )
        return SyncLoop(
            pods=self.pods,
            workers=self.workers,
            handler=self.handler,
            statuses=self.statuses,
            housekeeper=housekeeper,
            pleg=self._pleg,
            probes=self._probes,
            health=self._health,
            sources=self._sources,
            metrics=self.metrics,
            clock=self._clock,
        )

    async def run(
        self,
        updates: trio.MemoryReceiveChannel[PodUpdate],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs workers, cleaner and sync loop until `updates` is closed. Pods are left running."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.workers.run)
            await nursery.start(self.cleaner.run, self.workers)
            await nursery.start(self._preempter.run, self.loop.made_room)
            await nursery.start(self._allocating.run, self.loop.allocated)
            nursery.start_soon(self._keep_classes)
            task_status.started()
            await self.loop.run(updates)
            nursery.cancel_scope.cancel()

    async def run_once(self, updates: trio.MemoryReceiveChannel[PodUpdate]) -> list[Pod]:
        """Starts the pods of the first update and returns them (`--runonce`). Raises RunOnceError."""
        from trio_kubelet.pods.run_once import RunOnce

        once = RunOnce(
            runtime=self._runtime,
            syncer=self._syncer,
            admitter=self._admitter,
            allocating=self._allocating,
            recorder=self._recorder,
            clock=self._clock,
        )
        return await once.run(updates)

    def pods_with_status(self) -> list[Pod]:
        """The desired pods with their latest status, as `/pods` shows them."""
        shown = []
        for pod in self.pods.pods():
            status = self.statuses.get(pod.metadata.uid)
            shown.append(pod if status is None else msgspec.structs.replace(pod, status=status))
        return shown

    async def _keep_classes(self) -> None:
        """Pods end and are resized: each minute their classes of service get what is asked for now."""
        while True:
            await trio.sleep(CLASSES_PERIOD)
            try:
                pods, known = self.handler.active_pods(), self._sources.all_ready()
                await self._cgroups.update_classes(pods, all_known=known)
            except CgroupError as exc:
                log.error("Failed to update the cgroups of the QoS classes", err=exc)
