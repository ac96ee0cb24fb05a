"""Which CPUs belong to which container alone: the CPU manager's policy `static`. Pure.

A container of a Guaranteed pod that asks for whole CPUs has them to itself; all others share the rest, the
default set. Reserved CPUs stay in the default set (or, with strict-cpu-reservation, in no set at all).
Rules: the kubelet's `cpumanager/policy_static.go`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar, regular_containers
from trio_kubelet.placement.cpusets import NONE, CPUSet, cpus_text
from trio_kubelet.placement.hints import Hint, Hints, has_node, mask_of
from trio_kubelet.placement.pod_level import has_pod_resources
from trio_kubelet.placement.taking import CPUPolicyOptions, take
from trio_kubelet.placement.topology import Topology, core_of, numa_of, socket_of
from trio_kubelet.podinfo.amounts import UNIT, amount
from trio_kubelet.podinfo.qos import QOSClass, pod_qos

CPU = "cpu"


class SMTAlignmentError(Exception):
    """Whole cores were asked for and cannot be had (kubelet: reason `SMTAlignmentError`)."""


class InvalidState(Exception):
    """The recorded assignments do not fit the machine or the configuration."""


class CPUState(msgspec.Struct, frozen=True):
    """Who has which CPUs. `assigned`: by pod UID, then by container."""

    shared: CPUSet = NONE
    assigned: Mapping[str, Mapping[str, CPUSet]] = {}

    def of(self, uid: str, container: str) -> CPUSet | None:
        return self.assigned.get(uid, {}).get(container)

    def with_container(self, uid: str, container: str, cpus: CPUSet) -> CPUState:
        own = {**self.assigned.get(uid, {}), container: cpus}
        return CPUState(self.shared - cpus, {**self.assigned, uid: own})

    def without_container(self, uid: str, container: str) -> CPUState:
        """The container's CPUs are shared again, but for those another container of its pod has."""
        own = dict(self.assigned.get(uid, {}))
        released = own.pop(container, NONE).difference(*own.values())
        rest = {pod: of for pod, of in self.assigned.items() if pod != uid}
        return CPUState(self.shared | released, {**rest, uid: own} if own else rest)


class CPUPolicy(msgspec.Struct, frozen=True):
    """The policy on this machine. `reserved`: CPUs that no container has to itself."""

    topology: Topology
    reserved: CPUSet
    options: CPUPolicyOptions = CPUPolicyOptions()

    def initial(self) -> CPUState:
        """The state of a node that has given nothing yet."""
        everything = self.topology.all()
        return CPUState(everything - self.reserved if self.options.strict_cpu_reservation else everything)

    def check(self, state: CPUState) -> CPUState:
        """The state as it may be gone on with; raises InvalidState with the kubelet's words."""
        if not state.shared:
            if state.assigned:
                raise InvalidState("default cpuset cannot be empty")
            return self.initial()
        in_both = self.reserved & state.shared
        if self.options.strict_cpu_reservation and in_both:
            raise InvalidState(
                f'some of strictly reserved cpus: "{cpus_text(in_both)}" are present in defaultCpuSet: '
                f'"{cpus_text(state.shared)}"'
            )
        if not self.options.strict_cpu_reservation and in_both != self.reserved:
            raise InvalidState(
                f'not all reserved cpus: "{cpus_text(self.reserved)}" are present in defaultCpuSet: '
                f'"{cpus_text(state.shared)}"'
            )
        known = state.shared
        for uid, containers in state.assigned.items():
            for name, cpus in containers.items():
                if cpus & state.shared:
                    raise InvalidState(
                        f'pod: {uid}, container: {name} cpuset: "{cpus_text(cpus)}" overlaps with '
                        f'default cpuset "{cpus_text(state.shared)}"'
                    )
                known |= cpus
        expected = self.topology.all() - (self.reserved if self.options.strict_cpu_reservation else NONE)
        if known != expected:
            raise InvalidState(
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
        SMTAlignmentError, NotEnoughCPUs.
        """
        count = exclusive_cpus(pod, container)
        if count == 0:
            return state
        self._check_alignment(state, count)
        if state.of(pod.metadata.uid, container.name) is not None:
            return state
        cpus = self._choose(self.available(state) | reusable, count, affinity)
        return state.with_container(pod.metadata.uid, container.name, cpus)

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

    def hints(self, state: CPUState, pod: v1.Pod, container: v1.Container, reusable: CPUSet) -> Hints:
        """From which NUMA nodes the container could be given its CPUs."""
        count = exclusive_cpus(pod, container)
        if count == 0:
            return {}
        known = state.of(pod.metadata.uid, container.name)
        if known is not None:
            return {CPU: self._hints(known, NONE, count) if len(known) == count else []}
        return {CPU: self._hints(self.available(state), reusable, count)}

    def pod_hints(self, state: CPUState, pod: v1.Pod, reusable: CPUSet) -> Hints:
        """From which NUMA nodes the pod as a whole could be given its CPUs."""
        count = pod_exclusive_cpus(pod)
        if count == 0:
            return {}
        known = NONE
        for container in regular_containers(pod.spec):
            cpus = state.of(pod.metadata.uid, container.name)
            if cpus is not None:
                if len(cpus) != exclusive_cpus(pod, container):
                    return {CPU: []}
                known |= cpus
        if len(known) == count:
            return {CPU: self._hints(known, NONE, count)}
        return {CPU: self._hints(self.available(state), reusable | known, count)}

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


def reserved_cpus(topology: Topology, count: int, named: CPUSet, options: CPUPolicyOptions) -> CPUSet:
    """The CPUs kept for the system: those that are named, else `count` of the lowest cores. Raises
    NotEnoughCPUs, InvalidState.
    """
    reserved = named or take(topology, topology.all(), count, options)
    if len(reserved) != count or not reserved <= topology.all():
        raise InvalidState(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {cpus_text(reserved)} did not equal {count})"
        )
    return reserved


def exclusive_cpus(pod: v1.Pod, container: v1.Container) -> int:
    """How many CPUs the container is to have to itself; 0 for one that shares."""
    if pod_qos(pod) is not QOSClass.GUARANTEED or has_pod_resources(pod):
        return 0
    requests = container.resources.requests if container.resources else None
    wanted = amount((requests or {}).get(CPU, "0"))
    return wanted // UNIT if wanted % UNIT == 0 else 0


def pod_exclusive_cpus(pod: v1.Pod) -> int:
    """How many CPUs the pod's containers have to themselves at the most at one time."""
    sidecars = before = 0
    for container in pod.spec.init_containers or ():
        count = exclusive_cpus(pod, container)
        if is_sidecar(container):
            sidecars += count
        else:
            before = max(before, sidecars + count)
    return max(before, sidecars + sum(exclusive_cpus(pod, c) for c in pod.spec.containers or ()))


def reusable_after(pod: v1.Pod, container: v1.Container, cpus: CPUSet, reusable: CPUSet) -> CPUSet:
    """What later containers of the pod may be given a second time: the CPUs of init containers that end."""
    names = {c.name for c in pod.spec.init_containers or () if not is_sidecar(c)}
    return reusable | cpus if container.name in names else reusable - cpus
