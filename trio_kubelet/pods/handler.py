"""What the sync loop does with each kind of news (kubelet: `SyncHandler`). Nothing here waits.

Additions go to the entrance, oldest first; updates and removals go to the worker; a finished worker is
forgotten, or begins anew if its pod is wanted again. The desired state is kept in `PodManager`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter

from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.observed.probes import ProbeKind, ProbeResult, ProbeUpdate
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.admission.entrance import Entrance
from trio_kubelet.pods.cleaner import Cleaner
from trio_kubelet.pods.doors import Admitter, StatusDoor
from trio_kubelet.pods.manager import PodAndMirror, PodManager
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.refs import FAILED
from trio_kubelet.pods.resize.allocation import with_quantities
from trio_kubelet.pods.resize.resizes import Resizes
from trio_kubelet.pods.resize.rules import requested_resizes
from trio_kubelet.pods.status.conditions import READY, find, ready
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.worker_state import Stage
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)


class SyncHandler:
    """Carries news to the workers."""

    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        statuses: StatusManager,
        admitter: Admitter,
        cache: StatusDoor,
        recorder: RecorderDoor,
        metrics: PodMetrics,
        story: Story,
        clock: Clock,
        cleaner: Cleaner,
        entrance: Entrance,
        resizes: Resizes,
    ) -> None:
        self._pods = pods
        self._workers = workers
        self._statuses = statuses
        self._admitter = admitter
        self._cache = cache
        self._recorder = recorder
        self._metrics = metrics
        self._story = story
        self._clock = clock
        self._cleaner = cleaner
        self._entrance = entrance
        self._resizes = resizes

    @contextlib.contextmanager
    def _wall(self, pod: Pod) -> Iterator[None]:
        """What one pod makes the code raise must not keep the sync loop from the others."""
        try:
            yield
        except Exception as exc:
            log.error("Unexpected error in handling a pod", pod=pod, podUID=pod.metadata.uid, err=exc)
            message = f"error handling pod: unexpected {type(exc).__name__}: {exc}"
            self._recorder.record(pod, "Warning", "FailedSync", message)

    # From the sources

    def additions(self, pods: Sequence[Pod]) -> None:
        """New pods, oldest first: each is noted as desired, admitted and started."""
        for pod in pods:
            with self._wall(pod):
                self._pods.set(pod)
                found = self._pods.pod_and_mirror(pod)
                if found.was_mirror:
                    self._mirror_changed(found)
                else:
                    self._entrance.begin(pod, cause="config")

    def updates(self, pods: Sequence[Pod]) -> None:
        """Changed pods, and pods the API server has begun to delete."""
        for pod in pods:
            with self._wall(pod):
                self._update_one(pod)
            if pod.metadata.deletion_timestamp is not None:
                self._statuses.retell(pod.metadata.uid)  # it may be finished, and then goes at once
        self._resize_waiting("pod_updated")

    def _update_one(self, pod: Pod) -> None:
        before = self._pods.get(pod.metadata.uid)
        pod = self._note(pod)
        found = self._pods.pod_and_mirror(pod)
        if found.was_mirror:
            self._mirror_changed(found)
            return
        if pod.metadata.deletion_timestamp is not None and self._entrance.waits(pod.metadata.uid):
            self._entrance.leave(pod.metadata.uid)
            self._entrance.begin(pod, cause="config")
            return
        if not self._entrance.is_shut_to(pod):
            if not self._workers.is_termination_requested(pod.metadata.uid):
                with self._wall(pod):
                    for asked in requested_resizes(before, pod) if before is not None else ():
                        self._metrics.requested_resizes.labels(*asked).inc()
                    self._resizes.ask(pod, "pod_updated")
                    if before is not None and (problem := self._admitter.lacks(before, pod)):
                        self._recorder.record(pod, "Warning", "FailedNodeDeclaredFeaturesCheck", problem)
            self._update(pod)

    def _note(self, pod: Pod) -> Pod:
        """The pod as it is desired from now on. Only a broken API server has it ask for what is no quantity,
        and nobody who counts what pods ask for could: it then asks for what it did.
        """
        before = self._pods.get(pod.metadata.uid)
        noted = pod if before is None else with_quantities(pod, before)
        if noted is not pod:
            message = "error handling pod: it asks for what is no quantity, and keeps the resources it had"
            self._recorder.record(pod, "Warning", "FailedSync", message)
        self._pods.set(noted)
        return noted

    def removes(self, pods: Sequence[Pod]) -> None:
        """Pods their source does not want any more. A source that says so has reported, so it is believed."""
        for pod in pods:
            self._pods.remove(pod)
            found = self._pods.pod_and_mirror(pod)
            if found.was_mirror:
                with self._wall(pod):
                    self._mirror_changed(found)
                continue
            uid = pod.metadata.uid
            self._resizes.forget(uid)
            self._entrance.leave(uid)
            self._workers.remove(uid)
            if self._workers.get(uid) is None:
                self._statuses.remove(uid)
                self._cleaner.clean(uid)
        self._resize_waiting("pods_removed")

    def reconciles(self, pods: Sequence[Pod]) -> None:
        """Pods of which only the status differs: readiness is put right, evicted ones lose containers."""
        for pod in pods:
            found = self._pods.pod_and_mirror(self._note(pod))
            if found.pod is None:
                continue
            with self._wall(found.pod):
                if _readiness_is_stale(found.pod):
                    granted = self._admitter.as_granted(found.pod)
                    self._workers.sync(granted, cause="config")
            if pod.status.phase == FAILED and pod.status.reason == "Evicted":
                self._cleaner.prune(pod.metadata.uid, "", True)

    # From the runtime, the probes and the clock

    def syncs(self, uids: Sequence[str], cause: str) -> None:
        """Pods to look after now; those no source wants go on ending."""
        for uid in uids:
            pod = self._pods.get(uid)
            if pod is None:
                self._workers.retry(uid)
            else:
                with self._wall(pod):
                    self._workers.sync(self._admitter.as_granted(pod), cause=cause)

    def container_died(self, uid: str, container_id: str) -> None:
        """A container ended: that is remembered, and older dead ones of its name are not needed any more."""
        status = self._cache.get(uid)
        for container in status.containers if status is not None else ():
            if container.id == container_id:
                why = f" ({container.reason})" if container.reason else ""
                text = f"container {container.name} ended with exit code {container.exit_code}{why}"
                self._story.note(uid, self._clock.now_ns(), "pleg", text)
        self._cleaner.prune(uid, container_id, self._workers.should_content_be_removed(uid))

    def probe_changed(self, update: ProbeUpdate) -> None:
        """A probe's verdict changed: readiness and startup show at once, and the pod is synced. Not for its
        readiness: a round does nothing with that but show it.
        """
        good = update.result is ProbeResult.SUCCESS
        status = "unhealthy"
        match update.kind:
            case ProbeKind.LIVENESS:
                if update.result is not ProbeResult.FAILURE:
                    return
            case ProbeKind.READINESS:
                status = "ready" if good else "not ready"
                self._statuses.set_readiness(update.pod_uid, update.container_id, good)
            case ProbeKind.STARTUP:
                status = "started" if good else "unhealthy"
                self._statuses.set_startup(update.pod_uid, update.container_id, good)
        kind = update.kind.value
        if (pod := self._pods.get(update.pod_uid)) is None:
            uid = update.pod_uid
            log.v(4).info("SyncLoop (probe): ignore irrelevant update", probe=kind, status=status, podUID=uid)
        else:
            log.v(1).info("SyncLoop (probe)", probe=kind, status=status, pod=pod)
            verdict = f"{update.kind.value} probe: {update.result.value}"
            self._story.note(update.pod_uid, self._clock.now_ns(), "probe", verdict)
            if update.kind is not ProbeKind.READINESS:
                self.syncs([update.pod_uid], "probe")

    def ended(self, uid: str) -> None:
        """A worker has finished."""
        self.after_end(uid)
        worker = self._workers.get(uid)
        if worker is not None and worker.stage is Stage.FINISHED:
            self._resize_waiting("pod_terminated")  # what the pod had is free, though it is still shown

    def after_end(self, uid: str) -> None:
        """The pod of a worker that has finished is gone, starts anew, or stays as it ended."""
        worker = self._workers.get(uid)
        if worker is None or worker.stage is not Stage.FINISHED:
            return
        pod = self._pods.get(uid)
        if pod is None:
            self._workers.forget(uid)
            self._statuses.remove(uid)
            self._cleaner.clean(uid)
        elif worker.reborn or worker.pod is None:
            self._workers.forget(uid)
            self._cleaner.clean(uid)  # the new life does not begin with the dead containers of the old one
            if worker.pod is None and not worker.reborn and self._entrance.is_shut_to(pod):
                return  # it was refused while it ran, and stays so though there may be room by now
            self._statuses.remove(uid)
            self.start_again(pod, cause="worker")
        elif worker.evicted:
            self._cleaner.prune(uid, "", True)

    def actuated(self, uid: str) -> None:
        """A pod has what it was granted: what it had more is free."""
        self._admitter.actuated(uid)
        self._entrance.active.touch(uid)
        self._resize_waiting("pod_resized")

    # Admission

    def active_pods(self) -> list[Pod]:
        """Wanted pods that run or will run here: not refused, not over."""
        return self._entrance.active.all()

    def start_again(self, pod: Pod, cause: str) -> None:
        """A wanted pod that has no worker (any more)."""
        self._metrics.restarted_pods.labels("true" if is_static(pod) else "").inc()
        with self._wall(pod):
            self._entrance.begin(pod, cause)

    def keep_only(self, uids: Collection[str]) -> None:
        """All sources have reported, and these are the pods there are."""
        self._admitter.keep_only(uids)

    def not_started_yet(self) -> frozenset[str]:
        """Pods that will start when others have made room, or when they have been given their devices."""
        return self._entrance.waiting()

    def allocated(self, uid: str) -> None:
        """What the pod asks for has been given to it, or could not be: admission goes on."""
        if (pod := self._pods.get(uid)) is not None:
            with self._wall(pod):
                self._entrance.allocated(pod)

    def made_room(self, uid: str) -> None:
        """The victims of a critical pod have ended (or their time is over): it starts, or has more."""
        if (pod := self._pods.get(uid)) is not None:
            with self._wall(pod):
                if not self._entrance.made_room(pod) and self._resizes.made_room(pod):
                    self._update(pod)

    def _mirror_changed(self, found: PodAndMirror) -> None:
        """A mirror came, changed or went: its static pod's status may have to be shown there."""
        if found.pod is None:
            return
        if found.mirror is not None:
            self._statuses.remember(found.pod, found.mirror)
        self._statuses.retell(found.pod.metadata.uid)
        if not self._entrance.is_shut_to(found.pod):
            self._update(found.pod)

    def _update(self, pod: Pod) -> None:
        self._workers.update(self._admitter.as_granted(pod))

    def _resize_waiting(self, trigger: str) -> None:
        """Resources may have become free: pods that wait for some are asked about again."""
        self._ask(self._resizes.take_waiting(), trigger)

    def _ask(self, pods: Iterable[Pod], trigger: str) -> None:
        """Asks about each; who was granted what it asks for is told."""
        ranked = []
        for pod in pods:
            with self._wall(pod):
                ranked.append((self._resizes.rank(pod), pod))
        for _, pod in sorted(ranked, key=itemgetter(0)):
            with self._wall(pod):
                if self._resizes.ask(pod, trigger):
                    self._update(pod)

    def ask_resizes(self) -> None:
        """All sources have told of all their pods, and those have what they had: who asks for more is
        asked about. Any earlier it would be given what pods have that are still to come.
        """
        self._ask(self._entrance.take_unasked(), "pods_added")

    def retry_resizes(self) -> None:
        """The node may have room again though no pod changed."""
        if self._resizes.is_time():
            self._resize_waiting("periodic_retry")


def oldest_first(pods: Sequence[Pod]) -> list[Pod]:
    """The order in which pods that come together are admitted."""
    return sorted(pods, key=_created)


def _created(pod: Pod) -> int:
    """Age for the order of additions; static pods have no moment of creation and come first."""
    created = pod.metadata.creation_timestamp
    try:
        return parse_rfc3339(created) if created else 0
    except ValueError:
        return 0  # a manifest may say anything


def _readiness_is_stale(pod: Pod) -> bool:
    """Whether readiness gates of the API's status call for another Ready condition (KEP-580)."""
    if not pod.spec.readiness_gates:
        return False
    status = pod.status
    containers = [*(status.init_container_statuses or ()), *(status.container_statuses or ())]
    wanted = ready(pod, containers, status.phase, status.conditions or ())
    present = find(status.conditions, READY)
    if present is None:
        return False
    return (present.status, present.message) != (wanted.status, wanted.message)
