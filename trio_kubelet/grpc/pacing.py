"""Streams of peers that send without a pause."""

from __future__ import annotations

from typing import Final

import trio

PAUSE: Final = 0.1
_SHARE: Final = 4


async def rest(began: float) -> None:
    """Waits after a message that was worked on since `began`, in Trio's time, before the next one is taken.

    However much a peer sends, it has a fifth of the agent's time; what it sends meanwhile waits, most of it
    in the peer. One that sends now and then does not notice: what it sends is taken at once.
    """
    await trio.sleep(max(PAUSE, _SHARE * (trio.current_time() - began)))
