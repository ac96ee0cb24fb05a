"""One value for many readers, and rates from two readings."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.common.caching import PATIENCE, LastGood, Shared
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


def has_failed(told: LastGood[int]) -> bool:
    return told.failed


async def test_an_answer_is_to_a_question_asked_from_now_on(autojump_clock: trio.testing.MockClock) -> None:
    told = LastGood("numbers", Maker(), 10)
    found: list[int | None] = []

    async def read(after: float) -> None:
        await trio.sleep(after)
        found.append(await told.get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.run)
        async with trio.open_nursery() as readers:
            for after in (0, 0, 0.5, 0.6):
                readers.start_soon(read, after)
        assert found == [1, 1, 2, 2]
        assert trio.current_time() == 2
        nursery.cancel_scope.cancel()


async def test_who_hangs_is_asked_one_question_at_a_time_whoever_leaves(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked = hangs = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        if hangs:
            await trio.sleep_forever()
        return asked

    told = LastGood("numbers", ask, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.run)
        assert has_failed(told)
        assert await told.get() == 1
        assert not has_failed(told)
        hangs = 1
        with trio.move_on_after(0.5):
            await told.get()
        assert await told.get() == 1
        assert trio.current_time() == 0.5 + PATIENCE
        for _ in range(20):
            assert await told.get() == 1
        assert trio.current_time() == 0.5 + PATIENCE, "nobody waits for what hangs already"
        assert (asked, has_failed(told)) == (2, False)
        await trio.sleep(10)
        assert has_failed(told)
        assert asked == 3, "who came while it hung wanted one more, but no more than that"
        hangs = 0
        await trio.sleep(10)
        assert await told.get() == asked == 4
        assert not has_failed(told)
        nursery.cancel_scope.cancel()


async def test_an_error_leaves_the_last_answer(autojump_clock: trio.testing.MockClock) -> None:
    make = Maker()
    told = LastGood("numbers", make, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.run)
        assert await told.get() == 1
        make.fails = True
        assert await told.get() == 1
        assert has_failed(told)
        make.fails = False
        assert await told.get() == 3
        assert not has_failed(told)
        nursery.cancel_scope.cancel()


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
