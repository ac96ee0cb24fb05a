"""The other end of a source: takes its updates and keeps them."""

from __future__ import annotations

from types import TracebackType

import trio

from trio_kubelet.podinfo.updates import PodUpdate


class Collector:
    """An async context with a nursery for the source; cancelled at the end."""

    def __init__(self) -> None:
        self.updates: list[PodUpdate] = []
        self.send, self._receive = trio.open_memory_channel[PodUpdate](0)
        self._manager = trio.open_nursery()

    async def __aenter__(self) -> Collector:
        self.nursery = await self._manager.__aenter__()
        self.nursery.start_soon(self._collect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.nursery.cancel_scope.cancel()
        return await self._manager.__aexit__(kind, error, traceback)

    async def _collect(self) -> None:
        async for update in self._receive:
            self.updates.append(update)
