"""Housekeeping: what should not be there is found and ended, what should be there and is not is started.

Two halves. `gather` looks at the node (cgroups, runtime, directories) in a task of its own, so that a slow
disk or runtime does not hold up the sync loop. `apply` then compares what was seen with what is
wanted *now*, without waiting for anything: what was seen is older than what is wanted, so a pod that came up
in between is not mistaken for an orphan. Order of the steps as in the kubelet's `HandlePodCleanups`, but that
directories are removed at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

import msgspec

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.observed.types import RunningPod
from trio_kubelet.podinfo.updates import FILE_SOURCE, HTTP_SOURCE, is_static, may_be_of_api
from trio_kubelet.pods.cleaner import Cleaner
from trio_kubelet.pods.doors import (
    CgroupError,
    CgroupsDoor,
    DirectoriesDoor,
    MirrorsDoor,
    PlegDoor,
    ProbeResults,
    RuntimeDoor,
    SourcesDoor,
    StatusDoor,
)
from trio_kubelet.pods.handler import SyncHandler
from trio_kubelet.pods.manager import PodManager, split_by_static
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.refs import (
    is_terminal_phase,
    pod_full_name,
    runtime_source,
    split_full_name,
    view_runs,
)
from trio_kubelet.pods.status.conditions import RESIZE_IN_PROGRESS, RESIZE_PENDING, find
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.worker_state import MIN_GRACE, Stage, Worker
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)


def orphan_grace(source: str) -> int | None:
    """Seconds for a pod that only the runtime knows, by the source it came from; None: what its containers'
    annotations say.

    A pod that the API server has no more was deleted by force, and may run elsewhere by now. Of one whose
    manifest went while no agent ran, or just before its agent was killed, nobody has asked for haste.
    """
    return None if source in (FILE_SOURCE, HTTP_SOURCE) else MIN_GRACE


class NodeInventory(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen on the node."""

    cgroups: frozenset[str] = frozenset()  # UIDs of pods with a cgroup
    directories: frozenset[str] = frozenset()  # UIDs of pods with a directory
    strangers: tuple[RunningPod, ...] = ()  # pods of the runtime that no worker knew


