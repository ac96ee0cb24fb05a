"""From which NUMA nodes devices could be given (kubelet: `devicemanager/topology_hints.go`). Pure.

The kubelet goes through every set of nodes; here the smaller sets come first and their number is bounded, so
that a machine with dozens of nodes, or a plugin that names such, costs no more than `MAX_SETS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Final

from trio_kubelet.devices.values import Device
from trio_kubelet.placement.hints import Hint, has_node, mask_of

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
