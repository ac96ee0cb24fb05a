"""One value for many readers, and rates from two readings."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.caching import Shared
from trio_kubelet.machine.values import MAX
from trio_kubelet.stats.collector import CPUReading, Rates, nano_cores

counters = st.builds(CPUReading, st.integers(-(2**63), 2**63 - 1), st.integers(0, MAX))


class Maker:
    """Takes a second for each value, a number that grows."""

    def __init__(self) -> None:
        self.made = 0
        self.fails = False

    async def __call__(self) -> int:
        self.made += 1
        number = self.made
        await trio.sleep(1)
        if self.fails:
            raise ValueError("no value")
        return number


async def test_readers_at_once_share_one_value(autojump_clock: trio.testing.MockClock) -> None:
    make = Maker()
    shared = Shared(make, 5)
    found: list[int] = []

    async def read() -> None:
        found.append(await shared.get())

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(read)
    await trio.sleep(4.9)
    await read()
    assert found == [1] * 11
    await trio.sleep(0.2)
    await read()
    assert found[-1] == make.made == 2


async def test_a_reader_that_goes_away_does_not_take_the_value_along(
    autojump_clock: trio.testing.MockClock,
) -> None:
    make = Maker()
    shared = Shared(make, 5)
    found: list[int] = []

    async def leave() -> None:
        with trio.move_on_after(0.5):
            await shared.get()

    async def read() -> None:
        await trio.sleep(0.1)
        found.append(await shared.get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        nursery.start_soon(read)
    assert found == [2]  # the first was never finished
    assert await shared.get() == 2


async def test_an_error_is_one_readers_alone(autojump_clock: trio.testing.MockClock) -> None:
    make = Maker()
    make.fails = True
    shared = Shared(make, 5)
    with pytest.raises(ValueError, match="no value"):
        await shared.get()
    make.fails = False
    assert await shared.get() == 2


@given(counters, counters)
def test_a_rate_is_never_negative_nor_too_large(before: CPUReading, now: CPUReading) -> None:
    rate = nano_cores(before, now)
    assert rate is None or 0 <= rate <= MAX
    assert (rate is None) == (now.at_ns <= before.at_ns or now.cpu < before.cpu)


@given(st.integers(0, 64 * 10**9), st.integers(1, 3600))
def test_a_steady_use_is_its_own_rate(per_second: int, seconds: int) -> None:
    before = CPUReading(10**18, 7)
    now = CPUReading(10**18 + seconds * 10**9, 7 + per_second * seconds)
    assert nano_cores(before, now) == per_second


def test_what_was_not_read_in_a_round_is_forgotten() -> None:
    rates = Rates()
    assert rates.read("/a", 0, 0) is None
    rates.next_round()
    assert rates.read("/a", 10**9, 500) == 500
    assert rates.read("/b", 10**9, None) is None
    rates.next_round()
    rates.next_round()
    assert rates.read("/a", 3 * 10**9, 600) is None
