"""How a wanted pod comes onto the node: it is admitted and given a worker, it has to wait, or it is refused.

It waits while others end to make room for it, or while it is given devices and the like. That is the business
of tasks elsewhere, which say when they are done; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.active import ActivePods
from trio_kubelet.pods.admission.admitter import UNEXPECTED, Admit, Allocate, Preempt, Reject
from trio_kubelet.pods.doors import Admitter, PlegDoor
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.refs import is_terminal_phase, pod_full_name, view_runs
from trio_kubelet.pods.status.generate import rejected_status
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.worker_state import Stage
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)


class Entrance:
    """Takes pods, or refuses them. `active` are the pods that have come in."""

    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        statuses: StatusManager,
        admitter: Admitter,
        pleg: PlegDoor,
        recorder: RecorderDoor,
        metrics: PodMetrics,
        story: Story,
        clock: Clock,
        preempt: Callable[[Pod, Preempt], None],  # ends the victims, then has `made_room` called
        allocate: Callable[[Pod], None],  # gives it devices and the like, then has `allocated` called
    ) -> None:
        self._pods = pods
        self._workers = workers
        self._statuses = statuses
        self._admitter = admitter
        self._pleg = pleg
        self._recorder = recorder
        self._metrics = metrics
        self._story = story
        self._clock = clock
        self._preempt = preempt
        self._allocate = allocate
        self._making_room: set[str] = set()  # pods whose victims are still ending
        self._allocating: set[str] = set()  # pods that are being given devices and the like
        self._unasked: dict[str, None] = {}  # pods that began with other resources than they ask for
        self.active = ActivePods(
            pods=pods, workers=workers, statuses=statuses, admitter=admitter, untaken=self._allocating
        )
        workers.expect(self.waits)

    def begin(self, pod: Pod, cause: str) -> None:
        """Admits a pod and starts it; one that is ending or over goes to its worker as it is."""
        uid = pod.metadata.uid
        workers = self._workers
        if workers.is_termination_requested(uid) or is_terminal_phase(pod.status.phase):
            workers.create(pod, cause=cause)
            return
        try:
            decision = self._admitter.admit(pod, self.active.beside(uid))
        except Exception as exc:  # what the pod asks for is its own affair
            log.error("Unexpected error in admission", pod=pod, podUID=uid, err=exc)
            message = f"Admission failed due to {type(exc).__name__}: {exc}, which is unexpected"
            decision = Reject(UNEXPECTED, message)
        match decision:
            case Allocate() | Preempt() if pod.metadata.deletion_timestamp is not None:
                self._start(pod, cause)  # which will not run: nothing is waited for, and nobody ends for it
            case Admit():
                self._grant(pod)
                self._start(pod, cause)
            case Reject():
                self._reject(pod, decision)
            case Preempt():
                self._making_room.add(uid)
                names = ", ".join(f"{v.metadata.namespace}/{v.metadata.name}" for v in decision.victims)
                self._story.note(uid, self._clock.now_ns(), "admission", f"waits for room, ending {names}")
                self._preempt(pod, decision)
            case Allocate():
                self._allocating.add(uid)
                self.active.touch(uid)  # until it has them it stands in nobody's way
                self._allocate(pod)

    def made_room(self, pod: Pod) -> bool:
        """The victims have ended (or their time is over): whether the pod waited for that, and now starts."""
        if pod.metadata.uid not in self._making_room:
            return False
        self._making_room.discard(pod.metadata.uid)
        self._grant(pod)
        self._start(pod, "admission")
        return True

    def allocated(self, pod: Pod) -> None:
        """What the pod asks for has been given to it, or could not be: admission goes on."""
        if pod.metadata.uid in self._allocating:
            self._allocating.discard(pod.metadata.uid)
            self.active.touch(pod.metadata.uid)
            self.begin(pod, "admission")

    def leave(self, uid: str) -> None:
        """The pod will not start any more: nothing is waited for, and what it was granted is free."""
        self._making_room.discard(uid)
        self._allocating.discard(uid)
        self._admitter.forget(uid)
        self.active.touch(uid)

    def waits(self, uid: str) -> bool:
        """Whether the pod will start when others have made room, or when it has been given its devices."""
        return uid in self._making_room or uid in self._allocating

    def waiting(self) -> frozenset[str]:
        """All pods of which that is so."""
        return frozenset(self._making_room | self._allocating)

    def is_shut_to(self, pod: Pod) -> bool:
        """Whether the pod waits, or was refused and nobody wants it gone: it has no worker to tell."""
        uid = pod.metadata.uid
        if self.waits(uid):
            return True
        if self._workers.get(uid) is not None or pod.metadata.deletion_timestamp is not None:
            return False
        return self.active.is_over(pod) and not is_terminal_phase(pod.status.phase)

    def take_unasked(self) -> list[Pod]:
        """Pods that began with other resources than they ask for; each is told once."""
        begun = (uid for uid in self._unasked if not self._workers.is_termination_requested(uid))
        unasked = [pod for uid in begun if (pod := self._pods.get(uid)) is not None]
        self._unasked.clear()
        return unasked

    def _grant(self, pod: Pod) -> None:
        self._admitter.granted(pod)
        self.active.take(pod.metadata.uid)

    def _start(self, pod: Pod, cause: str) -> None:
        if is_static(pod):
            self._hold_predecessors(pod)
        granted = self._admitter.as_granted(pod)
        self._workers.create(granted, cause=cause)
        if granted is not pod:
            self._unasked[pod.metadata.uid] = None

    def _hold_predecessors(self, pod: Pod) -> None:
        """What an earlier agent left running under the same static name keeps the name until it is gone."""
        for uid in self._pleg.namesakes(pod.metadata.name, pod.metadata.namespace):
            worker = self._workers.get(uid)
            if uid == pod.metadata.uid or (worker is not None and worker.stage is not Stage.ORPHAN):
                continue  # it stands in the line itself, or is gone
            if view_runs(self._pleg.pod(uid)):
                self._workers.hold_name(pod_full_name(pod), uid)

    def _reject(self, pod: Pod, decision: Reject) -> None:
        self._recorder.record(pod, "Warning", decision.reason, decision.message)
        self._statuses.set(pod, rejected_status(pod, decision.reason, decision.message))
        self.active.refuse(pod.metadata.uid)
        self._metrics.admission_rejections.labels(decision.metric_reason).inc()
        text = f"refused: {decision.reason}: {decision.message}"
        self._story.note(pod.metadata.uid, self._clock.now_ns(), "admission", text)
        log.info("Pod admission denied", pod=pod, podUID=pod.metadata.uid, reason=decision.reason)
