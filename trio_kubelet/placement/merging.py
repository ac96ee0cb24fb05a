"""One NUMA affinity out of the hints of all providers (kubelet: `topologymanager`). Pure.

The kubelet tries each combination of hints, which is exponential in the number of resources. All that matters
of a combination is the intersection of its masks, whether they were all equal and whether each was preferred;
so here combinations are folded one resource at a time, and those that agree in this are one. With n NUMA
nodes there are at most a few times 2^n of them, however many resources there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from trio_kubelet.placement.hints import Hint, Hints, mask_of

BEST_EFFORT = "best-effort"
RESTRICTED = "restricted"
SINGLE_NUMA_NODE = "single-numa-node"


class NUMANodes(msgspec.Struct, frozen=True):
    """The NUMA nodes of the machine. `distances` from each one, in their order."""

    nodes: Sequence[int]
    distances: Mapping[int, Sequence[int]] = {}
    prefer_closest: bool = False  # topologyManagerPolicyOptions prefer-closest-numa-nodes

    @property
    def all(self) -> int:
        return mask_of(self.nodes)

    def better(self, current: int, candidate: int) -> int:
        """The narrower of two masks; of two equally wide ones the closer, if that is preferred, else the
        lower.
        """
        if current.bit_count() != candidate.bit_count():
            return min(current, candidate, key=int.bit_count)
        if self.prefer_closest:
            near, far = self._distance(current), self._distance(candidate)
            if near != far:
                return current if near < far else candidate
        return min(current, candidate)

    def _distance(self, mask: int) -> float:
        """The mean distance between the nodes of a mask."""
        nodes = [node for node in self.nodes if mask >> node & 1]
        return sum(self.distances[a][b] for a in nodes for b in nodes) / max(1, len(nodes) ** 2)


class _Combined(msgspec.Struct, frozen=True):
    """Combinations of hints that come to the same. `equal`: the mask that all have so far, None if none has
    one, -1 if they differ.
    """

    mask: int
    equal: int | None
    preferred: bool


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
    widths = [min((h.mask.bit_count() for h in each if h.mask is not None), default=0) for each in lists]
    wanted = max(widths, default=0)
    best: Hint | None = None
    for combined in _combinations(machine.all, lists):
        if combined.mask:
            best = _compare(machine, wanted, best, Hint(combined.mask, combined.preferred))
    return best or Hint(machine.all, False)


def _combinations(everything: int, lists: Sequence[Sequence[Hint]]) -> Iterable[_Combined]:
    found = {_Combined(everything, None, True): None}
    for each in lists:
        found = {_with(combined, hint): None for combined in found for hint in dict.fromkeys(each)}
    return (
        combined if combined.equal != -1 else msgspec.structs.replace(combined, preferred=False)
        for combined in found
    )


def _with(combined: _Combined, hint: Hint) -> _Combined:
    preferred = combined.preferred and hint.preferred
    if hint.mask is None:
        return _Combined(combined.mask, combined.equal, preferred)
    equal = hint.mask if combined.equal in (None, hint.mask) else -1
    return _Combined(combined.mask & hint.mask, equal, preferred)


def _compare(machine: NUMANodes, wanted: int, current: Hint | None, candidate: Hint) -> Hint:
    """The better of two: a preferred one; else the one whose width comes nearest to `wanted` (that of the
    resource that needs most nodes) without being above it.
    """
    if current is None or (candidate.preferred and not current.preferred):
        return candidate
    if current.preferred and not candidate.preferred:
        return current
    assert current.mask is not None
    assert candidate.mask is not None
    if not current.preferred:
        now, then = current.mask.bit_count(), candidate.mask.bit_count()
        if now <= wanted and then != now:
            return candidate if now < then <= wanted else current
    return current if machine.better(current.mask, candidate.mask) == current.mask else candidate
