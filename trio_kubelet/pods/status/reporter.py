"""Says how each pod is, round for round: its status is generated and handed to the status manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.observed.types import PodStatus
from trio_kubelet.podinfo.doors import RecorderDoor
from trio_kubelet.podinfo.updates import is_static
from trio_kubelet.pods.doors import ProbeResults
from trio_kubelet.pods.refs import FAILED, is_terminal_phase
from trio_kubelet.pods.rounds import ReasonCache
from trio_kubelet.pods.status.conditions import READY_TO_START, condition, put
from trio_kubelet.pods.status.generate import (
    DEADLINE_EXCEEDED,
    DEADLINE_MESSAGE,
    StatusInputs,
    generate_status,
    past_active_deadline,
    rejected_status,
)
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.runtime.results import PodSyncResult

log = get_logger(__name__)


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """What statuses say about the node.

    `host_ips` is empty without an API server, as the kubelet then does not show them either.
    """

    host_ips: tuple[str, ...] = ()
    ipv6_first: bool = False
    runtime_name: str = "containerd"
    # Whether the handler of a pod's runtime class can do recursive read-only mounts.
    recursive_read_only: Callable[[v1.Pod], bool] = lambda pod: False
    stop_signals: bool = False
    ready_to_start: bool = True  # whether statuses say that a pod's sandbox is up
    pod_resources: bool = True  # whether statuses show the resources of the pod as a whole
    # Health of what plugins gave to a container, by pod and name (KEP-4680).
    given_health: Callable[[v1.Pod, str], Sequence[v1.ResourceStatus]] = lambda pod, container: ()


class _Basis(NamedTuple):
    """All that a status is made from, but for the time: one made from the same once more is the same. Most
    rounds find nothing new, and to generate their status would be half of what they cost.
    """

    pod: v1.Pod
    before: v1.PodStatus
    actuated: v1.Pod | None
    rest: tuple[object, ...]

    @classmethod
    def of(cls, pod: v1.Pod, observed: PodStatus, before: v1.PodStatus, inputs: StatusInputs) -> _Basis:
        """What is passed by reference is not changed afterwards, except the probes' verdicts."""
        readiness, startup = inputs.probes.readiness, inputs.probes.startup
        rest = (
            observed.ips,
            observed.containers,
            observed.sandboxes,
            inputs.runtime_name,
            inputs.reasons,
            inputs.recursive_read_only,
            inputs.stop_signals,
            inputs.adopted,
            inputs.host_ips,
            inputs.ipv6_first,
            [(readiness.get(c.id), startup.get(c.id)) for c in observed.containers],
            [inputs.given_health(c.name) for c in pod.spec.containers or ()],
        )
        return cls(pod, before, inputs.actuated, rest)

    def is_same(self, other: _Basis | None) -> bool:
        """Whether it is the same pod, after the same status, of which the same is known."""
        return (
            other is not None
            and self.pod is other.pod
            and self.before is other.before
            and self.actuated is other.actuated
            and self.rest == other.rest
            and self.pod.spec.active_deadline_seconds is None
        )


