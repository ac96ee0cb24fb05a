"""How many starts are under way at the runtime at once: as many as help, those that matter first.

A runtime that is asked to make a hundred sandboxes at once makes each of them slower and all of them later:
the calls compete for the same cores, and for locks of the kernel and the network plugin. How many help is
not the same everywhere (a runtime that mostly waits gets more done with more, and so does one beside others
that take the cores), so it is tried: now and then twice as many are let in for a while, or half as many, and
what gets more done stays.

Who waits has its turn by importance, then by age. A container is created and started in one turn. Those of
pods that have their sandbox go before the sandboxes of other pods, so that of a hundred pods one after the
other is up, not all at the end; but of four turns one is a sandbox's. What takes long gives its place to
another and goes on beside it: a sandbox that hangs holds up nobody. Image pulls need no place.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec
import trio
from msgspec.structs import replace

T = TypeVar("T")

LENT: Final = 2.0
"""Seconds a call keeps its place."""
PASSED: Final = 3
"""So many containers go before a sandbox that waits."""
REMEMBERED: Final = 600.0
"""Seconds for which the fastest call of a kind is what others are compared with."""
LEAST_PER_CPU: Final = 2
"""Half of a start is waiting for disk, network plugin and the kernel: that many are the best on two cores."""
MOST_PER_CPU: Final = 16
SAMPLE: Final = 16
"""So many calls tell what a limit gets done."""
BETTER: Final = 1.2
"""Twice as many have to get so much more done: a sample may be wrong by a tenth."""
AS_GOOD: Final = 0.97
"""Half as many have to get so much done."""
REST: Final = 8
"""Samples after a trial that does not help, before the next."""
BURST: Final = 10.0
"""Seconds without a call after which what was found before does not count."""


class Fastest(NamedTuple):
    """The shortest time that a kind of call took, and when (Trio time)."""

    seconds: float
    at: float


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How many calls are let in, and what is known of them.

    `limit` is in force since `since` (Trio time); it is another than `usual` while it is tried. `count` calls
    began and ended under it and got `total` done. The `usual` one got `done` done. `rest` samples are taken
    before the next trial; `up`: that is one of twice as many.
    """

    limit: int
    usual: int
    since: float = 0.0
    at: float = 0.0  # when the last call ended
    count: int = 0
    total: float = 0.0
    done: float = 0.0
    rest: int = 1
    up: bool = True
    fastest: Mapping[str, Fastest] = {}


class Took(NamedTuple):
    """A call that succeeded: its kind, how long it took, with how many under way, itself included.

    `wanted`: others waited for a place when it ended.
    """

    kind: str
    seconds: float
    together: int
    wanted: bool
    at: float


def first_pace(cpus: int) -> Pace:
    """Until more is known, and at least."""
    least = LEAST_PER_CPU * max(cpus, 1)
    return Pace(limit=least, usual=least)


def adapt(pace: Pace, took: Took, cpus: int) -> Pace:
    """What one more call says. Pure.

    When `together` calls take so many times as long as the fastest, they get that part of `together` fast
    calls done in the time of one. Calls of which fewer were under way than may be say nothing of the limit.
    """
    known = pace.fastest.get(took.kind)
    if known is None or took.seconds <= known.seconds or took.at - known.at > REMEMBERED:
        known = Fastest(max(took.seconds, 1e-6), took.at)
    fastest = {**pace.fastest, took.kind: known}
    if took.at - pace.at > BURST:
        pace = first_pace(cpus)
    pace = replace(pace, at=took.at, fastest=fastest)
    if not took.wanted or took.together < pace.limit or took.at - took.seconds < pace.since:
        return pace
    done = took.together * known.seconds / max(took.seconds, 1e-6)
    pace = replace(pace, count=pace.count + 1, total=pace.total + done)
    return pace if pace.count < max(SAMPLE, pace.limit) else _next(pace, pace.total / pace.count, cpus)


