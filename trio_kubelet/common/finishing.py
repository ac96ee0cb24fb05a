"""Work that is not broken off: a cancelled task ends what it has begun, if that does not take long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def let_finish(run: Callable[[], Awaitable[T]], patience: float) -> T:
    """Awaits `run`; when the task is cancelled meanwhile, `run` may go on for up to `patience` seconds, by
    Trio's clock, before it is cancelled, too. Raises what `run` raises, and Cancelled if the task was.
    """
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        finishing = trio.CancelScope(shield=True)
        nursery.start_soon(_end_after, finishing, patience)
        with finishing:
            try:
                answer = await run()
            except Exception as exc:  # a nursery would put it into a group
                failed = exc
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return answer


async def _end_after(scope: trio.CancelScope, patience: float) -> None:
    """Lets the scope end so long after this task was cancelled."""
    try:
        await trio.sleep_forever()
    finally:
        scope.deadline = trio.current_time() + patience
