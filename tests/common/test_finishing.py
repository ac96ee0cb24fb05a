"""What is begun is ended, though its task is cancelled."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

from trio_kubelet.common.finishing import let_finish


async def test_the_answer_comes_through(autojump_clock: MockClock) -> None:
    async def run() -> str:
        await trio.sleep(60)
        return "done"

    assert await let_finish(run, 5) == "done"


async def test_an_error_comes_through_as_it_is(autojump_clock: MockClock) -> None:
    async def run() -> None:
        await trio.sleep(1)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await let_finish(run, 5)


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

    with trio.CancelScope(deadline=trio.current_time() + 1) as scope:
        began = trio.current_time()
        try:
            await let_finish(run, 5)
            went_on = True
            await trio.sleep_forever()
        finally:
            ended = trio.current_time() - began
    assert scope.cancelled_caught
    assert (whole, went_on) == (is_whole, takes < 1)
    assert ended == pytest.approx(max(ends_at, 1))


async def test_of_an_error_after_the_task_was_cancelled_only_that_is_told(autojump_clock: MockClock) -> None:
    async def run() -> None:
        await trio.sleep(3)
        raise OSError("too late")

    with trio.move_on_after(1) as scope:
        await let_finish(run, 5)
    assert scope.cancelled_caught