def _next(pace: Pace, done: float, cpus: int) -> Pace:
    """What follows from a sample: another one, a trial, or the end of a trial."""
    least, most = (each * max(cpus, 1) for each in (LEAST_PER_CPU, MOST_PER_CPU))
    usual, rest, up = pace.usual, pace.rest, pace.up
    if pace.limit == usual:
        rest -= 1
    elif done > pace.done * (BETTER if up else AS_GOOD):
        usual = pace.limit
        rest = 0 if least < usual < most else REST  # the same way on
    else:
        rest, up, done = REST, not up, pace.done
    limit = usual
    if rest <= 0:
        up = up if least < usual < most else usual <= least
        limit = min(2 * usual, most) if up else max(usual // 2, least)
    return replace(
        pace, limit=limit, usual=usual, since=pace.at, count=0, total=0.0, done=done, rest=rest, up=up
    )


_Waiting = tuple[bool, int, "_Waiter"]
"""A call that waits: not critical, number, place."""


class _Waiter:
    """A call that has no place yet."""

    __slots__ = ("came", "granted")

    def __init__(self) -> None:
        self.came = trio.Event()
        self.granted = False


class RuntimeSlots:
    """The places at the runtime."""

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        self._pace = first_pace(cpus)
        self._held: dict[_Waiter, float] = {}  # with the Trio time at which the place was taken, oldest first
        self._begun: list[_Waiting] = []  # heaps: of pods that have a sandbox,
        self._fresh: list[_Waiting] = []  # and of those that have not
        self._passed = 0  # how many of the former went since one of the latter did
        self._numbers = itertools.count()
        self._timekeeper: _Waiter | None = None  # of those that wait

    @property
    def limit(self) -> int:
        """How many are let in now."""
        return self._pace.limit

    async def call(
        self, kind: str, run: Callable[[], Awaitable[T]], *, critical: bool = False, begun: bool = False
    ) -> T:
        """Waits for a place and makes the call. `critical`: before all that are not; `begun`: its pod has a
        sandbox. Raises what `run` raises.
        """
        place = _Waiter()
        waiting = self._begun if begun else self._fresh
        heapq.heappush(waiting, (not critical, next(self._numbers), place))
        try:
            self._let_in()
            while not place.granted:
                await self._wait(place)
            began, together = trio.current_time(), len(self._held)
            answer = await run()
            now = trio.current_time()
            took = Took(kind, now - began, together, bool(self._begun or self._fresh), now)
            self._pace = adapt(self._pace, took, self._cpus)
            return answer
        finally:
            self._leave(place)

    async def _wait(self, place: _Waiter) -> None:
        """Waits until the place is granted, or until it is its turn to keep the time, or time has passed.

        Places of calls that take long come free by time alone. One of all that wait looks after that, the
        last of them: where each does, a hundred are woken every two seconds.
        """
        place.came = trio.Event()
        if self._timekeeper is not place:
            await place.came.wait()
            return
        with trio.move_on_at(next(iter(self._held.values())) + LENT):
            await place.came.wait()
        self._let_in()

    def _leave(self, place: _Waiter) -> None:
        if not place.granted:
            for waiting in (self._begun, self._fresh):
                waiting[:] = [entry for entry in waiting if entry[-1] is not place]
                heapq.heapify(waiting)
            if place is self._timekeeper:
                self._timekeeper = None
        self._held.pop(place, None)
        self._let_in()

    def _let_in(self) -> None:
        """Gives out the places that are free; who waits has a timekeeper."""
        now = trio.current_time()
        for place in [place for place, since in self._held.items() if now - since >= LENT]:
            del self._held[place]
        while (waiting := self._next()) and len(self._held) < self.limit:
            self._passed = self._passed + 1 if waiting is self._begun and self._fresh else 0
            place = heapq.heappop(waiting)[-1]
            self._held[place] = now
            place.granted = True
            place.came.set()
            if place is self._timekeeper:
                self._timekeeper = None
        last = max(self._fresh or self._begun, default=None) if self._timekeeper is None else None
        if last is not None:
            self._timekeeper = last[-1]
            self._timekeeper.came.set()

    def _next(self) -> list[_Waiting]:
        """Among which the next turn is."""
        if not self._begun or not self._fresh:
            return self._begun or self._fresh
        (begun_is_common, *_), (fresh_is_common, *_) = self._begun[0], self._fresh[0]
        if begun_is_common != fresh_is_common:
            return self._begun if fresh_is_common else self._fresh
        return self._begun if self._passed < PASSED else self._fresh
