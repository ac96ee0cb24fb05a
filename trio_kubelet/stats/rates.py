"""CPU use per second, from two readings of a counter that only grows."""

from __future__ import annotations

from typing import NamedTuple

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.machine.values import MAX


class Reading(NamedTuple):
    """A counter of CPU nanoseconds at a moment."""

    at_ns: int
    cpu: int


def nano_cores(before: Reading | None, now: Reading) -> int | None:
    """Nanoseconds of CPU per second between two readings.

    None without an earlier one, with a clock that did not advance, or with a counter that fell, as it does
    when a cgroup was made anew.
    """
    if before is None or now.at_ns <= before.at_ns or now.cpu < before.cpu:
        return None
    return min((now.cpu - before.cpu) * NANOSECONDS // (now.at_ns - before.at_ns), MAX)


class Rates:
    """The last reading of each cgroup; those not read in a round are forgotten with it."""

    def __init__(self) -> None:
        self._before: dict[str, Reading] = {}
        self._now: dict[str, Reading] = {}

    def read(self, cgroup: str, at_ns: int, cpu: int | None) -> int | None:
        """Notes a reading; the rate since the last round's."""
        if cpu is None:
            return None
        self._now[cgroup] = now = Reading(at_ns, cpu)
        return nano_cores(self._before.get(cgroup), now)

    def next_round(self) -> None:
        """Ends a round of readings."""
        self._before, self._now = self._now, {}
