"""Which CPUs belong to which container alone: the CPU manager's policy `static`. Pure.

A container of a Guaranteed pod that asks for whole CPUs has them to itself; all others share the rest, the
default set. Reserved CPUs stay in the default set (or, with strict-cpu-reservation, in no set at all).
Rules: the kubelet's `cpumanager/policy_static.go`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import ends, is_sidecar, regular_containers
from trio_kubelet.common.cpusets import NONE, CPUSet, cpus_text
from trio_kubelet.placement.cpu_state import CPUState
from trio_kubelet.placement.doors import AllocationError, PlacementStateError
from trio_kubelet.placement.hints import Hint, Hints, has_node, mask_of
from trio_kubelet.placement.pod_level import EmptyPool, PodLevel, served_as_one, shares
from trio_kubelet.placement.taking import CPUPolicyOptions, NotEnoughCPUs, take
from trio_kubelet.placement.topology import Topology, core_of, numa_of, socket_of
from trio_kubelet.podinfo.amounts import UNIT, amount
from trio_kubelet.podinfo.qos import QOSClass, pod_qos

CPU = "cpu"


class SMTAlignmentError(AllocationError):
    """Whole cores were asked for and cannot be had."""

    reason = "SMTAlignmentError"


class CPUPolicy(msgspec.Struct, frozen=True):
    """The policy on this machine. `reserved`: CPUs that no container has to itself."""

    topology: Topology
    reserved: CPUSet
    options: CPUPolicyOptions = CPUPolicyOptions()
    pod_level: PodLevel = PodLevel.SHARED

    def initial(self) -> CPUState:
        """The state of a node that has given nothing yet."""
        everything = self.topology.all()
        return CPUState(everything - self.reserved if self.options.strict_cpu_reservation else everything)

    def check(self, state: CPUState) -> CPUState:
        """The state as it may be gone on with; raises PlacementStateError with the kubelet's words."""
        if not state.shared:
            if state.assigned:
                raise PlacementStateError("default cpuset cannot be empty")
            return self.initial()
        in_both = self.reserved & state.shared
        if self.options.strict_cpu_reservation and in_both:
            raise PlacementStateError(
                f'some of strictly reserved cpus: "{cpus_text(in_both)}" are present in defaultCpuSet: '
                f'"{cpus_text(state.shared)}"'
            )
        if not self.options.strict_cpu_reservation and in_both != self.reserved:
            raise PlacementStateError(
                f'not all reserved cpus: "{cpus_text(self.reserved)}" are present in defaultCpuSet: '
                f'"{cpus_text(state.shared)}"'
            )
        known = state.shared.union(*state.pods.values())
        for uid, containers in state.assigned.items():
            for name, cpus in containers.items():
                if cpus & state.shared:
                    raise PlacementStateError(
                        f'pod: {uid}, container: {name} cpuset: "{cpus_text(cpus)}" overlaps with '
                        f'default cpuset "{cpus_text(state.shared)}"'
                    )
                known |= cpus
        expected = self.topology.all() - (self.reserved if self.options.strict_cpu_reservation else NONE)
        if known != expected:
            raise PlacementStateError(
                f'current set of available CPUs "{cpus_text(expected)}" doesn\'t match with CPUs in state '
                f'"{cpus_text(known)}"'
            )
        return state

    def allocatable(self) -> CPUSet:
        """All that may be given to containers alone."""
        return self.topology.all() - self.reserved

    def available(self, state: CPUState) -> CPUSet:
        return state.shared - self.reserved

    def allocate(
        self, state: CPUState, pod: v1.Pod, container: v1.Container, affinity: Hint | None, reusable: CPUSet
    ) -> CPUState:
        """The state after the container was given its CPUs; the same if it has them or wants none. Raises
        SMTAlignmentError, NotEnoughCPUs, EmptyPool.
        """
        if self.as_one(pod):
            return self._allocate_pod(state, pod, affinity)
        count = self.exclusive(pod, container)
        if count == 0:
            return state
        self._check_alignment(state, count)
        if state.of(pod.metadata.uid, container.name) is not None:
            return state
        cpus = self._choose(self.available(state) | reusable, count, affinity)
        return state.with_container(pod.metadata.uid, container.name, cpus)

    def _allocate_pod(self, state: CPUState, pod: v1.Pod, affinity: Hint | None) -> CPUState:
        uid, count = pod.metadata.uid, self.exclusive_of_pod(pod)
        if count == 0 or uid in state.assigned:
            return state
        self._check_pool(pod, count)
        self._check_alignment(state, count)
        cpus = self._choose(self.available(state), count, affinity)
        return state.with_pod(uid, cpus, dict(self._parts(pod, cpus)))

    def _parts(self, pod: v1.Pod, cpus: CPUSet) -> Iterator[tuple[str, CPUSet]]:
        """What each container has of the CPUs of its pod. Init containers have all in turn, but for what
        sidecars before them keep; who has none alone shares what is left.
        """
        left, sharing = cpus, []
        for container in regular_containers(pod.spec):
            count, stays = self.exclusive(pod, container), not ends(pod.spec, container)
            if not count and stays:
                sharing.append(container.name)
                continue
            own = take(self.topology, left, count, self.options) if count else left
            if stays:
                left -= own
            yield container.name, own
        for name in sharing:
            yield name, left

    def _check_pool(self, pod: v1.Pod, count: int) -> None:
        """Raises EmptyPool."""
        lasting, sharing = 0, False
        for container in regular_containers(pod.spec):
            own = self.exclusive(pod, container)
            if not ends(pod.spec, container):
                lasting, sharing = lasting + own, sharing or not own
            elif not own and lasting >= count:
                raise EmptyPool("pod rejected, pod has shared init containers but no cpus available for them")
        if sharing and lasting >= count:
            raise EmptyPool(
                "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus "
                "for shared containers"
            )

    def _choose(self, free: CPUSet, count: int, affinity: Hint | None) -> CPUSet:
        chosen = NONE
        if affinity is not None and affinity.mask is not None:
            near = free & self._aligned(affinity.mask)
            chosen = take(self.topology, near, min(count, len(near)), self.options)
        return chosen | take(self.topology, free - chosen, count - len(chosen), self.options)

    def _aligned(self, mask: int) -> CPUSet:
        nodes = [node for node in self.topology.numa_nodes() if has_node(mask, node)]
        in_nodes = self.topology.having(nodes, numa_of)
        if not self.options.align_by_socket:
            return in_nodes
        return self.topology.having(self.topology.groups(in_nodes, socket_of), socket_of)

    def _check_alignment(self, state: CPUState, count: int) -> None:
        if not self.options.full_pcpus_only:
            return
        per_core = self.topology.per(core_of)
        if count % per_core:
            raise SMTAlignmentError(
                f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {per_core}"
            )
        reserved_cores = self.topology.having(self.topology.groups(self.reserved, core_of), core_of)
        free = len(state.shared - reserved_cores)
        if count > free:
            raise SMTAlignmentError(
                f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {free}, "
                f"requested CPUs = {count}, CPUs per core = {per_core}"
            )

    def reusable_after(
        self, state: CPUState, pod: v1.Pod, container: v1.Container, reusable: CPUSet
    ) -> CPUSet:
        """What later containers of the pod may be given a second time: CPUs of init containers that end."""
        cpus = state.of(pod.metadata.uid, container.name) or NONE
        return reusable | cpus if ends(pod.spec, container) else reusable - cpus

    def hints(self, state: CPUState, pod: v1.Pod, container: v1.Container, reusable: CPUSet) -> Hints:
        """From which NUMA nodes the container could be given its CPUs."""
        count = self.exclusive(pod, container)
        if count == 0:
            return {}
        known = state.of(pod.metadata.uid, container.name)
        if known is not None:
            return {CPU: self._hints(known, NONE, count) if len(known) == count else []}
        return {CPU: self._hints(self.available(state), reusable, count)}

    def pod_hints(self, state: CPUState, pod: v1.Pod, reusable: CPUSet) -> Hints:
        """From which NUMA nodes the pod as a whole could be given its CPUs."""
        count = self.exclusive_of_pod(pod)
        if count == 0:
            return {}
        if self.as_one(pod):
            return {CPU: self._hints_as_one(state, pod, count)}
        known = NONE
        for container in regular_containers(pod.spec):
            cpus = state.of(pod.metadata.uid, container.name)
            if cpus is not None:
                if len(cpus) != self.exclusive(pod, container):
                    return {CPU: []}
                known |= cpus
        if len(known) == count:
            return {CPU: self._hints(known, NONE, count)}
        return {CPU: self._hints(self.available(state), reusable | known, count)}

    def _hints_as_one(self, state: CPUState, pod: v1.Pod, count: int) -> list[Hint]:
        """What a pod has it is given again (a kubelet may refuse it, or take other CPUs and lose these)."""
        known = state.pods.get(pod.metadata.uid)
        if known is not None:
            return self._hints(known, NONE, count)
        try:
            self._check_pool(pod, count)
        except EmptyPool:
            return []
        return self._hints(self.available(state), NONE, count)

    def _hints(self, available: CPUSet, reusable: CPUSet, count: int) -> list[Hint]:
        nodes = self.topology.numa_nodes()
        narrowest, found = len(nodes), []
        for width in range(1, len(nodes) + 1):
            for some in itertools.combinations(nodes, width):
                members = self.topology.having(some, numa_of)
                if len(members) >= count:
                    narrowest = min(narrowest, width)
                if reusable <= members and len(reusable) + len(available & members) >= count:
                    found.append(some)
        return [Hint(mask_of(some), self._preferred(some, narrowest)) for some in found]

    def _preferred(self, nodes: tuple[int, ...], narrowest: int) -> bool:
        if len(nodes) == narrowest:
            return True
        if not self.options.align_by_socket:
            return False
        sockets = self.topology.groups(self.topology.all(), socket_of)
        per_socket = len(self.topology.numa_nodes()) // len(sockets)
        if per_socket == 0:
            return False
        spanned = self.topology.groups(self.topology.having(nodes, numa_of), socket_of)
        return len(spanned) == -(-narrowest // per_socket)

    # Who has CPUs alone

    def as_one(self, pod: v1.Pod) -> bool:
        """Whether the pod is given things as a whole."""
        return served_as_one(pod, self.pod_level)

    def exclusive(self, pod: v1.Pod, container: v1.Container) -> int:
        """How many CPUs the container is to have to itself; 0 for one that shares."""
        if pod_qos(pod) is not QOSClass.GUARANTEED or shares(pod, container, self.pod_level):
            return 0
        return _whole_cpus(container.resources.requests)

    def exclusive_of_pod(self, pod: v1.Pod) -> int:
        """How many CPUs the pod has at the most at one time, as a whole or together those of its containers
        that have some alone.
        """
        if self.as_one(pod):
            whole = pod.spec.resources
            guaranteed = pod_qos(pod) is QOSClass.GUARANTEED
            return _whole_cpus(whole.requests) if guaranteed and whole is not None else 0
        sidecars = before = 0
        for container in pod.spec.init_containers or ():
            count = self.exclusive(pod, container)
            if is_sidecar(container):
                sidecars += count
            else:
                before = max(before, sidecars + count)
        return max(before, sidecars + sum(self.exclusive(pod, c) for c in pod.spec.containers or ()))


def _whole_cpus(requests: Mapping[str, str] | None) -> int:
    """The CPUs asked for; 0 unless that is a whole number."""
    wanted = amount((requests or {}).get(CPU, ""))
    return wanted // UNIT if wanted % UNIT == 0 else 0


def reserved_cpus(topology: Topology, count: int, named: CPUSet, options: CPUPolicyOptions) -> CPUSet:
    """The CPUs kept for the system: those that are named, else `count` of the lowest cores. Raises
    NotEnoughCPUs.
    """
    reserved = named or take(topology, topology.all(), count, options)
    if len(reserved) != count or not reserved <= topology.all():
        raise NotEnoughCPUs(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {cpus_text(reserved)} did not equal {count})"
        )
    return reserved
