"""What is begun is ended, though its task is cancelled."""

from __future__ import annotations

import math
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from trio_kubelet.common.finishing import Finishing


async def break_off(finishing: Finishing, scope: trio.CancelScope, after: float = 1.0) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(after)
        finishing.hurry()
        scope.cancel()


async def test_the_answer_comes_through(autojump_clock: MockClock) -> None:
    async def run() -> str:
        await trio.sleep(60)
        return "done"

    assert await Finishing().let_finish(run, 5) == "done"


async def test_an_error_comes_through_as_it_is(autojump_clock: MockClock) -> None:
    async def run() -> None:
        await trio.sleep(1)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await Finishing().let_finish(run, 5)


@pytest.mark.parametrize(
    ("takes", "ends_at", "is_whole"), [(0.5, 0.5, True), (3.0, 3.0, True), (math.inf, 6.0, False)]
)
async def test_a_cancelled_task_ends_with_what_it_does_or_after_its_patience(
    autojump_clock: MockClock, takes: float, ends_at: float, is_whole: bool
) -> None:
    whole = went_on = False

    async def run() -> None:
        nonlocal whole
        await trio.sleep(takes)
        whole = True

    finishing, began = Finishing(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(break_off, finishing, nursery.cancel_scope)
        try:
            await finishing.let_finish(run, 5)
            went_on = True
            await trio.sleep(60)
        finally:
            ended = trio.current_time() - began
    assert (whole, went_on) == (is_whole, is_whole)
    assert ended == pytest.approx(max(ends_at, 1))


async def test_an_error_after_the_task_was_cancelled_is_told_too(autojump_clock: MockClock) -> None:
    async def run() -> None:
        await trio.sleep(3)
        raise OSError("too late")

    finishing = Finishing()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(break_off, finishing, nursery.cancel_scope)
        with pytest.raises(OSError, match="too late"):
            await finishing.let_finish(run, 5)


async def test_a_task_that_was_cancelled_begins_nothing() -> None:
    began = False

    async def run() -> None:
        nonlocal began
        began = True

    with trio.CancelScope() as scope:
        scope.cancel()
        await Finishing().let_finish(run, 5)
    assert scope.cancelled_caught
    assert not began


async def test_to_hurry_is_not_to_take_longer(autojump_clock: MockClock) -> None:
    """Who is told twice has its patience from the first time; who does nothing has nothing to end."""
    finishing, began = Finishing(), trio.current_time()
    finishing.hurry()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(break_off, finishing, nursery.cancel_scope)
        nursery.start_soon(break_off, finishing, nursery.cancel_scope, 4.0)
        await finishing.let_finish(partial(trio.sleep, 60), 5)
    assert trio.current_time() - began == pytest.approx(6)
