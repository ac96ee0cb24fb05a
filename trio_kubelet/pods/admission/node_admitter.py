"""The admitter of a real node: further checks, then the rules of `admission` over what pods were granted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

from trio_kubelet.api.tolerations import tolerates
from trio_kubelet.api.v1 import Pod, Taint
from trio_kubelet.podinfo.qos import QOSClass, is_critical_pod, pod_qos
from trio_kubelet.pods.admission.admitter import Admit, Allocate, Decision, Postpone, Preempt, Reject
from trio_kubelet.pods.admission.allocating import Allocating
from trio_kubelet.pods.admission.features import lacking, needed_for_update
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.admission.rules import decide
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist
from trio_kubelet.pods.resize.allocation import AllocationStore, with_allocation
from trio_kubelet.pods.resize.rules import NO_RULES, ResizeRules, infeasible

Check: TypeAlias = Callable[[Pod], Reject | None]
"""A further ground for refusal: a node that shuts down."""


class NodeAdmitter:
    """Implements `Admitter`; the node's facts are asked for each time, as they may change.

    `pressures` are the node's conditions under which it takes fewer pods; those it has already taken stay.
    `look` asks the API server what the node is like now, where there is one.
    """

    def __init__(
        self,
        *,
        node: Callable[[], NodeFacts],
        sysctls: SysctlAllowlist,
        allocations: AllocationStore,
        checks: Sequence[Check] = (),
        pressures: Callable[[], Collection[str]] = frozenset,
        resizes: ResizeRules = NO_RULES,
        allocating: Allocating | None = None,
        look: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._node = node
        self._sysctls = sysctls
        self._allocations = allocations
        self._checks = checks
        self._pressures = pressures
        self._resizes = resizes
        self._allocating = allocating
        self._look = look

    def admit(self, pod: Pod, others: Others) -> Decision:
        """Whether `pod` may run beside `others`; a pod known from before counts with what it was granted."""
        known = self._allocations.get(pod.metadata.uid) is not None
        if not known and (refused := refusal(pod, self._pressures())) is not None:
            return refused
        if text := self._sysctls.refusal(pod):  # such a pod is given nothing
            return Reject("SysctlForbidden", text)
        if self._allocating is not None:
            if self._allocating.outstanding(pod):
                return Allocate()
            if (failed := self._allocating.refusal(pod.metadata.uid)) is not None:
                return failed
        decision = self._decide(self.as_granted(pod), others)
        return Allocate() if self._looks_first(pod, decision) else decision

    def _looks_first(self, pod: Pod, decision: Decision) -> bool:
        """Labels that a pod goes by may be newer than what the node has heard of itself; at the start it has
        not heard of any but its own (kubelet: `generalFilter`).
        """
        if not isinstance(decision, Reject) or decision.reason != "NodeAffinity":
            return False
        if self._look is None or self._allocating is None:
            return False
        return self._allocating.look_first(pod.metadata.uid, self._look)

    def _decide(self, pod: Pod, others: Others) -> Admit | Reject | Preempt:
        """What is to be said of the pod with the resources it asks for here. The further checks come last, as
        in the kubelet, but before others are ended for the pod.
        """
        decision = decide(pod, others, self._node(), self._sysctls)
        if not isinstance(decision, Reject):
            for check in self._checks:
                if (refused := check(pod)) is not None:
                    return refused
        return decision

    def granted(self, pod: Pod) -> None:
        """The pod starts with what it was granted before, else with what it asks for."""
        self._allocations.grant(self.as_granted(pod))

    def as_granted(self, pod: Pod) -> Pod:
        """The pod with the resources it was granted."""
        return with_allocation(pod, self._allocations.get(pod.metadata.uid))

    def as_actuated(self, pod: Pod) -> Pod:
        """The pod with the resources it has, while a resize is not made yet."""
        return with_allocation(pod, self._allocations.outstanding(pod.metadata.uid))

    def resize(self, pod: Pod, others: Others) -> Admit | Postpone | Preempt:
        """Grants a running pod other resources if it could be admitted with them: a node that would refuse it
        as a new pod, for whatever reason, lets it wait.
        """
        if (never := infeasible(pod, self.as_granted(pod), self._resizes)) is not None:
            return never
        answer: Admit | Reject | Preempt | None = refusal(pod, self._pressures())
        if answer is None:
            if self._allocating is not None:
                self._allocating.resizes(pod)
            answer = self._decide(pod, others)
        if isinstance(answer, Reject):
            return Postpone("Deferred", answer.message, answer.reason)
        if isinstance(answer, Admit):
            self._allocations.grant(pod)
        return answer

    def lacks(self, before: Pod, pod: Pod) -> str:
        """What the change needs and this node does not declare."""
        needed = needed_for_update(before, pod)
        return lacking(needed, self._node().declared) if needed else ""

    def grant(self, pod: Pod) -> None:
        """The pod gets what it asks for."""
        self._allocations.grant(pod)

    def actuated(self, uid: str) -> None:
        """The pod and its containers have what it was granted."""
        self._allocations.actuated(uid)

    def keep_only(self, uids: Collection[str]) -> None:
        """What pods were granted that went while no agent ran is forgotten."""
        self._allocations.keep_only(uids)

    def forget(self, uid: str) -> None:
        """The pod is not wanted any more."""
        self._allocations.forget(uid)
        if self._allocating is not None:
            self._allocating.forget(uid)


_MEMORY_PRESSURE = "MemoryPressure"
_MEMORY_TAINT = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")


def refusal(pod: Pod, pressures: Collection[str]) -> Reject | None:
    """Why the pod cannot be taken under these conditions of the node (kubelet: `eviction.Admit`). Critical
    pods always can; with memory alone short so can all that reserve some, or tolerate it.
    """
    if not pressures or is_critical_pod(pod):
        return None
    if set(pressures) == {_MEMORY_PRESSURE} and (
        pod_qos(pod) is not QOSClass.BEST_EFFORT
        or any(tolerates(toleration, _MEMORY_TAINT) for toleration in pod.spec.tolerations or ())
    ):
        return None
    return Reject("Evicted", f"The node had condition: [{' '.join(sorted(pressures))}]. ")
