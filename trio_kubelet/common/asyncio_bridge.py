"""An asyncio event loop inside Trio, for the few libraries that know nothing else (grpclib).

Sound ways across the border, and the only ones used here: a Trio task runs an asyncio coroutine to its end
with `loop.run_aio_coroutine(coro)`, and an asyncio callback wakes a Trio task through something synchronous
(an event, a queue). An asyncio task never awaits Trio.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio_asyncio

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

Loop = Any
"""A `trio_asyncio` event loop (the library has no types)."""


@asynccontextmanager
async def open_asyncio_loop() -> AsyncIterator[Loop]:
    """A running loop; leaving the context cancels what still runs on it.

    Without a handler of its own, the loop would end the whole program over any error that an asyncio callback
    drops, such as a peer that sends a frame grpclib does not expect. Such an error is logged; the connection
    it came from is closed by asyncio, and its calls fail.
    """
    async with trio_asyncio.open_loop() as loop:
        loop.set_exception_handler(_log_stray_error)
        yield loop


def _log_stray_error(loop: Loop, context: dict[str, Any]) -> None:
    del loop
    log.warning("Error in an asyncio callback", what=context.get("message", ""), err=context.get("exception"))
