"""The wall clock as a value that can be replaced: the simulation drives it from Trio's mock clock.

Deadlines and periods always use Trio's own clock; this one only answers "what time is it" for
timestamps that leave the agent or are compared with the runtime's.
"""

from __future__ import annotations

import math
import time
from typing import Final, Protocol

import trio

NANOSECONDS = 1_000_000_000
BEGAN_NS: Final = time.time_ns()
"""When this program, and so all that it counts, began: after SIGHUP later than its process."""


class Clock(Protocol):
    """Tells wall-clock time."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ns(self) -> int:
        return time.time_ns()


async def sleep_with_others(seconds: float) -> None:
    """Sleeps about so long, a second or more, and up to half a second longer or less: to a full second of
    Trio's clock. What is done now and then is done at the same moments, for to be woken is most of what it
    costs.
    """
    await trio.sleep_until(math.floor(trio.current_time() + seconds + 0.5))


class TrioClock:
    """A wall clock that advances with `trio.current_time()`, for simulated time.

    `epoch_ns` is the wall time at Trio time 0.
    """

    def __init__(self, epoch_ns: int) -> None:
        self._epoch_ns = epoch_ns

    def now_ns(self) -> int:
        return self._epoch_ns + round(trio.current_time() * NANOSECONDS)
