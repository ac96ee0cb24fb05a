"""Answers kept for a while: bounded, and asked for once however many wait for the same one.

Time is Trio's clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from trio_kubelet.common.single_flight import SingleFlight

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """At most `size` answers; the one that was used least recently goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asked: SingleFlight[K, V] = SingleFlight()

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: K, look_up: Callable[[], Awaitable[V]], lifetime: Callable[[V], float]) -> V:
        """The kept answer, or what `look_up` gives now.

        `lifetime` tells for how many seconds an answer is kept (0: not at all). What `look_up` raises is not
        kept, but reaches all who waited for it.
        """
        kept = self._kept.get(key)
        if kept is not None:
            if trio.current_time() < kept[0]:
                self._kept.move_to_end(key)
                return kept[1]
            del self._kept[key]

        async def ask() -> V:
            answer = await look_up()
            if (seconds := lifetime(answer)) > 0:
                self._kept[key] = (trio.current_time() + seconds, answer)
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
            return answer

        return await self._asked.ask(key, ask)
