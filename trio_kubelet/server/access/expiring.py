"""Answers kept for a while: bounded, and asked for once however many wait for the same one.

Time is Trio's clock. A key that is looked up by one task is waited for by the others; when that task is
cancelled (its client left), the next one asks itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Pending(Generic[V]):
    def __init__(self) -> None:
        self.done = trio.Event()
        self.answers: list[V] = []
        self.error: Exception | None = None


class ExpiringCache(Generic[K, V]):
    """At most `size` answers; the one that was used least recently goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._pending: dict[K, _Pending[V]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: K, look_up: Callable[[], Awaitable[V]], lifetime: Callable[[V], float]) -> V:
        """The kept answer, or what `look_up` gives now.

        `lifetime` tells for how many seconds an answer is kept (0: not at all). What `look_up` raises is not
        kept, but reaches all who waited for it.
        """
        while True:
            kept = self._kept.get(key)
            if kept is not None:
                if trio.current_time() < kept[0]:
                    self._kept.move_to_end(key)
                    return kept[1]
                del self._kept[key]
            pending = self._pending.get(key)
            if pending is None:
                return await self._ask(key, look_up, lifetime)
            await pending.done.wait()
            if pending.error is not None:
                raise pending.error
            if pending.answers:
                return pending.answers[0]

    async def _ask(self, key: K, look_up: Callable[[], Awaitable[V]], lifetime: Callable[[V], float]) -> V:
        pending = self._pending[key] = _Pending[V]()
        try:
            answer = await look_up()
            pending.answers.append(answer)
        except Exception as exc:
            pending.error = exc
            raise
        finally:
            del self._pending[key]
            pending.done.set()
        seconds = lifetime(answer)
        if seconds > 0:
            self._kept[key] = (trio.current_time() + seconds, answer)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return answer
