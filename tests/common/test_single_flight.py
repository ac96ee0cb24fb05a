"""Many who ask the same at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_kubelet.common.caching import SingleFlight


async def test_the_same_question_is_asked_once_at_a_time() -> None:
    asked = SingleFlight[str, int]()
    calls, answers, go = [], [], trio.Event()

    async def look_up() -> int:
        calls.append(1)
        await go.wait()
        return len(calls)

    async def ask() -> None:
        answers.append(await asked.ask("a", look_up))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert answers == [1] * 5
    assert await asked.ask("a", look_up) == 2


async def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    asked = SingleFlight[str, int]()
    errors, go = [], trio.Event()

    async def fail() -> int:
        await go.wait()
        raise ValueError("told")

    async def ask() -> None:
        with pytest.raises(ValueError, match="told") as caught:
            await asked.ask("a", fail)
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert len(errors) == 2

    async def answer() -> int:
        return 7

    assert await asked.ask("a", answer) == 7


async def test_when_the_one_who_asks_leaves_the_next_one_asks() -> None:
    asked = SingleFlight[str, int]()
    answers, leaving, go = [], trio.CancelScope(), trio.Event()

    async def look_up() -> int:
        await go.wait()
        return 1

    async def first() -> None:
        with leaving:
            await asked.ask("a", look_up)

    async def second() -> None:
        answers.append(await asked.ask("a", look_up))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        leaving.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        go.set()
    assert answers == [1]
