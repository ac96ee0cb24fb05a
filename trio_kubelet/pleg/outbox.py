"""Events on their way to the sync loop: kept per pod until there is room, never thrown away.

The kubelet drops events when its channel is full and nobody ever hears of them again. Here a slow
consumer costs latency only: events wait per pod, an event that already waits is not added twice, so
that memory is bounded by what exists (containers × kinds of event).
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from trio_kubelet.observed.types import PodLifecycleEvent, PodLifecycleEventType

# The kubelet's PLEG does not deliver these either: nothing acts on them.
NOT_DELIVERED = frozenset({PodLifecycleEventType.CONTAINER_CHANGED})


class Outbox:
    """Waiting events by pod, delivered pod by pod in the order in which the pods first changed."""

    def __init__(self, send: trio.MemorySendChannel[PodLifecycleEvent]) -> None:
        self._send = send
        self._waiting: dict[str, dict[PodLifecycleEvent, None]] = {}
        self._something = trio.Event()

    def __len__(self) -> int:
        return sum(len(events) for events in self._waiting.values())

    def put(self, events: Iterable[PodLifecycleEvent]) -> None:
        """Takes events; never blocks."""
        for event in events:
            if event.type not in NOT_DELIVERED:
                self._waiting.setdefault(event.pod_uid, {})[event] = None
        if self._waiting:
            self._something.set()

    async def run(self) -> None:
        """Delivers for ever; only this task waits while the consumer has no room."""
        while True:
            while self._waiting:
                uid = next(iter(self._waiting))
                for event in self._waiting.pop(uid):
                    try:
                        self._send.send_nowait(event)  # all of a pod in one turn, if there is room
                    except trio.WouldBlock:
                        await self._send.send(event)
                await trio.lowlevel.checkpoint()
            self._something = trio.Event()
            await self._something.wait()
