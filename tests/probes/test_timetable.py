"""Probes are spread over their period and never bunch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.observed.probes import ProbeKind
from trio_kubelet.probes.timetable import (
    FEW,
    GRID,
    LONGEST_GAP,
    TOGETHER,
    Timetable,
    adopted_due,
    first_due,
    gap,
    next_due,
    phase,
)
from trio_kubelet.probes.types import ProbeKey

TIMES = st.floats(min_value=0, max_value=1e9)
PERIODS = st.floats(min_value=1, max_value=3600)


@given(st.text(), PERIODS)
def test_the_phase_lies_in_the_period_and_is_always_the_same(container_id: str, period: float) -> None:
    key = ProbeKey("uid", "c", ProbeKind.LIVENESS)
    offset = phase(key, container_id, period)
    assert 0 <= offset < period
    assert offset == phase(ProbeKey("other", "c", ProbeKind.LIVENESS), container_id, period)


@given(PERIODS, TIMES, st.floats(min_value=0, max_value=0.999))
def test_the_first_run_is_within_a_period(period: float, now: float, part: float) -> None:
    due = first_due(part * period, period, now)
    assert now - 1e-6 <= due <= now + period + 1e-6


@given(
    st.integers(min_value=1, max_value=60),
    st.floats(min_value=0, max_value=1e6),
    st.lists(st.floats(min_value=0, max_value=0.999), max_size=300),
)
def test_adopted_probes_share_the_moments_of_their_period(
    period: int, now: float, parts: list[float]
) -> None:
    taken = Counter[float]()
    for number, part in enumerate(parts, start=1):
        due = adopted_due(part * period, period, now, taken, number / period)
        assert now - 1e-6 <= due < now + period + 1 / GRID
        taken[due] += 1
    share = math.ceil(len(parts) / period / GRID)
    assert max(taken.values(), default=0) <= max(FEW, share) or share > TOGETHER


@given(PERIODS, TIMES, st.floats(min_value=0, max_value=1e4))
def test_late_runs_do_not_pile_up(period: float, due: float, late: float) -> None:
    again = next_due(due, period, due + late, {})
    assert max(due + period, due + late) <= again
    assert again <= max(due + period + 1 / GRID, due + late)


@given(PERIODS, st.integers(min_value=0, max_value=10**7))
def test_probes_that_come_again_share_moments_and_keep_their_period(period: float, moments: int) -> None:
    due = moments / GRID
    assert next_due(due, math.ceil(period), due, {}) == due + math.ceil(period)
    assert next_due(due + 0.01, math.ceil(period), due + 0.01, {}) == due + 1 / GRID + math.ceil(period)


@given(st.lists(st.integers(min_value=0, max_value=2 * TOGETHER), min_size=GRID, max_size=GRID))
def test_who_would_be_one_too_many_goes_to_the_next_quarter_with_room(crowds: list[int]) -> None:
    taken = {10 + quarter / GRID: crowd for quarter, crowd in enumerate(crowds)}
    room = [moment for moment, crowd in taken.items() if crowd < TOGETHER]
    assert next_due(0, 10, 0, taken) == (room[0] if room else 10)


def test_many_probes_are_held_apart_few_are_not_delayed() -> None:
    assert gap(0) == 0
    assert gap(0.1) == LONGEST_GAP
    assert gap(50) == 0.01  # 500 probes of 10 s: at most 10 in 100 ms, twice the mean


@pytest.mark.parametrize(
    "free", [lambda table: table.pop(11.0), lambda table: table.take_out(0), lambda table: table.put(0, 20.0)]
)
def test_a_moment_that_is_full_has_room_again_once_one_of_it_was_taken_put_off_or_run(
    free: Callable[[Timetable[int]], object],
) -> None:
    table = Timetable[int]()
    for probe in range(TOGETHER):
        table.put(probe, 11.0)
    assert table.next_due(1.0, 10.0, now=1.0) == 11.0 + 1 / GRID
    free(table)
    assert table.next_due(1.0, 10.0, now=1.0) == 11.0
