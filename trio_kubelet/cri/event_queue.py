"""The queue between the task that reads an event stream and the one that acts on it.

The reading side must never wait (by grpclib it is a task of asyncio, which may not await Trio), and nothing
may be lost in silence. So the queue is bounded, and when it is full its content is replaced by one mark that
says "look at everything".
"""

from __future__ import annotations

from collections import deque

import trio

from trio_kubelet.cri.doors import EVERYTHING_DIRTY, ContainerEvent
from trio_kubelet.cri.errors import CRIError, cri_error
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import GrpcError


class EventQueue:
    """An async iterator of events; `put` and `close` are synchronous and never block."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._events: deque[cri.ContainerEventResponse] = deque()
        self._lost = False
        self._closed = False
        self._error: CRIError | None = None
        self._readers = trio.lowlevel.ParkingLot()

    async def room(self) -> None:
        """There always is: what is too much becomes the mark."""

    def put(self, event: cri.ContainerEventResponse) -> None:
        """Adds an event, or marks everything dirty if there is no room."""
        if self._closed:
            return
        if len(self._events) >= self._capacity:
            self._events.clear()
            self._lost = True
        else:
            self._events.append(event)
        self._readers.unpark_all()

    def close(self, error: GrpcError | None = None) -> None:
        """Ends the stream after what is queued; with an error, iteration raises it there."""
        if not self._closed:
            self._closed = True
            if error is not None:
                self._error = cri_error(error.code, error.message, "GetContainerEvents")
            self._readers.unpark_all()

    @property
    def error(self) -> CRIError | None:
        """Why the stream ended, if it failed."""
        return self._error

    def __aiter__(self) -> EventQueue:
        return self

    async def __anext__(self) -> ContainerEvent:
        if self._lost or self._events or self._closed:
            await trio.lowlevel.checkpoint()
        while True:
            if self._lost:
                self._lost = False
                return EVERYTHING_DIRTY
            if self._events:
                return self._events.popleft()
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            await self._readers.park()
