"""One NUMA affinity out of the hints of all providers (kubelet: `topologymanager`). Pure.

The kubelet tries each combination of hints, which is exponential in the number of resources. A combination is
preferred only if all its masks are the same and preferred, so those are found by intersecting sets of masks.
If there is none, all that matters of a combination is the intersection of its masks, and there are at most
2^n of these with n NUMA nodes, however many resources there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import mul

import msgspec

from trio_kubelet.placement.hints import Hint, Hints, mask_of

BEST_EFFORT = "best-effort"
RESTRICTED = "restricted"
SINGLE_NUMA_NODE = "single-numa-node"


class NUMANodes(msgspec.Struct, frozen=True):
    """The NUMA nodes of the machine. `distances` from each one to each, in their order."""

    nodes: Sequence[int]
    distances: Mapping[int, Sequence[int]] = {}
    prefer_closest: bool = False  # topologyManagerPolicyOptions prefer-closest-numa-nodes

    @property
    def all(self) -> int:
        return mask_of(self.nodes)

    def rank(self, mask: int) -> tuple[int, float, int]:
        """What comes first is better: narrow masks, of equally wide ones the closer, if that is preferred,
        then the lower.
        """
        return mask.bit_count(), self._distance(mask) if self.prefer_closest else 0.0, mask

    def _distance(self, mask: int) -> float:
        """The mean distance between the nodes of a mask."""
        nodes = [(place, node) for place, node in enumerate(self.nodes) if mask >> node & 1]
        total = sum(self.distances[node][place] for _, node in nodes for place, _ in nodes)
        return total / max(1, len(nodes) ** 2)


def merge(policy: str, machine: NUMANodes, hints: Iterable[Hints]) -> tuple[Hint, bool]:
    """The affinity under a topology policy, and whether it lets the pod in."""
    lists = _lists(hints)
    if policy == SINGLE_NUMA_NODE:
        lists = [[h for h in each if h.preferred and _width(h) in (None, 1)] for each in lists]
    best = _best(machine, lists)
    if policy == SINGLE_NUMA_NODE and best.mask == machine.all:
        best = Hint(None, best.preferred)
    return best, policy == BEST_EFFORT or best.preferred


def _width(hint: Hint) -> int | None:
    return None if hint.mask is None else hint.mask.bit_count()


def _lists(hints: Iterable[Hints]) -> list[list[Hint]]:
    """A list of hints for each resource: no preference is one preferred hint that names no node, no
    possibility one that is not preferred.
    """
    found: list[list[Hint]] = []
    for of_provider in hints:
        if not of_provider:
            found.append([Hint(None, True)])
        for each in of_provider.values():
            found.append([Hint(None, each is None)] if not each else list(each))
    return found


def _best(machine: NUMANodes, lists: Sequence[Sequence[Hint]]) -> Hint:
    if not all(lists):
        return Hint(machine.all, False)
    if agreed := _agreed(machine.all, lists):
        return Hint(min(agreed, key=machine.rank), True)
    widths = [min((h.mask.bit_count() for h in each if h.mask is not None), default=0) for each in lists]
    wanted = max(widths, default=0)

    def shape(mask: int) -> tuple[bool, int]:
        """As wide as the resource wants that needs most nodes; else narrower, and wider only at last."""
        width = mask.bit_count()
        return (True, width) if width > wanted else (False, -width)

    possible = _possible(machine, lists)
    if not possible:
        return Hint(machine.all, False)
    best = min(map(shape, possible))
    return Hint(min((mask for mask in possible if shape(mask) == best), key=machine.rank), False)


def _agreed(everything: int, lists: Sequence[Sequence[Hint]]) -> set[int]:
    """The masks that are preferred for every resource; a hint without one agrees with any."""
    preferred = [{hint.mask for hint in each if hint.preferred} for each in lists]
    named = [masks for masks in preferred if None not in masks]
    found = set.intersection(*named) if named else set().union(*preferred)
    return {everything if mask is None else mask & everything for mask in found} - {0}


def _possible(machine: NUMANodes, lists: Sequence[Sequence[Hint]]) -> list[int]:
    """What combinations of one hint for each resource have in common."""
    everything = machine.all
    masks = [{everything if h.mask is None else h.mask & everything for h in each} - {0} for each in lists]
    if everything == (1 << len(machine.nodes)) - 1:
        return _intersections(len(machine.nodes), masks)
    # Nodes are numbered with gaps.
    places = [{_squeezed(machine.nodes, mask) for mask in each} for each in masks]
    found = _intersections(len(machine.nodes), places)
    return [mask_of([node for at, node in enumerate(machine.nodes) if mask >> at & 1]) for mask in found]


def _squeezed(nodes: Sequence[int], mask: int) -> int:
    """The mask of the places of the nodes."""
    return mask_of([at for at, node in enumerate(nodes) if mask >> node & 1])


def _intersections(elements: int, collections: Sequence[Collection[int]]) -> list[int]:
    """Which sets come out, but the empty one, when one of each of several collections is taken and all are
    intersected. Sets are masks of the elements 0 … `elements` - 1; none is empty.

    There are as many ways to take one of each as the product of their sizes, but a set of n elements has only
    2^n subsets. In how many ways the outcome contains a subset S is a product: of the number of sets in each
    collection that contain S. From these the number of ways in which it is exactly S follows by inclusion and
    exclusion. Both steps add up whole tables of 2^n numbers at once, each a field of one large integer.
    """
    size = 1 << elements
    ways = [1] * size
    for sets in collections:
        ways = list(map(mul, ways, _supersets(elements, sets)))
    width = elements * len(collections) // 8 + 1  # bytes that hold every product
    table = int.from_bytes(b"".join([number.to_bytes(width, "little") for number in ways]), "little")
    for element, fields in enumerate(_without(elements, width)):
        table -= (table >> (width * 8 << element)) & fields  # never below zero: it counts something
    exact = table.to_bytes(width * size, "little")
    nothing = bytes(width)
    return [mask for mask in range(1, size) if exact[mask * width : (mask + 1) * width] != nothing]


def _supersets(elements: int, sets: Collection[int]) -> Sequence[int]:
    """For each subset, how many of the sets contain it."""
    size = 1 << elements
    width = (elements + 7) // 8  # bytes: without the empty set there are fewer than 2^elements
    present = bytearray(size * width)
    for mask in sets:
        present[mask * width] = 1
    table = int.from_bytes(present, "little")
    for element, fields in enumerate(_without(elements, width)):
        table += (table >> (width * 8 << element)) & fields
    counts = table.to_bytes(size * width, "little")
    if width == 1:
        return counts
    return [int.from_bytes(counts[at : at + width], "little") for at in range(0, len(counts), width)]


@lru_cache(maxsize=64)
def _without(elements: int, width: int) -> tuple[int, ...]:
    """For each element all bits of the fields, of `width` bytes each, whose subset does not have it."""
    full = b"\xff" * width
    return tuple(
        int.from_bytes(
            b"".join(bytes(width) if mask >> element & 1 else full for mask in range(1 << elements)), "little"
        )
        for element in range(elements)
    )