class Housekeeper:
    """Looks at the node, and applies what was seen."""

    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        handler: SyncHandler,
        statuses: StatusManager,
        probes: ProbeResults,
        runtime: RuntimeDoor,
        sources: SourcesDoor,
        cache: StatusDoor,
        pleg: PlegDoor,
        metrics: PodMetrics,
        story: Story,
        clock: Clock,
        cgroups: CgroupsDoor,
        directories: DirectoriesDoor,
        cleaner: Cleaner,
        mirrors: MirrorsDoor,
    ) -> None:
        self._workers = workers
        self._handler = handler
        self._statuses = statuses
        self._sources = sources
        self._cache = cache
        self._pleg = pleg
        self._metrics = metrics
        self._story = story
        self._clock = clock
        self._cgroups = cgroups
        self._directories = directories
        self._cleaner = cleaner
        self._mirrors = mirrors
        self._pods = pods
        self._probes = probes
        self._runtime = runtime
        self._orphans: set[str] = set()  # UIDs whose directories were to go last time

    async def gather(self) -> NodeInventory:
        """One look, cgroups first. Raises CRIError or OSError; then there is no housekeeping this time."""
        cgroups = frozenset(await self._cgroups.pods())
        strangers: tuple[RunningPod, ...] = ()
        if self._suspects():
            running = await self._runtime.get_pods()
            strangers = tuple(pod for pod in running if self._workers.get(pod.uid) is None)
        directories = frozenset(await self._directories.pods())
        return NodeInventory(cgroups=cgroups, directories=directories, strangers=strangers)

    def _suspects(self) -> bool:
        """Whether the last relist shows a running pod without a worker; only then the runtime is asked."""
        for uid in self._pleg.pods():
            if self._workers.get(uid) is None and view_runs(self._pleg.pod(uid)):
                return True
        return False

    def apply(self, seen: NodeInventory) -> None:
        """Everything that follows from `seen`; waits for nothing."""
        everything = self._pods.pods_and_mirrors()
        wanted = {pod.metadata.uid for pod in everything.pods}
        complete = self._sources.all_ready()
        may_clean = self._may_clean(complete)
        self._end_unwanted_workers(wanted)
        alive = {uid for uid, worker in self._workers.known().items() if worker.may_run_containers}
        running = {pod.uid for pod in seen.strangers}
        self._probes.keep_only(alive)
        mirrors = {mirror.metadata.uid for mirror in everything.mirrors}
        self._statuses.keep_only(wanted | mirrors | self._workers.known().keys())
        if complete:
            self._handler.keep_only(wanted | self._workers.known().keys())
            self._handler.ask_resizes()
            for name in everything.orphaned_mirrors:
                if not self._is_shown_yet(name):
                    self._mirrors.delete_orphan(name)
            self._mirror_idle(everything.pods)
        self._start_missing()
        self._finish_refused(everything.pods, running)
        self._end_orphans(seen.strangers, wanted)
        self._free_names()
        # By now, every other pod that is to have something on the node has a worker. A refused one has none,
        # and may have run before a restart.
        kept = running | self._handler.not_started_yet()
        self._clean_up(filter(may_clean, seen.directories), kept)
        self._clean_cgroups(filter(may_clean, seen.cgroups), kept)
        self._handler.retry_resizes()
        self._runtime.collect_back_offs()
        self._measure(everything.pods, len(everything.mirrors), wanted)

    def _end_unwanted_workers(self, wanted: Collection[str]) -> None:
        """Workers whose pod no source wants any more end; finished ones are forgotten."""
        for uid, worker in self._workers.known().items():
            if worker.stage is Stage.FINISHED:
                self._handler.after_end(uid)
            elif uid not in wanted and not worker.deleted:
                self._workers.remove(uid, cause="housekeeping")

    def _may_clean(self, complete: bool) -> Callable[[str], bool]:
        """Of which pods, by UID, it is known that no source wants them unless one has said so.

        A missing API server does not hold up static pods.
        """
        manifests = self._sources.manifests_ready()
        return lambda uid: complete or (manifests and not may_be_of_api(uid))

    def _clean_up(self, directories: Iterable[str], keep: Collection[str]) -> None:
        """Directories of pods that neither run nor will. One that was to go last time already and is still
        there counts as an error, as with the kubelet, whether it failed or takes long.
        """
        orphans = {uid for uid in directories if uid not in keep and self._workers.get(uid) is None}
        self._metrics.orphans.set(len(orphans))
        self._metrics.orphans_left.set(len(orphans & self._orphans))
        self._orphans = orphans
        for uid in orphans:
            self._cleaner.clean(uid)

    def _mirror_idle(self, pods: Iterable[Pod]) -> None:
        """Static pods that were refused or are over have mirrors, too, which no round looks after: that of an
        earlier version would stay.
        """
        waiting = self._handler.not_started_yet()
        for pod in pods:
            worker = self._workers.get(pod.metadata.uid)
            is_idle = worker is None or worker.stage is Stage.FINISHED
            if not is_static(pod) or not is_idle or pod.metadata.uid in waiting:
                continue
            if not self._is_shown_yet(pod_full_name(pod), pod.metadata.uid):
                self._mirrors.reconcile(pod)

    def _is_shown_yet(self, full_name: str, but: str = "") -> bool:
        """Whether the mirror of that name shows an earlier pod than the one of that UID, which has not ended
        yet: be it one that an earlier agent began.
        """
        if self._workers.is_name_ending(full_name):
            return True
        others = (uid for uid in self._pleg.namesakes(*split_full_name(full_name)) if uid != but)
        return any(view_runs(self._pleg.pod(uid)) for uid in others)

    def _start_missing(self) -> None:
        """Wanted pods without a worker are started; they had none because their UID came back."""
        waiting = self._handler.not_started_yet()
        for pod in self._handler.active_pods():
            uid = pod.metadata.uid
            if self._workers.get(uid) is None and uid not in waiting:
                log.info("Pod is wanted and has no worker, starting it", pod=pod, podUID=uid)
                self._handler.start_again(pod, cause="housekeeping")

    def _finish_refused(self, pods: Collection[Pod], running: Collection[str]) -> None:
        """Refused pods that are being deleted and never had a worker go through its last stages."""
        for pod in pods:
            uid = pod.metadata.uid
            if pod.metadata.deletion_timestamp is None or not is_terminal_phase(pod.status.phase):
                continue
            if self._workers.get(uid) is None and uid not in running:
                self._workers.kill(pod, cause="deleted without ever having run")

    def _end_orphans(self, strangers: Collection[RunningPod], wanted: Collection[str]) -> None:
        """Pods of the runtime nobody wants. The source they came from must have reported, or, if that is
        not known, all sources.
        """
        waiting = self._handler.not_started_yet()
        for pod in strangers:
            if self._workers.get(pod.uid) is not None or pod.uid in waiting:
                continue
            source = runtime_source(self._cache.get(pod.uid))
            reported = self._sources.source_ready(source) if source else self._sources.all_ready()
            if not reported:
                continue
            log.v(2).info("Ending orphaned pod", pod=f"{pod.namespace}/{pod.name}", podUID=pod.uid)
            text = (
                "found running, wanted by nobody" if pod.uid not in wanted else "found running, but refused"
            )
            self._story.note(pod.uid, self._clock.now_ns(), "housekeeping", text)
            self._workers.kill_orphan(pod, orphan_grace(source))
            self._metrics.orphaned_runtime_pods.inc()

    def _free_names(self) -> None:
        """Static names held for a pod of the runtime that has vanished by itself."""
        for name, uid in self._workers.name_holders().items():
            if self._workers.get(uid) is None and not view_runs(self._pleg.pod(uid)):
                self._workers.free_name(name, uid)

    def _clean_cgroups(self, cgroups: Iterable[str], keep: Collection[str]) -> None:
        """A cgroup may be all that is left of a pod."""
        for uid in cgroups:
            if uid not in keep and self._workers.get(uid) is None:
                self._cleaner.clean(uid)

    def _measure(self, pods: Collection[Pod], mirrors: int, wanted: Collection[str]) -> None:
        metrics = self._metrics
        for gauge, some in (
            (metrics.desired_pods, pods),
            (metrics.active_pods, self._handler.active_pods()),
        ):
            regular, static = split_by_static(some)
            gauge.labels("").set(len(regular))
            gauge.labels("true").set(len(static))
        metrics.mirror_pods.set(mirrors)
        metrics.ephemeral_containers.set(sum(len(pod.spec.ephemeral_containers or ()) for pod in pods))
        statuses = [s for pod in pods if (s := self._statuses.get(pod.metadata.uid)) is not None]
        metrics.resizes_in_progress.set(
            sum(find(s.conditions, RESIZE_IN_PROGRESS) is not None for s in statuses)
        )
        pending = (find(s.conditions, RESIZE_PENDING) for s in statuses)
        metrics.resizes_pending.clear()
        for reason, count in Counter(found.reason.lower() for found in pending if found is not None).items():
            metrics.resizes_pending.labels(reason).set(count)
        counts = Counter(_labels(worker, uid in wanted) for uid, worker in self._workers.known().items())
        for lifecycle in ("sync", "terminating", "terminated"):
            for config, static_label in _COMBINATIONS:
                labels = (lifecycle, config, static_label)
                metrics.working_pods.labels(*labels).set(counts[labels])


_COMBINATIONS = (
    ("desired", "true"),
    ("desired", ""),
    ("orphan", "true"),
    ("orphan", ""),
    ("runtime_only", "unknown"),
)


def _labels(worker: Worker, wanted: bool) -> tuple[str, str, str]:
    """Lifecycle, configuration and static label of a worker, in the kubelet's words."""
    match worker.stage:
        case Stage.WAITING | Stage.SYNCING:
            lifecycle = "sync"
        case Stage.TERMINATING | Stage.ORPHAN:
            lifecycle = "terminating"
        case _:
            lifecycle = "terminated"
    if worker.pod is None:
        return lifecycle, "runtime_only", "unknown"
    return lifecycle, "desired" if wanted else "orphan", "true" if is_static(worker.pod) else ""


GATHER_ERRORS = (CRIError, CgroupError, OSError)
"""What a look at the node may fail with."""
