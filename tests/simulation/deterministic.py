"""Runs a script on Trio's mock clock so that the same seed is the same run, and cannot hang.

Trio chooses the order of tasks that are ready at once, and the agent draws the jitter of its pauses; both
come from the seed here. What is left is the order of sets of strings, which follows PYTHONHASHSEED: the
agent must not depend on it, and a test compares runs of processes that differ in it.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable

import trio
import trio.testing

STEPS_AT_ONE_MOMENT = 100_000
"""So many steps of tasks while the clock stands still are a loop that waits for nothing."""


class StandsStill(AssertionError):
    """Tasks run and run, and virtual time does not advance."""


class _Steps(trio.abc.Instrument):
    """Counts the steps of tasks at each moment, and sums up all of them in a checksum."""

    def __init__(self, stop: trio.CancelScope, traced: bool) -> None:
        self._stop = stop
        self._traced = traced
        self._moment = -1.0
        self._number = 0
        self._names: Counter[str] = Counter()
        self.checksum = 0
        self.standstill = ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now = trio.current_time()
        if now != self._moment:
            self._moment, self._number = now, 0
            self._names.clear()
        self._number += 1
        if self._number > STEPS_AT_ONE_MOMENT // 2:
            self._names[task.name] += 1
        if self._number == STEPS_AT_ONE_MOMENT:
            self.standstill = f"the clock stands at {now}: {self._names.most_common(5)}"
            self._stop.cancel()
        if self._traced:
            self.checksum = zlib.crc32(f"{now!r} {task.name}\n".encode(), self.checksum)


def simulate(seed: int, script: Callable[[], Awaitable[None]], *, traced: bool = False) -> int:
    """Runs the script to its end; the checksum of what ran when (0 unless `traced`).

    Raises StandsStill instead of running for ever at one moment.
    """
    scope = trio.CancelScope()
    steps = _Steps(scope, traced)

    async def run() -> None:
        with scope:
            await script()

    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio._core._run._r.seed(seed)
    random.seed(seed)
    trio.run(
        run,
        clock=trio.testing.MockClock(autojump_threshold=0),
        instruments=[steps],
        strict_exception_groups=True,
    )
    if steps.standstill:
        raise StandsStill(steps.standstill)
    return steps.checksum
