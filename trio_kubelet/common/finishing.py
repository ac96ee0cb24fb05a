"""Work that is not broken off: a task that is to be cancelled ends what it has begun, if that is quick.

Trio tells a shielded task of no cancellation, and a second task that would hear of it costs more than most of
what is to be finished. So whoever cancels says so first.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


class Finishing:
    """What one task has begun and ends although it is cancelled: one thing at a time."""

    __slots__ = ("_patience", "_scope")

    def __init__(self) -> None:
        self._scope: trio.CancelScope | None = None
        self._patience = 0.0

    async def let_finish(self, run: Callable[[], Awaitable[T]], patience: float) -> T:
        """Awaits `run`, which goes on for up to `patience` seconds, by Trio's clock, after `hurry`. Raises
        what `run` raises, and Cancelled if the task was cancelled before, or `run` was given up.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._patience = patience
        with trio.CancelScope(shield=True) as self._scope:
            try:
                return await run()
            finally:
                self._scope = None
        await trio.lowlevel.checkpoint()
        raise trio.TooSlowError("given up, though the task is not cancelled")

    def hurry(self) -> None:
        """The task is about to be cancelled. Its patience counts from the first time that it hears so."""
        if self._scope is not None and self._scope.deadline == math.inf:
            self._scope.deadline = trio.current_time() + self._patience