class StatusReporter:
    """Joins what is observed of a pod with what else its status is made from."""

    def __init__(
        self,
        *,
        statuses: StatusManager,
        node: Callable[[], NodeView],
        as_actuated: Callable[[v1.Pod], v1.Pod],  # the pod with what it has while a resize is not made
        probes: ProbeResults,
        reasons: ReasonCache,
        recorder: RecorderDoor,
        clock: Clock,
    ) -> None:
        self._statuses = statuses
        self._node = node
        self._as_actuated = as_actuated
        self._probes = probes
        self._reasons = reasons
        self._recorder = recorder
        self._clock = clock
        self._said: dict[str, _Basis] = {}  # by UID: of a status that was the one before it

    def say(self, pod: v1.Pod, observed: PodStatus, *, amid: bool = False) -> v1.PodStatus:
        """The status of a pod that runs, or is to run. `amid` a round that may have ended containers to start
        them anew, that the pod is over is not said.
        """
        self._tell_deadline(pod)
        before, inputs = self._statuses.before(pod), self._inputs(pod)
        basis = _Basis.of(pod, observed, before, inputs)
        if self._statuses.is_shown(pod) and basis.is_same(self._said.get(pod.metadata.uid)):
            return before
        status = generate_status(pod, observed, before, inputs, terminal=False)
        if amid and is_terminal_phase(status.phase):
            return before
        shown = self._statuses.set(pod, status)
        if shown == before:  # then the next one of the same basis is, too
            self._said[pod.metadata.uid] = basis
        return shown

    def say_ending(
        self, pod: v1.Pod, observed: PodStatus, patch: Callable[[v1.PodStatus], v1.PodStatus] | None
    ) -> v1.PodStatus:
        """The status of a pod whose containers are to stop; `patch` has why."""
        self._tell_deadline(pod)
        shown = self._of_ending(pod, observed, terminal=False)
        return self._statuses.set(pod, shown if patch is None else patch(shown))

    def say_last(self, pod: v1.Pod, observed: PodStatus) -> v1.PodStatus:
        """The status of a pod of which no container runs any more, nor will."""
        self._tell_deadline(pod)
        return self._statuses.set(pod, self._of_ending(pod, observed, terminal=True))

    def say_refused(self, pod: v1.Pod, reason: str, message: str) -> None:
        """The status of a pod that this node does not take after all."""
        self._statuses.set(pod, rejected_status(pod, reason, message))

    async def sandbox_ready(self, pod: v1.Pod) -> None:
        """A new sandbox is up: that is said at once, for pulling images may take long."""
        if not self._node().ready_to_start:
            return
        shown = self._statuses.before(pod)
        conditions = put(shown.conditions, condition(pod, READY_TO_START, True))
        self._statuses.set(pod, replace(shown, conditions=conditions))

    def after_round(self, pod: v1.Pod, observed: PodStatus, result: PodSyncResult, *, acted: bool) -> bool:
        """Why containers could not be started is part of what is said; whether any of that is new. If the
        round has not `acted`, no look follows that would find it, so it is said now.
        """
        changed = self._reasons.update(pod.metadata.uid, result)
        if changed and not acted:
            self.say(pod, observed)
        return changed

    def finish(self, pod: v1.Pod) -> None:
        """Nothing is left of the pod, and this node is done with it."""
        self._reasons.forget(pod.metadata.uid)
        self._said.pop(pod.metadata.uid, None)
        self._statuses.terminate(pod)

    def _tell_deadline(self, pod: v1.Pod) -> None:
        """Tells of a pod whose time is up, before its status says so."""
        before = self._statuses.before(pod)
        if past_active_deadline(pod, before, self._clock.now_ns()) and not is_terminal_phase(before.phase):
            self._recorder.record(pod, "Normal", DEADLINE_EXCEEDED, DEADLINE_MESSAGE)

    def _of_ending(self, pod: v1.Pod, observed: PodStatus, *, terminal: bool) -> v1.PodStatus:
        """The status of a pod that is being ended. What cannot be said of it must not keep it from ending."""
        before = self._statuses.before(pod)
        try:
            return generate_status(pod, observed, before, self._inputs(pod), terminal=terminal)
        except Exception as exc:
            log.error("Unexpected error in the status of a pod that ends", pod=pod, err=exc)
            return replace(before, phase=FAILED) if terminal else before

    def _inputs(self, pod: v1.Pod) -> StatusInputs:
        node = self._node()
        return StatusInputs(
            runtime_name=node.runtime_name,
            reasons=self._reasons.get(pod.metadata.uid),
            recursive_read_only=node.recursive_read_only(pod),
            stop_signals=node.stop_signals,
            ready_to_start=node.ready_to_start,
            pod_resources=node.pod_resources,
            given_health=partial(node.given_health, pod),
            actuated=self._as_actuated(pod),
            adopted=is_static(pod) and self._statuses.get(pod.metadata.uid) is None,
            probes=self._probes.view(),
            host_ips=node.host_ips,
            ipv6_first=node.ipv6_first,
            now_ns=self._clock.now_ns(),
        )
