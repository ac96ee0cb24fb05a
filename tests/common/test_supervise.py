"""The supervisor: what fails is started again, ever more slowly; what ends by itself has ended."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from trio_kubelet.common.supervise import GOOD_RUN, PAUSES, keep_running

Clock = trio.testing.MockClock


async def test_a_failing_task_is_started_again_until_it_ends(autojump_clock: Clock) -> None:
    starts: list[float] = []

    async def task() -> None:
        starts.append(trio.current_time())
        if len(starts) < 6:
            raise OSError("no")

    await keep_running("task", task)
    pauses = [b - a for a, b in itertools.pairwise(starts)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[-1] >= 8


async def test_a_long_good_run_starts_the_count_anew(autojump_clock: Clock) -> None:
    starts: list[float] = []

    async def task() -> None:
        starts.append(trio.current_time())
        if len(starts) == 10:
            return
        await trio.sleep(GOOD_RUN)
        raise OSError("no")

    await keep_running("task", task)
    assert starts[-1] < 9 * (GOOD_RUN + 1)


async def test_cancellation_goes_through(autojump_clock: Clock) -> None:
    with trio.move_on_after(1) as scope:
        await keep_running("task", trio.sleep_forever)
    assert scope.cancelled_caught


@pytest.mark.parametrize("failures", [1, 5, 100, 10_000])
def test_pauses_are_bounded(failures: int) -> None:
    assert 0 < PAUSES.after(failures, 0.999) <= PAUSES.most * 1.2
