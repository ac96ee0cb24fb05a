"""Ends pods to make room for a critical one, and lets that one start when they have stopped.

The kubelet stops its whole sync loop while victims end; here a task of its own waits for them.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.recorder import RecorderDoor
from trio_kubelet.pods.admission.admitter import Preempt
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.victims import ended_by_node, wait_stopped
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)

REASON = "Preempting"
MESSAGE = "Preempted in order to admit critical pod"
DISRUPTION = "Pod was preempted by Kubelet to accommodate a critical pod."


class Preempter:
    """One task that owns the waits for victims."""

    def __init__(self, workers: PodWorkers, recorder: RecorderDoor, metrics: PodMetrics) -> None:
        self._workers = workers
        self._recorder = recorder
        self._metrics = metrics
        self._queue: list[tuple[Pod, Preempt]] = []
        self._wake = trio.Event()

    def preempt(self, pod: Pod, decision: Preempt) -> None:
        """Ends the victims; `made_room` of `run` is called once they have stopped or had their time."""
        self._queue.append((pod, decision))
        self._wake.set()

    async def run(
        self,
        made_room: Callable[[str], None],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves `preempt` until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                queue, self._queue = self._queue, []
                for pod, decision in queue:
                    nursery.start_soon(self._end_victims, pod, decision, made_room)

    async def _end_victims(self, pod: Pod, decision: Preempt, made_room: Callable[[str], None]) -> None:
        async with trio.open_nursery() as nursery:
            for victim in decision.victims:
                self._recorder.record(victim, "Warning", REASON, MESSAGE)
                log.v(2).info("Preempting pod to free up resources", pod=victim, requestingPod=pod)
                cause = f"preempted for {pod.metadata.namespace}/{pod.metadata.name}"
                patch = ended_by_node(victim, REASON, MESSAGE, DISRUPTION)
                stopped = self._workers.kill(victim, evict=True, patch=patch, cause=cause)
                nursery.start_soon(self._wait, victim, stopped, decision.resource)
        made_room(pod.metadata.uid)

    async def _wait(self, victim: Pod, stopped: trio.Event, resource: str) -> None:
        grace = victim.spec.termination_grace_period_seconds or 0
        if await wait_stopped(victim, stopped, grace, self._recorder):
            self._metrics.preemptions.labels(resource).inc()
