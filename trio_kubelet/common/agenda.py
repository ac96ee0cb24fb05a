"""Who is due when: one moment for each, by Trio's clock."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """A heap. What is put off or taken out stays in it until its moment is the first, and is passed over."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._entries: dict[K, tuple[float, int]] = {}
        self._numbers = itertools.count()

    def put(self, key: K, due: float) -> None:
        """It is due then, and not when it was to be before."""
        number = next(self._numbers)
        self._entries[key] = due, number
        heapq.heappush(self._heap, (due, number, key))

    def take_out(self, key: K) -> float | None:
        """It is not due any more; when it would have been, None if it was not to be."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[0]

    def due(self, key: K) -> float | None:
        """When it is, None if it is not to be."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def first(self) -> float:
        """The earliest moment, infinity if nothing is to be done."""
        while self._heap:
            due, number, key = self._heap[0]
            if self._entries.get(key) == (due, number):
                return due
            heapq.heappop(self._heap)
        return math.inf

    def pop(self, now: float) -> K | None:
        """Takes out the first one if it is due by now."""
        if self.first() > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._entries[key]
        return key
