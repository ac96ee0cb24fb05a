"""The one rule of pauses after failures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.backoff import Pauses

CHANCE = st.floats(0, 1, exclude_max=True)


def test_pauses_double_to_their_limit() -> None:
    assert [Pauses(0.5, 30.0).after(failures) for failures in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [Pauses(0.01, 60.0, factor=6.0).after(n) for n in (1, 2, 3)] == [0.01, 0.06, 0.36]


def test_chance_lengthens_a_pause() -> None:
    assert Pauses(1.0, 10.0, jitter=0.2).after(2, 0.5) == 2.2


@given(st.integers(0, 10**9), CHANCE, st.floats(0.01, 10), st.floats(0, 1), st.floats(1, 10))
def test_pauses_have_bounds(failures: int, chance: float, first: float, jitter: float, factor: float) -> None:
    pauses = Pauses(first, 60.0, factor, jitter)
    pause = pauses.after(failures, chance)
    assert 0 <= pause <= 60.0 * (1 + jitter)
    assert (pause == 0) == (failures == 0)
    assert pauses.after(failures + 1) >= pauses.after(failures)
