"""Merging hints into one NUMA affinity: the topology manager's work for one container.

Baselines: every combination tried (`every`), and the kubelet's own way written in plain Python, which walks
through the combinations one after the other and keeps the best (`kubelet`). Both are exponential in the
number of resources, so they stop at sizes where the merge has long not begun to cost anything.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import reduce

import pytest

from trio_kubelet.placement.hints import Hint
from trio_kubelet.placement.merging import BEST_EFFORT, NUMANodes, merge

Lists = Sequence[Sequence[Hint]]
NODES = 8
MACHINE = NUMANodes(range(NODES))


def lists(resources: int, hints: int) -> Lists:
    """So many hints for each resource, none of which all prefer: the long way."""
    rng = random.Random(resources * 1000 + hints)
    masks = range(1, 1 << NODES)
    return [
        [Hint(mask, mask.bit_count() == 1 + number % 2) for mask in sorted(rng.sample(masks, hints))]
        for number in range(resources)
    ]


def folded(given: Lists) -> Hint:
    return merge(BEST_EFFORT, MACHINE, [{str(number): each} for number, each in enumerate(given)])[0]


def every(given: Lists) -> Hint:
    wanted = max(min(hint.mask.bit_count() for hint in each if hint.mask) for each in given)

    def rank(hint: Hint) -> tuple[int, int, int]:
        mask = hint.mask or 0
        width = mask.bit_count()
        if hint.preferred:
            return 0, width, mask
        return (1, wanted - width, mask) if width <= wanted else (2, width, mask)

    merged = (
        Hint(reduce(int.__and__, masks), len(set(masks)) == 1 and all(hint.preferred for hint in some))
        for some in itertools.product(*given)
        if (masks := [hint.mask or 0 for hint in some])
    )
    return min((hint for hint in merged if hint.mask), key=rank)


def kubelet(given: Lists) -> Hint:
    wanted = max(min(hint.mask.bit_count() for hint in each if hint.mask) for each in given)
    best: Hint | None = None

    def narrower(current: Hint, candidate: Hint) -> Hint:
        key = (candidate.mask or 0).bit_count(), candidate.mask or 0
        return candidate if key < ((current.mask or 0).bit_count(), current.mask or 0) else current

    def better(current: Hint, candidate: Hint) -> Hint:
        if current.preferred != candidate.preferred:
            return current if current.preferred else candidate
        now, then = (current.mask or 0).bit_count(), (candidate.mask or 0).bit_count()
        if current.preferred or now > wanted or now == then:
            return narrower(current, candidate)
        return candidate if now < then <= wanted else current

    def walk(number: int, some: tuple[Hint, ...]) -> None:
        nonlocal best
        if number < len(given):
            for hint in given[number]:
                walk(number + 1, (*some, hint))
            return
        mask, preferred = (1 << NODES) - 1, True
        for hint in some:
            mask &= hint.mask or 0
            preferred = preferred and hint.preferred and hint.mask == some[0].mask
        if mask:
            candidate = Hint(mask, preferred)
            best = candidate if best is None else better(best, candidate)

    walk(0, ())
    assert best is not None
    return best


WAYS: dict[str, Callable[[Lists], Hint]] = {"merge": folded, "every": every, "kubelet": kubelet}
SIZES = ((2, 16), (2, 255), (4, 16), (8, 3), (8, 255))
"""Resources, and hints of each: 8 x 255 is a machine of 8 NUMA nodes where every set of nodes will do."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("resources", "hints"), SIZES)
def test_merge(benchmark: Callable[..., Hint], way: str, resources: int, hints: int) -> None:
    if way != "merge" and hints**resources > 100_000:
        pytest.skip(f"{hints**resources:.1e} combinations")
    given = lists(resources, hints)
    found = benchmark(WAYS[way], given)
    assert found == WAYS["merge"](given)
