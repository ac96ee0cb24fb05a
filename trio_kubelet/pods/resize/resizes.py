"""Running pods that ask for other resources: granted, or kept waiting (KEP-1287, in-place resize).

A pod that cannot have what it asks for runs on with what it was granted. Unless it can never have it, it is
asked about again whenever other pods came, went or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.qos import QOSClass, pod_qos
from trio_kubelet.podinfo.totals import pod_requests
from trio_kubelet.pods.active import ActivePods
from trio_kubelet.pods.admission.admitter import Admit, Postpone, Preempt
from trio_kubelet.pods.doors import Admitter
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.resize.allocation import allocation_of
from trio_kubelet.pods.resize.rules import resize_message
from trio_kubelet.pods.status.conditions import RESIZE_IN_PROGRESS, RESIZE_PENDING, condition
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.story import Story

RETRY_NS: Final = 180 * NANOSECONDS


class Resizes:
    """The resizes that wait, the oldest first."""

    def __init__(
        self,
        *,
        pods: PodManager,
        statuses: StatusManager,
        admitter: Admitter,
        recorder: RecorderDoor,
        metrics: PodMetrics,
        story: Story,
        clock: Clock,
        active: ActivePods,
        preempt: Callable[[Pod, Preempt], None],  # ends the victims, then calls `made_room`
    ) -> None:
        self._pods = pods
        self._statuses = statuses
        self._admitter = admitter
        self._recorder = recorder
        self._metrics = metrics
        self._story = story
        self._clock = clock
        self._active = active
        self._preempt = preempt
        self._waiting: dict[str, tuple[Postpone, int]] = {}  # by UID: the last answer, to which generation
        self._asked_ns = 0  # when all that wait were last asked about
        self._making_room: dict[str, Pod] = {}  # by UID: what was asked for when victims began to end

    def ask(self, pod: Pod, trigger: str) -> bool:
        """A pod changed: whether it was granted other resources than before. `trigger` is the metric's word
        for why it is asked about.
        """
        uid = pod.metadata.uid
        if self._admitter.as_granted(pod) is pod:
            if self._waiting.pop(uid, None) is not None:
                self._statuses.drop_condition(pod, RESIZE_PENDING)
            return False
        if uid in self._making_room:
            return False
        match self._admitter.resize(pod, self._active.beside(uid)):
            case Admit():
                self._grant(pod, trigger)
                return True
            case Preempt() as decision:
                self._making_room[uid] = pod
                self._preempt(pod, decision)
            case Postpone() as answer:
                self._postpone(pod, answer)
        return False

    def made_room(self, pod: Pod) -> bool:
        """The victims of a critical pod have ended (or their time is over): whether it now has more."""
        asked = self._making_room.pop(pod.metadata.uid, None)
        if asked is None:
            return False
        if allocation_of(pod) != allocation_of(asked):
            return self.ask(pod, "pods_removed")
        self._admitter.grant(pod)
        self._grant(pod, "pods_removed")
        return True

    def _grant(self, pod: Pod, trigger: str) -> None:
        self._active.touch(pod.metadata.uid)
        known = self._waiting.pop(pod.metadata.uid, None)
        if known is not None and known[0].reason == "Deferred":
            self._metrics.deferred_resizes_accepted.labels(trigger).inc()
        started = condition(pod, RESIZE_IN_PROGRESS, True)
        self._statuses.start_resize(pod, replace(started, last_probe_time=rfc3339(self._clock.now_ns())))
        self._tell(pod, "Normal", "ResizeStarted", resize_message("started", pod))

    def _postpone(self, pod: Pod, answer: Postpone) -> None:
        uid = pod.metadata.uid
        known, said = self._waiting.get(uid), (answer, pod.metadata.generation)
        if known == said:
            return
        if answer.detail:
            self._metrics.infeasible_resizes.labels(answer.detail).inc()
        self._waiting[uid] = said
        self._say_pending(pod, answer)
        if known is None or (known[0].reason, known[1]) != (answer.reason, said[1]):
            message = resize_message(answer.cause, pod, answer.message)
            self._tell(pod, "Warning", f"Resize{answer.reason}", message)

    def _say_pending(self, pod: Pod, answer: Postpone) -> None:
        pending = condition(pod, RESIZE_PENDING, True, answer.reason, answer.message)
        now = rfc3339(self._clock.now_ns())
        self._statuses.put_condition(pod, replace(pending, last_probe_time=now))

    def take_waiting(self) -> list[Pod]:
        """The pods that wait for room, for who has heard that there may be some, and asks about each."""
        self._asked_ns = self._clock.now_ns()
        deferred = [uid for uid, (answer, _) in self._waiting.items() if answer.reason != "Infeasible"]
        return [pod for uid in deferred if (pod := self._pods.get(uid)) is not None]

    def is_time(self) -> bool:
        """Whether nobody was asked about for so long that the node itself may have changed."""
        return bool(self._waiting) and self._clock.now_ns() - self._asked_ns >= RETRY_NS

    def rank(self, pod: Pod) -> tuple[bool, int, bool]:
        """In which order several are asked about: those that want no more than they have first, then the more
        important ones, then guaranteed ones.
        """
        has, wants = pod_requests(self._admitter.as_granted(pod)), pod_requests(pod)
        grows = any(wants.get(name, 0) > has.get(name, 0) for name in ("cpu", "memory"))
        return grows, -(pod.spec.priority or 0), pod_qos(pod) is not QOSClass.GUARANTEED

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._waiting.pop(uid, None)
        self._making_room.pop(uid, None)

    def _tell(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        self._recorder.record(pod, kind, reason, message)
        self._story.note(pod.metadata.uid, self._clock.now_ns(), "admission", f"{reason}: {message}")
