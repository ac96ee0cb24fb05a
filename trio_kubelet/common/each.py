"""The same for many, several at a time: one that takes its time holds up no more than its own place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import trio

T = TypeVar("T")


async def for_each(items: Collection[T], do: Callable[[T], Awaitable[object]], at_once: int) -> None:
    """Awaits `do` for each of them, begun in their order, at most so many at a time. What it raises ends the
    others and comes in an ExceptionGroup; whatever is the affair of one item `do` has to keep to itself.
    """
    waiting = iter(items)

    async def one_after_the_other() -> None:
        for item in waiting:
            await do(item)

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once, len(items))):
            nursery.start_soon(one_after_the_other)
