"""How many devices containers ask for, from which NUMA nodes they could come (kubelet:
`devicemanager/topology_hints.go`), and which a container gets. Pure; the kubelet's order
(`devicesToAllocate`).

Devices that earlier init containers of the pod leave come first, then those near the NUMA nodes that were
agreed on, then what the plugin prefers, then the rest. Extended resources are not overcommitted: requests
equal limits, so limits say everything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Final, NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.devices.values import Device
from trio_kubelet.placement.hints import Hint, has_node, mask_of
from trio_kubelet.podinfo.amounts import amounts, whole
from trio_kubelet.podinfo.totals import claimed_resources, pod_limits


class Free(NamedTuple):
    """Devices that can be given, by where they are: near the agreed nodes, near others, near none."""

    aligned: frozenset[str]
    unaligned: frozenset[str]
    nowhere: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.aligned | self.unaligned | self.nowhere


class PreferredAllocation(NamedTuple):
    """What the plugin is asked to choose from (`GetPreferredAllocation`)."""

    available: frozenset[str]
    must_include: frozenset[str]


def sort_free(devices: Mapping[str, Device], free: Iterable[str], affinity: Hint | None) -> Free:
    """`free` by where the devices are. Without an affinity, or when no device says where it is, it does not
    matter.
    """
    ids = frozenset(free)
    if affinity is None or affinity.mask is None or not any(each.nodes for each in devices.values()):
        return Free(frozenset(), frozenset(), ids)
    aligned, unaligned = set(), set()
    for id in ids:
        nodes = devices[id].nodes
        if any(has_node(affinity.mask, node) for node in nodes):
            aligned.add(id)
        elif nodes:
            unaligned.add(id)
    return Free(frozenset(aligned), frozenset(unaligned), ids - aligned - unaligned)


def question(required: int, reusable: Collection[str], free: Free) -> PreferredAllocation | None:
    """What to ask the plugin; None when there is nothing to choose."""
    picked = frozenset(in_order(reusable)[:required])
    needed = required - len(picked)
    aligned = free.aligned - picked
    if needed == 0 or needed == len(aligned) or needed > len(free.all - picked):
        return None
    if needed < len(aligned):
        return PreferredAllocation(aligned | picked, picked)
    picked |= aligned
    return PreferredAllocation(free.all | picked, picked)


def choose(
    required: int, reusable: Collection[str], free: Free, preferred: Collection[str] = ()
) -> tuple[str, ...] | None:
    """`required` devices, None if there are not so many. What the plugin prefers counts where it is free."""
    wanted = frozenset(preferred)
    if required - len(set(reusable)) < len(free.aligned - set(reusable)):
        tiers: tuple[Collection[str], ...] = (reusable, wanted & free.aligned, free.aligned)
    else:
        tiers = (reusable, free.aligned, wanted & free.all, free.unaligned, free.nowhere)
    picked: dict[str, None] = {}
    for tier in tiers:
        for id in in_order(tier):
            if len(picked) == required:
                break
            picked[id] = None
    return tuple(picked) if len(picked) == required else None


def in_order(ids: Iterable[str]) -> list[str]:
    """Ids as people count them: dev-2 before dev-10."""
    return sorted(ids, key=_natural)


def _natural(id: str) -> tuple[list[tuple[int, str]], str]:
    return [_natural_part(part) for part in re.split(r"(\d+)", id)], id


def _natural_part(part: str) -> tuple[int, str]:
    """Of two numbers the longer one is the larger: an id may have thousands of digits, of which Python makes
    none.
    """
    if not (part.isascii() and part.isdigit()):
        return -1, part
    digits = part.lstrip("0")
    return len(digits), digits


MAX_SETS: Final = 1 << 12


def device_hints(
    devices: Mapping[str, Device],
    available: Collection[str],
    reusable: Collection[str],
    wanted: int,
    machine: Sequence[int],
) -> list[Hint]:
    """The sets of nodes that could serve `wanted` devices. `machine`: the NUMA nodes that there are; others,
    which a plugin made up, do not count.

    The kubelet goes through every set of nodes; here the smaller sets come first and their number is bounded,
    so that a machine with dozens of nodes, or a plugin that names such, costs no more than `MAX_SETS`.
    """
    near = {id: mask_of([node for node in each.nodes if node in machine]) for id, each in devices.items()}
    nodes = sorted({node for mask in near.values() for node in machine if has_node(mask, node)})
    nodes = nodes or sorted(machine)
    everything = Counter(near.values())
    free = Counter(near[id] for id in available if id in near)
    held = [near[id] for id in reusable if id in near and devices[id].nodes]
    least, found = len(nodes), []
    for mask in islice(_masks(nodes), MAX_SETS):
        size = mask.bit_count()
        if size < least and _inside(everything, mask) >= wanted:
            least = size
        if all(mask & each for each in held) and len(held) + _inside(free, mask) >= wanted:
            found.append((mask, size))
    return [Hint(mask, size == least) for mask, size in found]


def _masks(nodes: Sequence[int]) -> Iterator[int]:
    """Every set of nodes, small ones first."""
    for size in range(1, len(nodes) + 1):
        for chosen in combinations(nodes, size):
            yield mask_of(chosen)


def _inside(counts: Mapping[int, int], mask: int) -> int:
    return sum(count for near, count in counts.items() if near & mask)


def container_requests(pod: v1.Pod, container: v1.Container, *, claims: bool) -> dict[str, int]:
    """By resource, sorted. With `claims` (gate DRAExtendedResource) what a driver of dynamic resources gives
    for an extended resource is left out.
    """
    by_claim = claimed_resources(pod, container.name) if claims else ()
    return {
        name: whole(amount)
        for name, amount in sorted(amounts(container.resources.limits).items())
        if "/" in name and name not in by_claim
    }


def pod_requests(pod: v1.Pod) -> dict[str, int]:
    """By resource, sorted, for the pod as a whole."""
    limits = pod_limits(pod, overhead=False, pod_level=False)
    return {name: whole(amount) for name, amount in sorted(limits.items()) if "/" in name}
