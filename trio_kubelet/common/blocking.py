"""Blocking calls (files, mostly) away from the event loop.

In a simulation they run inline: a virtual clock that jumps when every task waits does not know that a thread
is still at work, so time would run on by chance and the simulation would not be the same twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def run_blocking(function: Callable[..., T], *args: object) -> T:
    """Calls `function(*args)` in a worker thread and returns or raises what it does.

    Not cancellable: a call that has begun is waited for.
    """
    if hasattr(trio.lowlevel.current_clock(), "autojump_threshold"):
        await trio.lowlevel.checkpoint()
        return function(*args)
    return await trio.to_thread.run_sync(function, *args)
