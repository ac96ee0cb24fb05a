"""The same for many, several at a time: one that takes its time holds up no more than its own place, and not
even that where others may step beside it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

import trio

from trio_kubelet.common.places import Places

T = TypeVar("T")

LENT: Final = 2.0
"""Seconds after which one makes place for the next."""
ASIDE: Final = 64
"""So many may hang beside the others where what they wait for is the affair of each."""


async def for_each(
    items: Collection[T], do: Callable[[T], Awaitable[object]], at_once: int, aside: int = 0
) -> None:
    """Awaits `do` for each of them, begun in their order, at most so many at a time; those that take long do
    not count, but for more than `aside` of them. What it raises ends the others and comes in an
    ExceptionGroup; whatever is the affair of one item `do` has to keep to itself.
    """
    places = Places(at_once, lent=LENT, aside=aside)

    async def one(item: T, task_status: trio.TaskStatus[None]) -> None:
        async with places:
            task_status.started()
            await do(item)

    async with trio.open_nursery() as nursery:
        for item in items:
            await nursery.start(one, item)
