"""Which CPUs a container is given: as near to each other as what is free allows. Pure.

Rules: the kubelet's CPU manager (`cpumanager/cpu_assignment.go`), which takes whole NUMA nodes or sockets
first, then whole caches (on request), whole cores, and single CPUs last; always from what is used most
already, so that large pieces stay whole. KEP-2902 spreads evenly over NUMA nodes instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from trio_kubelet.common.cpusets import NONE, CPUSet
from trio_kubelet.placement.doors import AllocationError
from trio_kubelet.placement.topology import CPU, Topology, cache_of, core_of, numa_of, socket_of


class CPUPolicyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`cpuManagerPolicyOptions` of the policy `static`."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False


class NotEnoughCPUs(AllocationError):
    """So many CPUs are not free."""


def take(topology: Topology, available: CPUSet, count: int, options: CPUPolicyOptions) -> CPUSet:
    """`count` of the CPUs that are `available`. Raises NotEnoughCPUs."""
    if options.distribute_cpus_across_numa:
        group = topology.per(core_of) if options.full_pcpus_only else 1
        return _take_spread(topology, available, count, group)
    return _take_packed(
        topology,
        available,
        count,
        by_cache=options.prefer_align_cpus_by_uncorecache,
        across_cores=options.distribute_cpus_across_cores,
    )


class _Taking:
    """What is still free and what has been taken."""

    def __init__(self, topology: Topology, available: CPUSet, count: int) -> None:
        if count > len(available & topology.all()):
            raise NotEnoughCPUs(
                f"not enough cpus available to satisfy request: requested={count}, available={len(available)}"
            )
        self.topology = topology
        self.free = available & topology.all()
        self.taken: CPUSet = NONE
        self.needed = count

    def take(self, cpus: Iterable[int]) -> None:
        these = frozenset(cpus)
        self.taken |= these
        self.free -= these
        self.needed -= len(these)

    def free_in(self, ids: Iterable[int], of: Callable[[CPU], int]) -> CPUSet:
        return self.free & self.topology.having(ids, of)

    def fullest_last(self, ids: Iterable[int], of: Callable[[CPU], int]) -> list[int]:
        """In the order of what is free in them: what is used most comes first."""
        return sorted(ids, key=lambda each: (len(self.free_in([each], of)), each))

    def within(
        self, outer: Sequence[int], of_outer: Callable[[CPU], int], of: Callable[[CPU], int]
    ) -> list[int]:
        """The inner groups of each outer one in turn."""
        found: list[int] = []
        for each in outer:
            inner = self.topology.groups(self.free_in([each], of_outer), of)
            found += self.fullest_last(inner, of)
        return found

    @property
    def numa_first(self) -> bool:
        """Whether NUMA nodes contain sockets, not sockets NUMA nodes."""
        sockets = self.topology.groups(self.topology.cpus, socket_of)
        return len(sockets) >= len(self.topology.numa_nodes())

    def numa_nodes(self) -> list[int]:
        if self.numa_first:
            return self.fullest_last(self.topology.groups(self.free, numa_of), numa_of)
        return self.within(self.sockets(), socket_of, numa_of)

    def sockets(self) -> list[int]:
        if self.numa_first:
            return self.within(self.numa_nodes(), numa_of, socket_of)
        return self.fullest_last(self.topology.groups(self.free, socket_of), socket_of)

    def cores(self) -> list[int]:
        if self.numa_first:
            return self.within(self.sockets(), socket_of, core_of)
        return self.within(self.numa_nodes(), numa_of, core_of)

    def caches(self) -> list[int]:
        return self.within(self.numa_nodes(), numa_of, cache_of)

    def take_whole(self, ids: Sequence[int], of: Callable[[CPU], int], size: int | None = None) -> None:
        """Takes each group that is wholly free and not larger than what is still needed. `size`: only groups
        of so many CPUs count; None: of any number. (Of a machine whose cores or sockets differ a kubelet
        takes those for free of which `size` CPUs are, and with them what others have to themselves:
        kubernetes/kubernetes 140495, 124066.)
        """
        whole = []
        for each in ids:
            full = len(self.topology.having([each], of))
            if len(self.free_in([each], of)) == full and size in (None, full):
                whole.append(each)
        for each in whole:
            cpus = self.topology.having([each], of)
            if self.needed >= len(cpus):
                self.take(cpus)

    def take_caches(self) -> None:
        """Whole caches, else a part of one that is just enough."""
        per_core = self.topology.per(core_of)
        for cache in self.caches():
            if self.needed >= self.topology.per(cache_of):
                self.take_whole(self.caches(), cache_of)
            if self.needed < 1:
                return
            cores = self.topology.groups(self.free_in([cache], cache_of), core_of)
            cpus = sorted(self.free_in(cores[: -(-self.needed // per_core)], core_of))
            if self.needed % 2 and per_core > 1 and len(cpus) > self.needed:
                cpus = cpus[:-1]
            if len(cpus) == self.needed:
                self.take(cpus)
                return


def _take_packed(
    topology: Topology,
    available: CPUSet,
    count: int,
    *,
    by_cache: bool = False,
    across_cores: bool = False,
) -> CPUSet:
    if count < 1:
        return NONE
    taking = _Taking(topology, available, count)
    levels: list[Callable[[], None]] = [
        lambda: taking.take_whole(taking.numa_nodes(), numa_of),
        lambda: taking.take_whole(taking.sockets(), socket_of, topology.per(socket_of)),
    ]
    if not taking.numa_first:
        levels.reverse()
    if by_cache:
        levels.append(taking.take_caches)
    if not across_cores:
        levels.append(lambda: taking.take_whole(taking.cores(), core_of, topology.per(core_of)))
    for level in levels:
        level()
        if taking.needed < 1:
            return taking.taken
    for cpu in _single(taking, across_cores):
        taking.take([cpu])
        if taking.needed < 1:
            break
    return taking.taken


def _single(taking: _Taking, across_cores: bool) -> list[int]:
    """Free CPUs one by one: core by core, or, to spread them over cores, socket by socket in their order."""
    ids, of = (taking.sockets(), socket_of) if across_cores else (taking.cores(), core_of)
    return [cpu for each in ids for cpu in sorted(taking.free_in([each], of))]


def _take_spread(topology: Topology, available: CPUSet, count: int, group: int) -> CPUSet:
    """Evenly over as few NUMA nodes as will do, in groups of `group` CPUs."""
    if count < 1:
        return NONE
    if count % group:
        return _take_packed(topology, available, count)
    taking = _Taking(topology, available, count)
    nodes = taking.numa_nodes()
    for number in range(*_nodes_needed(topology, count, group, len(nodes))):
        best = _best_balance(taking, nodes, number, count, group)
        if best is None:
            continue
        combination, remainder_nodes = best
        even = count // len(combination) // group * group
        for node in combination:
            taking.take(_take_packed(topology, taking.free_in([node], numa_of), even))
        while taking.needed > 0:
            for node in remainder_nodes:
                free = taking.free_in([node], numa_of)
                if taking.needed > 0 and len(free) >= group:
                    taking.take(_take_packed(topology, free, group))
        return taking.taken
    return _take_packed(topology, available, count)


def _nodes_needed(topology: Topology, count: int, group: int, free_nodes: int) -> tuple[int, int]:
    """From how many NUMA nodes to how many (excluded) it is worth trying."""
    groups = -(-len(topology.cpus) // group)
    per_node = -(-groups // len(topology.numa_nodes()))
    needed = -(-count // group)
    return -(-needed // per_node), min(needed, free_nodes) + 1


def _best_balance(
    taking: _Taking, nodes: Sequence[int], number: int, count: int, group: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The `number` NUMA nodes over which the CPUs can be spread such that what stays free is most even, and
    those of them that give what is left over.
    """
    free = {node: len(taking.free_in([node], numa_of)) for node in nodes}
    best_score, best = math.inf, None
    for combination in itertools.combinations(nodes, number):
        if best_score == 0:
            break
        if sum(free[node] // group for node in combination) * group < count:
            continue
        even = count // number // group * group
        if any(free[node] < even for node in combination):
            continue
        after = {node: free[node] - (even if node in combination else 0) for node in nodes}
        score, givers = _best_remainder(after, combination, count - even * number, group)
        if score < best_score:
            best_score, best = score, (combination, givers)
    return best


def _best_remainder(
    after: dict[int, int], combination: Sequence[int], remainder: int, group: int
) -> tuple[float, tuple[int, ...]]:
    """From which nodes the CPUs that cannot be spread evenly come, and how uneven that leaves the machine."""
    if remainder == 0:
        return _deviation(list(after.values())), ()
    givers = [node for node in combination if after[node] >= group]
    best_score = math.inf
    best: tuple[int, ...] = ()
    for number in range(len(givers), 0, -1):
        for subset in itertools.combinations(givers, number):
            if sum(after[node] // group * group for node in subset) < remainder:
                continue
            score = _deviation(list(_without(after, subset, remainder, group).values()))
            if score < best_score:
                best_score, best = score, subset
    return best_score, best


def _without(free: dict[int, int], givers: Sequence[int], count: int, group: int) -> dict[int, int]:
    """What stays free when these nodes, which have enough, give so many CPUs in turn, a group at a time."""
    left = dict(free)
    while count > 0:
        for node in givers:
            if count > 0 and left[node] >= group:
                left[node] -= group
                count -= group
    return left


def _deviation(numbers: Sequence[int]) -> float:
    """The standard deviation to three decimals, as the kubelet compares it."""
    mean = _thousandths(sum(numbers) / len(numbers))
    return _thousandths(math.sqrt(sum((n - mean) ** 2 for n in numbers) / len(numbers)))


def _thousandths(number: float) -> float:
    return math.floor(number * 1000 + 0.5) / 1000
