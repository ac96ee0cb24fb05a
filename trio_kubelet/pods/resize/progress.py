"""How far a resize that was granted is, by the rounds of its pod that make it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.pods.resize.rules import resize_message
from trio_kubelet.pods.status.conditions import RESIZE_IN_PROGRESS, find
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.runtime.results import PodSyncResult, SyncAction


class ResizeProgress:
    """Tells of resizes that are over, and of those that failed."""

    def __init__(
        self,
        *,
        statuses: StatusManager,
        recorder: RecorderDoor,
        clock: Clock,
        granted: Callable[[Pod], Pod],  # the pod with what it is to have now (`Admitter.as_granted`)
        as_actuated: Callable[[Pod], Pod],  # with what it has while a resize is not made
    ) -> None:
        self._statuses = statuses
        self._recorder = recorder
        self._clock = clock
        self._granted = granted
        self._as_actuated = as_actuated
        self.actuated: Listeners[[str]] = Listeners()  # UIDs of pods that have what they were granted

    def is_to_be_made(self, pod: Pod) -> bool:
        """Whether the pod was granted other resources, and it is not known that it has them."""
        return self._as_actuated(pod) is not pod

    def after_round(self, pod: Pod, status: PodStatus, result: PodSyncResult) -> None:
        """A resize is over when a round finds nothing of it left to do; what failed is told once. Both are
        told as of the generation it began with.
        """
        steps = [entry for entry in result.results if entry.action is SyncAction.RESIZE_POD_IN_PLACE]
        failed = [entry for entry in steps if entry.reason is not None]
        if steps and not failed and self._granted(pod) is pod:
            self.actuated.tell(pod.metadata.uid)
        progress = find(self._statuses.before(pod).conditions, RESIZE_IN_PROGRESS)
        if progress is None:
            return
        since = progress.observed_generation
        if failed:
            error = failed[0].message
            if (progress.reason, progress.message) == ("Error", error):
                return
            now = rfc3339(self._clock.now_ns())
            told = replace(progress, reason="Error", message=error, last_probe_time=now)
            self._statuses.put_condition(pod, told)
            message = resize_message("error", pod, error, generation=since)
            self._recorder.record(pod, "Warning", "ResizeError", message)
        elif self._goes_on(pod, status):
            return
        elif not steps and self._statuses.drop_condition(pod, RESIZE_IN_PROGRESS):
            message = resize_message("completed", pod, generation=since)
            self._recorder.record(pod, "Normal", "ResizeCompleted", message)

    def _goes_on(self, pod: Pod, status: PodStatus) -> bool:
        """Whether a resize was granted while a round went by what the pod had before, or the round did not
        come to making it: where there is no sandbox yet, what starts has it anyway.
        """
        return self._granted(pod) is not pod or (bool(status.sandboxes) and self.is_to_be_made(pod))
