"""The asyncio event loop that `loop.AsyncioLoop` gives its turns. Imported with the first asyncio task."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeVarTuple

import trio

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

Ts = TypeVarTuple("Ts")

_ROUNDS: Final = 32
"""How often a turn may go round before other Trio tasks have theirs."""


class TurnSelector(selectors.EpollSelector):
    """Ends the loop's turn where the loop would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.wait: float | None = None
        """For how long the loop would have waited, in seconds; None: until something comes."""
        self.rounds = 0
        self.end_turn: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        self.rounds += 1
        if self.rounds >= _ROUNDS:
            self.wait = 0
            self.end_turn()
        elif not found and (timeout is None or timeout > 0):
            self.wait = timeout
            self.end_turn()
        return found


class TurningLoop(asyncio.SelectorEventLoop):
    """A loop that tells when it is given work while it has no turn."""

    def __init__(self, *, stir: Callable[[], None], end_turn: Callable[[], None]) -> None:
        self.stir: Callable[[], None] = lambda: None  # the loop gives itself work while it is made
        self.selector = TurnSelector()
        super().__init__(self.selector)
        self.set_exception_handler(_log_stray_error)
        self.stir, self.selector.end_turn = stir, end_turn

    def time(self) -> float:
        return trio.current_time()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.stir()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.stir()
        return super().call_at(when, callback, *args, context=context)


async def ended(tasks: set[asyncio.Task[Any]]) -> None:
    """Waits for the end of tasks, however they end."""
    await asyncio.gather(*tasks, return_exceptions=True)


def _log_stray_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    del loop
    log.warning("Error in an asyncio callback", what=context.get("message", ""), err=context.get("exception"))
