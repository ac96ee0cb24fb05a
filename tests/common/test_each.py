"""The same for many, several at a time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_kubelet.common.each import for_each


async def test_several_at_a_time_in_their_order(autojump_clock: trio.testing.MockClock) -> None:
    begun: list[int] = []
    under_way = most = 0

    async def work(number: int) -> None:
        nonlocal under_way, most
        begun.append(number)
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1

    await for_each(range(10), work, 4)
    assert begun == sorted(begun)
    assert (most, trio.current_time()) == (4, 3)
    await for_each([], work, 4)


async def test_one_that_hangs_takes_one_place(autojump_clock: trio.testing.MockClock) -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await trio.sleep(1000 if number == 0 else 1)
        done.append(number)

    with trio.move_on_after(20):
        await for_each(range(10), work, 2)
    assert done == list(range(1, 10))


async def test_those_that_hang_step_aside_where_they_may(autojump_clock: trio.testing.MockClock) -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await trio.sleep(1000 if number < 5 else 1)
        done.append(number)

    with trio.move_on_after(30):
        await for_each(range(10), work, 2, aside=5)
    assert sorted(done) == list(range(5, 10))
    done.clear()
    with trio.move_on_after(30):
        await for_each(range(10), work, 2, aside=2)
    assert not done, "no more than so many"


async def test_what_is_raised_ends_the_others(autojump_clock: trio.testing.MockClock) -> None:
    async def work(number: int) -> None:
        await trio.sleep(number)
        raise ValueError(number)

    with pytest.raises(ExceptionGroup) as found:
        await for_each([1, 2, 3], work, 2)
    assert [error.args for error in found.value.exceptions] == [(1,)]
