"""One affinity out of many hints: as recorded from the kubelet, and as trying every combination finds it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.placement.hints import Hint
from trio_kubelet.placement.merging import BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE, NUMANodes, merge

GOLDEN = Path(__file__).parents[1] / "golden" / "hint-merging.json"


def test_recorded_merges() -> None:
    cases = json.loads(GOLDEN.read_text())["cases"]
    assert len(cases) == 450
    for policy, closest, nodes, distances, providers, best, admitted in cases:
        hints = [
            {name: None if each is None else [Hint(*hint) for hint in each] for name, each in given.items()}
            for given in providers
        ]
        machine = NUMANodes(nodes, dict(zip(nodes, distances, strict=True)), closest)
        assert merge(policy, machine, hints) == (Hint(*best), admitted), (policy, closest, providers)


def brute_force(nodes: int, lists: Sequence[Sequence[Hint]]) -> Hint:
    """What the rules say, trying each combination (best-effort policy, no preference for close nodes)."""
    everything = (1 << nodes) - 1
    wanted = max((min(h.mask.bit_count() for h in each if h.mask is not None) for each in lists), default=0)
    found = []
    for combination in itertools.product(*lists):
        masks = [h.mask for h in combination if h.mask is not None]
        mask = reduce(int.__and__, masks, everything)
        preferred = len(set(masks)) <= 1 and all(h.preferred for h in combination)
        if mask:
            found.append(Hint(mask, preferred))

    def rank(hint: Hint) -> tuple[int, int, int]:
        assert hint.mask is not None
        width = hint.mask.bit_count()
        if hint.preferred:
            return (0, width, hint.mask)
        return (1, wanted - width, hint.mask) if width <= wanted else (2, width, hint.mask)

    return min(found, key=rank) if found else Hint(everything, False)


def hints(nodes: int) -> st.SearchStrategy[list[Hint]]:
    one = st.builds(Hint, st.integers(1, (1 << nodes) - 1), st.booleans())
    return st.lists(one, min_size=1, max_size=4)


@given(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.lists(hints(n), min_size=1, max_size=4))))
def test_folding_finds_what_trying_all_finds(case: tuple[int, list[list[Hint]]]) -> None:
    nodes, lists = case
    given = [{str(number): each} for number, each in enumerate(lists)]
    best, admitted = merge(BEST_EFFORT, NUMANodes(range(nodes)), given)
    assert best == brute_force(nodes, lists)
    assert admitted
    again, admitted = merge(RESTRICTED, NUMANodes(range(nodes)), given)
    assert (again, admitted) == (best, best.preferred)


def test_many_nodes_and_resources() -> None:
    """2⁸ hints of each of 8 resources: more combinations than can be tried."""
    machine = NUMANodes(range(8))
    hints = [Hint(mask, mask.bit_count() == 1) for mask in range(1, 256)]
    given = [{str(number): hints} for number in range(8)]
    assert merge(SINGLE_NUMA_NODE, machine, given) == (Hint(1, True), True)
    assert merge(BEST_EFFORT, machine, given) == (Hint(1, True), True)
