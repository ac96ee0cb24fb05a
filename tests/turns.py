"""Whether others have their turns while something long goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """How many turns another task has had."""

    count = 0

    async def take(self) -> None:
        """Takes one after the other, until cancelled."""
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1


@asynccontextmanager
async def others() -> AsyncIterator[Turns]:
    """A task that does nothing but take its turns."""
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.take)
        yield turns
        nursery.cancel_scope.cancel()
