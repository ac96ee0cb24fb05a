"""One NUMA affinity out of the hints of all providers (kubelet: `topologymanager`). Pure.

The kubelet tries each combination of hints, which is exponential in the number of resources. A combination is
preferred only if all its masks are the same and preferred, so those are found by intersecting sets of masks.
If there is none, all that matters of a combination is the intersection of its masks, and there are at most
2^n of these with n NUMA nodes, however many resources there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from trio_kubelet.placement.hints import Hint, Hints, mask_of
from trio_kubelet.placement.intersections import intersections

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
        return intersections(len(machine.nodes), masks)
    # Nodes are numbered with gaps.
    places = [{_squeezed(machine.nodes, mask) for mask in each} for each in masks]
    found = intersections(len(machine.nodes), places)
    return [mask_of([node for at, node in enumerate(machine.nodes) if mask >> at & 1]) for mask in found]


def _squeezed(nodes: Sequence[int], mask: int) -> int:
    """The mask of the places of the nodes."""
    return mask_of([at for at, node in enumerate(nodes) if mask >> node & 1])
