"""Work that is handed over to a task: who hands it over does not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Handover(Generic[T]):
    """Pieces of work, in the order in which they came; as many as are given, so their owner bounds them."""

    def __init__(self) -> None:
        self._queue: list[T] = []
        self._wake = trio.Event()

    def give(self, work: T) -> None:
        """Has this done."""
        self._queue.append(work)
        self._wake.set()

    async def serve(
        self,
        begin: Callable[[trio.Nursery, T], None],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Calls `begin` with each piece, to start a task for it, until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                queue, self._queue = self._queue, []
                for work in queue:
                    begin(nursery, work)
