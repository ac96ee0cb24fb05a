"""Which CPUs belong to which container alone, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trio_kubelet.common.cpusets import NONE, CPUSet


class CPUState(msgspec.Struct, frozen=True):
    """Who has which CPUs. `assigned`: by pod UID, then by container; `pods`: of pods that were given theirs
    as a whole, by UID. Their containers have parts of these, several maybe the same.
    """

    shared: CPUSet = NONE
    assigned: Mapping[str, Mapping[str, CPUSet]] = {}
    pods: Mapping[str, CPUSet] = {}

    def of(self, uid: str, container: str) -> CPUSet | None:
        return self.assigned.get(uid, {}).get(container)

    def with_container(self, uid: str, container: str, cpus: CPUSet) -> CPUState:
        own = {**self.assigned.get(uid, {}), container: cpus}
        return CPUState(self.shared - cpus, {**self.assigned, uid: own}, self.pods)

    def with_pod(self, uid: str, cpus: CPUSet, parts: Mapping[str, CPUSet]) -> CPUState:
        """The pod has these CPUs as a whole, its containers the parts."""
        return CPUState(self.shared - cpus, {**self.assigned, uid: parts}, {**self.pods, uid: cpus})

    def without_container(self, uid: str, container: str) -> CPUState:
        """The container's CPUs are shared again, but for those another container of its pod has; those of a
        pod as a whole with its last container.
        """
        own, pods = dict(self.assigned.get(uid, {})), self.pods
        released = own.pop(container, NONE).difference(*own.values())
        if uid in pods:
            released = NONE if own else pods[uid]
            pods = pods if own else {pod: cpus for pod, cpus in pods.items() if pod != uid}
        rest = {pod: of for pod, of in self.assigned.items() if pod != uid}
        return CPUState(self.shared | released, {**rest, uid: own} if own else rest, pods)
