"""When probes are due: moments that follow from rules, and a timetable that shares them.

The kubelet starts each probe at a random point after a restart; five hundred of them still bunch
(kubernetes/kubernetes 52154). Here the point follows from the container's id, nearly the same after every
restart, moments are shared evenly, and a pace keeps any crowd of probes that fall due together apart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from trio_kubelet.common.agenda import Agenda
from trio_kubelet.probes.types import ProbeKey

K = TypeVar("K", bound=Hashable)

PACE_FACTOR = 2.0
"""How much faster than the mean rate probes may be started when many are due at once."""
TOGETHER = 14
"""Probes that may be started at once before the pace counts."""
GRID = 4  # moments in each second at which probes come again
FEW = 3  # probes at one moment are no burst, however few there are
LONGEST_GAP = 0.02  # seconds; below 25 probes a second nothing is held apart


def phase(key: ProbeKey, container_id: str, period: float) -> float:
    """Where in its period a probe runs, in [0, period): a hash of what it is about."""
    text = f"{container_id}/{key.container}/{key.kind}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 * period


def first_due(offset: float, period: float, now: float) -> float:
    """The next moment ≥ `now` that lies at `offset` in a grid of `period`."""
    return offset + math.ceil((now - offset) / period) * period


def adopted_due(offset: float, period: float, now: float, taken: Mapping[float, int], rate: float) -> float:
    """When a container that an earlier agent had started is probed first: about `offset` in a grid of
    `period`, within that period.

    Each moment gets its share of all, so that no 100 ms see three times the mean `rate` of probes a second;
    left to chance, some of a few hundred would.
    """
    moment = math.ceil(first_due(offset, period, now) * GRID) / GRID
    share = min(max(FEW, math.ceil(rate / GRID)), TOGETHER)
    for quarters in range(math.floor(period * GRID)):
        later = moment + quarters / GRID
        found = later if later < now + period else later - period
        if taken.get(found, 0) < share:
            return found
    return moment


def next_due(due: float, period: float, now: float, taken: Mapping[float, int]) -> float:
    """The moment after `due`; one that is already past is now, and later ones keep the period from there.

    Probes that come again do so at quarters of a second, together with others: each moment at which one is
    due by itself wakes the agent. Who would be one too many at a quarter that is `taken` by so many, and so
    have to wait there, takes one of the next that has room, within a second. A period is whole seconds, so
    this puts off the second run alone.
    """
    moment = max(math.ceil((due + period) * GRID) / GRID, now)
    for quarters in range(GRID):
        if taken.get(moment + quarters / GRID, 0) < TOGETHER:
            return moment + quarters / GRID
    return moment


def gap(rate: float) -> float:
    """Seconds between two starts, at a mean of `rate` probes a second."""
    return min(LONGEST_GAP, 1 / (PACE_FACTOR * rate)) if rate > 0 else 0.0


class Timetable(Generic[K]):
    """Which probe is due when, and how many at each moment."""

    def __init__(self) -> None:
        self._agenda = Agenda[K]()
        self._taken: dict[float, int] = {}
        self._rate = 0.0  # probes a second

    @property
    def gap(self) -> float:
        """Seconds between two starts where many are due at once."""
        return gap(self._rate)

    def one_more(self, period: float) -> None:
        """One that comes again each `period` counts among all."""
        self._rate += 1 / period

    def one_less(self, period: float) -> None:
        """It does no more."""
        self._rate -= 1 / period

    def first(self) -> float:
        """The earliest moment, infinity if nothing is due ever."""
        return self._agenda.first()

    def put(self, probe: K, due: float) -> None:
        """It is due then, and not when it was to be before."""
        self.take_out(probe)
        self._taken[due] = self._taken.get(due, 0) + 1
        self._agenda.put(probe, due)

    def take_out(self, probe: K) -> None:
        """It is not due any more."""
        if (due := self._agenda.take_out(probe)) is not None:
            self._give_back(due)

    def pop(self, now: float) -> K | None:
        """Takes out the first one if it is due by now."""
        due = self._agenda.first()
        if (probe := self._agenda.pop(now)) is not None:
            self._give_back(due)
        return probe

    def next_due(self, due: float, period: float, now: float) -> float:
        """The moment after `due`, as the function says."""
        return next_due(due, period, now, self._taken)

    def adopted_due(self, offset: float, period: float, now: float) -> float:
        """The first moment after a restart of the agent, as the function says."""
        return adopted_due(offset, period, now, self._taken, self._rate)

    def _give_back(self, due: float) -> None:
        """One less is due at that moment."""
        self._taken[due] -= 1
        if not self._taken[due]:
            del self._taken[due]
