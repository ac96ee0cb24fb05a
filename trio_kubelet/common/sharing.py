"""One value for many readers: made when somebody asks and the last is too old, and only once at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Shared(Generic[T]):
    """A value that is made on demand by `make` and may be `max_age` seconds old.

    Ten readers at once cost one `make`. It runs in the task of the first of them; if that reader goes away,
    the next one begins anew, and an error of `make` is that reader's alone.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], max_age: float) -> None:
        self._make = make
        self._max_age = max_age
        self._made: tuple[T, float] | None = None
        self._under_way: trio.Event | None = None

    async def get(self, max_age: float | None = None) -> T:
        """The value, not older than it may be, or than `max_age` for a reader in need of a fresh one."""
        await trio.lowlevel.checkpoint()
        oldest = trio.current_time() - (self._max_age if max_age is None else max_age)
        while True:
            if self._made is not None and self._made[1] >= oldest:
                return self._made[0]
            if self._under_way is None:
                return await self._make_now()
            await self._under_way.wait()

    async def _make_now(self) -> T:
        under_way = self._under_way = trio.Event()
        try:
            value = await self._make()
            self._made = value, trio.current_time()
            return value
        finally:
            self._under_way = None
            under_way.set()
