"""Token buckets: never more than burst and rate allow, whatever the clock does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.token_bucket import TokenBucket

RATES, BURSTS = st.sampled_from([1 / 300, 0.5, 5.0, 100.0]), st.integers(1, 25)


@given(RATES, BURSTS, st.lists(st.floats(0, 5, allow_subnormal=False), max_size=80))
def test_in_any_span_of_time_no_more_is_reserved_than_burst_and_rate_allow(
    rate: float, burst: int, gaps: list[float]
) -> None:
    bucket, now, granted = TokenBucket(rate, burst), 100.0, list[float]()
    for gap in gaps:
        now += gap
        granted.append(now + bucket.reserve(now))
    assert granted == sorted(granted)
    for i, begin in enumerate(granted):
        for j in range(i, len(granted)):
            assert j - i + 1 <= burst + (granted[j] - begin) * rate + 1e-4


@given(RATES, BURSTS, st.lists(st.floats(0, 5, allow_subnormal=False), max_size=80))
def test_in_any_span_of_time_no_more_is_taken_than_burst_and_rate_allow(
    rate: float, burst: int, gaps: list[float]
) -> None:
    bucket, now, taken = TokenBucket(rate, burst), 100.0, list[float]()
    for gap in gaps:
        now += gap
        taken += [now] if bucket.try_take(now) else []
    for i, begin in enumerate(taken):
        for j in range(i, len(taken)):
            assert j - i + 1 <= burst + (taken[j] - begin) * rate + 1e-4


@given(RATES, BURSTS)
def test_a_burst_does_not_wait_and_the_next_one_does(rate: float, burst: int) -> None:
    bucket = TokenBucket(rate, burst)
    assert [bucket.reserve(7.0) for _ in range(burst)] == [0.0] * burst
    assert bucket.reserve(7.0) == pytest.approx(1 / rate)
    assert bucket.reserve(7.0) == pytest.approx(2 / rate)
    assert bucket.reserve(7.0 + (burst + 5) / rate) == 0.0


@given(RATES, BURSTS)
def test_an_empty_bucket_refuses_until_a_token_is_there(rate: float, burst: int) -> None:
    bucket = TokenBucket(rate, burst)
    assert [bucket.try_take(7.0) for _ in range(burst + 2)] == [True] * burst + [False] * 2
    assert not bucket.try_take(7.0 + 0.9 / rate)
    assert [bucket.try_take(7.0 + 1 / rate) for _ in range(2)] == [True, False]
    full = 8.0 + (burst + 5) / rate
    assert sum(bucket.try_take(full) for _ in range(burst + 5)) == burst


def test_a_clock_that_is_set_back_neither_fills_nor_blocks() -> None:
    bucket = TokenBucket(1.0, 3)
    assert [bucket.try_take(1000.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.try_take(10.0)
    assert bucket.try_take(11.0)
