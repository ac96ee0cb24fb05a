"""So many at once, but who takes long makes place for others: what hangs holds up nobody."""

from __future__ import annotations

import math
from typing import Self

import trio


class Places:
    """At most `number` tasks in the block at once, in the order in which they came.

    A task that is in the block for longer than `lent` seconds steps aside when another one wants its place;
    up to `aside` go on so beside those that have a place.
    """

    def __init__(self, number: int, *, lent: float, aside: int) -> None:
        self._number = number
        self._lent = lent
        self._most_aside = aside
        self._held: dict[trio.lowlevel.Task, float] = {}  # with the Trio time of the beginning, oldest first
        self._aside: set[trio.lowlevel.Task] = set()
        self._queue = trio.Lock()  # its holder is the next to have a place
        self._left = trio.Event()

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._queue.locked() or len(self._held) == self._number:
            async with self._queue:
                await self._wait()
        self._held[trio.lowlevel.current_task()] = trio.current_time()
        return self

    async def _wait(self) -> None:
        """Until there is a place."""
        while (free_at := self._free_at()) > trio.current_time():
            self._left = trio.Event()
            with trio.move_on_at(free_at):
                await self._left.wait()
        if len(self._held) == self._number:
            self._aside.add(oldest := next(iter(self._held)))
            del self._held[oldest]

    async def __aexit__(self, *_: object) -> None:
        task = trio.lowlevel.current_task()
        self._held.pop(task, None)
        self._aside.discard(task)
        self._left.set()

    def _free_at(self) -> float:
        """When there is a place if nobody leaves (Trio time)."""
        if len(self._held) < self._number:
            return -math.inf
        if len(self._aside) < self._most_aside:
            return next(iter(self._held.values())) + self._lent
        return math.inf
