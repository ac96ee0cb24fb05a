"""Whom to end so that a critical pod fits (kubelet: `pkg/kubelet/preemption`), and the task that ends them.

As few and as unimportant pods as possible: best-effort pods before burstable before guaranteed ones; within
a class those that come nearest to what is missing. The kubelet stops its whole sync loop while they end;
here a task of its own waits for them, and lets the critical pod start when they have stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.handover import Handover
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.qos import QOSClass, is_critical_pod, pod_qos
from trio_kubelet.pods.admission.admitter import Preempt
from trio_kubelet.pods.admission.fit import Insufficient, request_of
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.victims import ended_by_node, wait_stopped
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)

Missing: TypeAlias = list[tuple[str, int]]
"""Resources with the amounts that are still to be freed."""


class NoVictims(Exception):
    """No set of pods would free enough; the text is the kubelet's."""


def may_preempt(pod: Pod, other: Pod) -> bool:
    """Whether `pod` is more important than `other`."""
    if is_critical_pod(pod) and not is_critical_pod(other):
        return True
    mine, its = pod.spec.priority, other.spec.priority
    return mine is not None and its is not None and mine > its


def choose_victims(pod: Pod, others: Sequence[Pod], short: Sequence[Insufficient]) -> list[Pod]:
    """The pods to end, the least important class first. Raises NoVictims."""
    classes: dict[QOSClass, list[Pod]] = {qos: [] for qos in QOSClass}
    for other in others:
        if may_preempt(pod, other):
            classes[pod_qos(other)].append(other)
    best_effort = classes[QOSClass.BEST_EFFORT]
    burstable, guaranteed = classes[QOSClass.BURSTABLE], classes[QOSClass.GUARANTEED]
    missing = [(one.resource, one.missing) for one in short]
    still = subtract(missing, [*best_effort, *burstable, *guaranteed])
    if still:
        raise NoVictims(_nobody(still))
    # Of each class only as many as the other classes, ended first, would leave missing.
    from_guaranteed = _nearest(guaranteed, subtract(missing, [*best_effort, *burstable]))
    from_burstable = _nearest(burstable, subtract(missing, [*best_effort, *from_guaranteed]))
    from_best_effort = _nearest(best_effort, subtract(missing, [*from_burstable, *from_guaranteed]))
    return [*from_best_effort, *from_burstable, *from_guaranteed]


def subtract(missing: Missing, pods: Sequence[Pod]) -> Missing:
    """What is still missing after these pods have ended."""
    still = [
        (resource, amount - sum(request_of(pod, resource) for pod in pods)) for resource, amount in missing
    ]
    return [(resource, amount) for resource, amount in still if amount > 0]


def distance(pod: Pod, missing: Missing) -> float:
    """How far the pod's end would stay from what is missing; each resource weighs the same."""
    total = 0.0
    for resource, amount in missing:
        left = amount - request_of(pod, resource)
        if left > 0:
            total += (left / amount) ** 2
    return total


def _nearest(pods: Sequence[Pod], missing: Missing) -> list[Pod]:
    """Pods of one class by distance until nothing is missing; of equals the smaller, of twins the later."""
    left, chosen = list(pods), []
    while missing:
        if not left:
            raise NoVictims(_nobody(missing))
        best = 0
        for index, pod in enumerate(left):
            nearer = distance(pod, missing) - distance(left[best], missing)
            if nearer < 0 or (nearer == 0 and _size(pod) <= _size(left[best])):
                best = index
        chosen.append(left[best])
        missing = subtract(missing, [left[best]])
        left[best] = left[-1]
        left.pop()
    return chosen


def _size(pod: Pod) -> tuple[int, int]:
    return request_of(pod, "memory"), request_of(pod, "cpu")


def _nobody(missing: Missing) -> str:
    parts = "".join(f"(res: {resource}, q: {amount}), " for resource, amount in missing)
    return f"no set of running pods found to reclaim resources: [{parts}]"


REASON = "Preempting"
MESSAGE = "Preempted in order to admit critical pod"
DISRUPTION = "Pod was preempted by Kubelet to accommodate a critical pod."


class Preempter:
    """One task that owns the waits for victims."""

    def __init__(self, workers: PodWorkers, recorder: RecorderDoor, metrics: PodMetrics) -> None:
        self._workers = workers
        self._recorder = recorder
        self._metrics = metrics
        self._decided = Handover[tuple[Pod, Preempt]]()

    def preempt(self, pod: Pod, decision: Preempt) -> None:
        """Ends the victims; `made_room` of `run` is called once they have stopped or had their time."""
        self._decided.give((pod, decision))

    async def run(
        self,
        made_room: Callable[[str], None],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves `preempt` until cancelled."""

        def begin(nursery: trio.Nursery, work: tuple[Pod, Preempt]) -> None:
            nursery.start_soon(self._end_victims, *work, made_room)

        await self._decided.serve(begin, task_status)

    async def _end_victims(self, pod: Pod, decision: Preempt, made_room: Callable[[str], None]) -> None:
        async with trio.open_nursery() as nursery:
            for victim in decision.victims:
                self._recorder.record(victim, "Warning", REASON, MESSAGE)
                log.v(2).info("Preempting pod to free up resources", pod=victim, requestingPod=pod)
                cause = f"preempted for {pod.metadata.namespace}/{pod.metadata.name}"
                nursery.start_soon(self._end, victim, cause, decision.resource)
        made_room(pod.metadata.uid)

    async def _end(self, victim: Pod, cause: str, resource: str) -> None:
        grace = victim.spec.termination_grace_period_seconds or 0
        try:
            patch = ended_by_node(victim, REASON, MESSAGE, DISRUPTION)
            stopped = self._workers.kill(victim, evict=True, patch=patch, cause=cause)
            if await wait_stopped(victim, stopped, grace, self._recorder):
                self._metrics.preemptions.labels(resource).inc()
        except Exception as exc:  # whatever one victim raises, the others make room
            log.error("Unexpected error in ending a pod for another one", pod=victim, err=exc)
