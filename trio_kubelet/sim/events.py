"""Carries the simulated runtime's events to its subscribers, as well or as badly as the faults allow."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from trio_kubelet.cri.errors import CRIError, cri_error
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.doors import Inlet
from trio_kubelet.grpc.errors import Code
from trio_kubelet.sim.faults import EVENTS, Faults, Kind

_SHARED_QUEUE: Final = 1000


Subscriber: TypeAlias = Inlet[cri.ContainerEventResponse]


class EventFeed:
    """Every subscriber gets every event that happens while it is subscribed, as with containerd 2.

    With `shared`, as with containerd 1.7: events wait for a subscriber, up to 1000 of them, and several
    subscribers split them among themselves.
    """

    def __init__(self, faults: Faults, shared: bool = False) -> None:
        self._faults = faults
        self._shared = shared
        self._waiting: list[cri.ContainerEventResponse] = []
        self._subscribers: list[Subscriber] = []
        self._held: list[cri.ContainerEventResponse] = []
        self._late: list[tuple[float, int, cri.ContainerEventResponse]] = []
        self._published = 0
        self._turn = 0
        self._wake = trio.Event()

    @property
    def subscribers(self) -> int:
        """How many streams are open."""
        return len(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Opens a stream."""
        self._subscribers.append(subscriber)
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            subscriber.put(event)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Closes a stream from the subscriber's side; one that is closed already may be closed again."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def end(self, error: CRIError | None) -> None:
        """Ends all streams; events that are still on their way are lost."""
        subscribers, self._subscribers = self._subscribers, []
        self._held.clear()
        self._late.clear()
        for subscriber in subscribers:
            subscriber.close(error)

    def publish(self, make: Callable[[], cri.ContainerEventResponse]) -> None:
        """Something happened; `make` makes the event, if anybody listens."""
        if not self._subscribers:
            if self._shared and len(self._waiting) < _SHARED_QUEUE:
                self._waiting.append(make())
            return
        event = make()
        self._published += 1
        fault = self._faults.for_event()
        kind = fault.kind if fault is not None else None
        if fault is not None and kind is Kind.LATE:
            due = trio.current_time() + fault.seconds
            heapq.heappush(self._late, (due, self._published, event))
            self._wake.set()
        elif fault is not None and kind is Kind.END:
            code = fault.status
            self.end(None if code is Code.OK else cri_error(code, fault.message, EVENTS))
        elif kind is Kind.REORDER:
            self._held.append(event)
        elif kind is not Kind.DROP:
            self._deliver(event)
            if kind is Kind.DOUBLE:
                self._deliver(event)
            held, self._held = self._held, []
            for earlier in held:
                self._deliver(earlier)

    def _deliver(self, event: cri.ContainerEventResponse) -> None:
        if not self._subscribers:
            return
        if self._shared:
            self._turn += 1
            self._subscribers[self._turn % len(self._subscribers)].put(event)
            return
        for subscriber in tuple(self._subscribers):
            subscriber.put(event)

    async def run(self) -> None:
        """Delivers late events when their time has come, for ever."""
        while True:
            now = trio.current_time()
            while self._late and self._late[0][0] <= now:
                self._deliver(heapq.heappop(self._late)[2])
            self._wake = trio.Event()
            with trio.move_on_at(self._late[0][0] if self._late else float("inf")):
                await self._wake.wait()
