"""Running pods that ask for other resources: granted, or kept waiting (KEP-1287, in-place resize).

A pod that cannot have what it asks for runs on with what it was granted. It is asked about again whenever
other pods came, went or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.api.v1 import Pod
from trio_kubelet.clock import Clock
from trio_kubelet.pods.admitter import Admit, Admitter, Postpone
from trio_kubelet.pods.conditions import RESIZE_IN_PROGRESS, RESIZE_PENDING, condition
from trio_kubelet.pods.doors import Recorder
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.resize_events import resize_message
from trio_kubelet.pods.status_manager import StatusManager
from trio_kubelet.pods.story import Story
from trio_kubelet.runtime.configs.qos import QOSClass, pod_qos


class Resizes:
    """The resizes that wait, the oldest first."""

    def __init__(
        self,
        *,
        pods: PodManager,
        statuses: StatusManager,
        admitter: Admitter,
        recorder: Recorder,
        story: Story,
        clock: Clock,
        active: Callable[[], Sequence[Pod]],
    ) -> None:
        self._pods = pods
        self._statuses = statuses
        self._admitter = admitter
        self._recorder = recorder
        self._story = story
        self._clock = clock
        self._active = active
        self._waiting: dict[str, tuple[Postpone, int]] = {}  # by UID: the last answer, to which generation

    def ask(self, pod: Pod) -> bool:
        """A pod changed: whether it was granted other resources than before."""
        uid = pod.metadata.uid
        if self._admitter.as_granted(pod) is pod:
            if self._waiting.pop(uid, None) is not None:
                self._statuses.drop_condition(pod, RESIZE_PENDING)
            return False
        others = [other for other in self._active() if other.metadata.uid != uid]
        answer = self._admitter.resize(pod, others)
        if isinstance(answer, Admit):
            self._waiting.pop(uid, None)
            self._statuses.drop_condition(pod, RESIZE_PENDING)
            self._statuses.put_condition(pod, condition(pod, RESIZE_IN_PROGRESS, True))
            self._tell(pod, "Normal", "ResizeStarted", resize_message("started", pod))
            return True
        known, said = self._waiting.get(uid), (answer, pod.metadata.generation)
        if known != said:
            self._waiting[uid] = said
            self._say_pending(pod, answer)
            if known is None or (known[0].reason, known[1]) != (answer.reason, said[1]):
                message = resize_message(answer.cause, pod, answer.message)
                self._tell(pod, "Warning", f"Resize{answer.reason}", message)
        return False

    def _say_pending(self, pod: Pod, answer: Postpone) -> None:
        pending = condition(pod, RESIZE_PENDING, True, answer.reason, answer.message)
        now = rfc3339(self._clock.now_ns())
        self._statuses.put_condition(pod, replace(pending, last_probe_time=now))

    def ask_again(self) -> list[Pod]:
        """Other pods came, went or changed: the pods that were granted what they waited for.

        The more important pods are asked first, then guaranteed ones, then those that have waited longer.
        """
        waiting = [pod for uid in self._waiting if (pod := self._pods.get(uid)) is not None]

        def rank(pod: Pod) -> tuple[int, bool]:
            return -(pod.spec.priority or 0), pod_qos(pod) is not QOSClass.GUARANTEED

        return [pod for pod in sorted(waiting, key=rank) if self.ask(pod)]

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._waiting.pop(uid, None)

    def _tell(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        self._recorder.record(pod, kind, reason, message)
        self._story.note(pod.metadata.uid, self._clock.now_ns(), "admission", f"{reason}: {message}")
