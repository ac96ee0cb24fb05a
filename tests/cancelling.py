"""Operations that are given up at every point where they wait: what they opened has to be closed behind them.

An operation is run again and again in one event loop, cancelled once after its first step, once after its
second, and so on until it gets through. After each time the process must have open what it had open before
(a socket that nobody closed still goes away with its last reference, with a ResourceWarning: both count).
"""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import trio
from trio.lowlevel import Task

SETTLING_SECONDS = 60.0
"""For the other side, which notices in its own time that somebody left."""


class CancelAfter(trio.abc.Instrument):
    """Cancels a scope once the tasks within it have made a number of steps.

    Either while the task then waits, or (`awake`) when what it waited for has just come: it only learns of
    its end where it waits next.
    """

    def __init__(self, scope: trio.CancelScope, steps: int, awake: bool) -> None:
        self._scope = scope
        self._left = steps
        self._awake = awake
        self._root = trio.lowlevel.current_task()

    def before_task_step(self, task: Task) -> None:
        if self._awake:
            self._count(task)

    def after_task_step(self, task: Task) -> None:
        if not self._awake:
            self._count(task)

    def _count(self, task: Task) -> None:
        if not self._left or not self._within(task):
            return
        self._left -= 1
        if not self._left:
            self._scope.cancel()

    def _within(self, task: Task | None) -> bool:
        while task is not None and task is not self._root:
            nursery = task.parent_nursery
            task = nursery.parent_task if nursery is not None else None
        return task is not None


def descriptors() -> Counter[str]:
    """What this process has open; sockets by their numbers in the kernel."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found


async def cancelled_at_each_step(
    operation: Callable[[], Awaitable[object]], awake: bool, kept: int = 0, most: int = 2000
) -> int:
    """Runs `operation` until it is through without being cancelled; how many times it was cancelled.

    `kept`: how many more descriptors there may be than at the beginning, however often it runs.
    """
    gc.collect()  # what others left is not of this operation
    before = descriptors()
    for steps in range(1, most):
        what = f"cancelled {'before' if awake else 'after'} step {steps}"
        with no_socket_collected(what), trio.CancelScope() as scope:
            instrument = CancelAfter(scope, steps, awake)
            trio.lowlevel.add_instrument(instrument)
            try:
                await operation()
            finally:
                trio.lowlevel.remove_instrument(instrument)
        await settled(before, kept, what)
        if not scope.cancel_called:
            return steps - 1
    raise AssertionError(f"not through after {most} steps")


async def settled(before: Counter[str], kept: int, what: str) -> None:
    """Waits until at most `kept` more are open than `before`; fails if that does not come."""
    with trio.move_on_after(SETTLING_SECONDS):
        while (descriptors() - before).total() > kept:  # noqa: ASYNC110
            await trio.sleep(0.002)
    left = descriptors() - before
    assert left.total() <= kept, f"{what}: left open: {sorted(left)}"


@contextmanager
def no_socket_collected(what: str) -> Iterator[None]:
    """Fails if a socket is closed by losing its last reference."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    lost = [str(w.message) for w in seen if issubclass(w.category, ResourceWarning)]
    assert not lost, f"{what}: {lost}"
