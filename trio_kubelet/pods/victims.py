"""Pods that the node ends for its own sake: the wait for one that was told to stop, and evictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio
from msgspec.structs import replace

from trio_kubelet.api.v1 import Pod, PodStatus
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.pods.doors import StatusDoor
from trio_kubelet.pods.refs import FAILED, SUCCEEDED
from trio_kubelet.pods.status.conditions import DISRUPTION_TARGET, condition, put
from trio_kubelet.pods.story import Story
from trio_kubelet.pods.worker_state import Stage, StatusPatch
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)

LEAST_PATIENCE = 10.0  # seconds


def patience(grace: int) -> float:
    """Seconds to wait for a pod to stop: half as long again as its grace period."""
    return max(LEAST_PATIENCE, 1.5 * grace)


def ended_by_node(
    pod: Pod, reason: str, message: str, disruption: str | None, *, spare_success: bool = False
) -> StatusPatch:
    """What the status of a pod says that the node ended: failed, with reason and message; `disruption` is the
    message of its condition `DisruptionTarget`, None for none. With `spare_success` one that had succeeded
    has not failed.
    """

    def patch(status: PodStatus) -> PodStatus:
        conditions = status.conditions
        if disruption is not None:
            target = condition(pod, DISRUPTION_TARGET, True, "TerminationByKubelet", disruption)
            conditions = put(conditions, target)
        phase = SUCCEEDED if spare_success and status.phase == SUCCEEDED else FAILED
        return replace(status, phase=phase, reason=reason, message=message, conditions=conditions)

    return patch


async def wait_stopped(victim: Pod, stopped: trio.Event, grace: int, recorder: RecorderDoor) -> bool:
    """Waits for a pod that was told to stop; False, with an event, if it did not in time."""
    with trio.move_on_after(patience(grace)):
        await stopped.wait()
        return True
    message = "Container runtime did not kill the pod within specified grace period."
    recorder.record(victim, "Warning", "ExceededGracePeriod", message)
    log.error("Failed to evict pod in time", pod=victim)
    return False


class Victims:
    """Who could be evicted or is ended when the node goes down, and how that is done to a pod."""

    def __init__(
        self,
        *,
        active: Callable[[], list[Pod]],
        workers: PodWorkers,
        observed: StatusDoor,
        recorder: RecorderDoor,
        story: Story,
        clock: Clock,
    ) -> None:
        self._active = active
        self._workers = workers
        self._observed = observed
        self._recorder = recorder
        self._story = story
        self._clock = clock

    def active(self) -> list[Pod]:
        """Pods that run or will run, and those that no source wants any more and that have not ended yet."""
        active = self._active()
        wanted = {pod.metadata.uid for pod in active}
        ending = (worker for worker in self._workers.known().values() if worker.stage is Stage.TERMINATING)
        return active + [each.pod for each in ending if each.uid not in wanted and each.pod is not None]

    def candidates(self) -> list[Pod]:
        """Active pods that this agent has looked at since it started and has not evicted yet. One that ends
        by itself, and in which nothing runs any more, has nothing left to give.
        """
        return [pod for pod in self.active() if self._is_candidate(pod.metadata.uid)]

    def _is_candidate(self, uid: str) -> bool:
        worker, observed = self._workers.get(uid), self._observed.get(uid)
        if worker is None or worker.evicted or observed is None:
            return False
        return not worker.ending or bool(observed.running())

    def evict(
        self,
        pod: Pod,
        *,
        grace: int,
        message: str,
        disruption: bool,
        annotations: Mapping[str, str],
        why: str,
    ) -> trio.Event:
        """Ends a pod as failed and evicted; the event is set once its containers have stopped."""
        self._recorder.record(pod, "Warning", "Evicted", message, annotations=annotations or None)
        self._story.note(pod.metadata.uid, self._clock.now_ns(), "eviction", why)
        log.info("Eviction manager: evicting pod", pod=pod, podUID=pod.metadata.uid, why=why)
        patch = ended_by_node(pod, "Evicted", message, message if disruption else None)
        return self._workers.kill(pod, grace=grace, evict=True, patch=patch, cause="evicted")

    def shut_down(self, pod: Pod, *, grace: int, reason: str, message: str) -> trio.Event:
        """Ends a pod because the node goes down; the event is set once its containers have stopped."""
        patch = ended_by_node(pod, reason, message, message, spare_success=True)
        return self._workers.kill(pod, grace=grace, patch=patch, cause="the node is shutting down")

    async def wait_stopped(self, pod: Pod, stopped: trio.Event, grace: int) -> bool:
        """Waits for an evicted pod; False, with an event, if it did not stop in time."""
        return await wait_stopped(pod, stopped, grace, self._recorder)

    def is_finished(self, uid: str) -> bool:
        """Whether nothing of the pod is left to be done."""
        worker = self._workers.get(uid)
        return worker is None or worker.stage is Stage.FINISHED
