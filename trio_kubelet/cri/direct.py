"""Calls by the shortest way: a minimal gRPC client on Trio sockets.

A relist reads megabytes each second on a large node, and a pod's start takes a dozen calls. A complete HTTP/2
stack spends most of its time per frame on things that a local call does not need: priorities, many streams,
windows that are never full. This client does one call at a time on a connection, checks what it reads, gives
the peer the largest windows there are, and joins the answer's bytes once. Whatever it does not understand
ends the connection with an error; the next call opens a new one.

A cancelled call closes its connection, which ends the call in the runtime as a reset of its stream would. An
answer that goes on for ever, the runtime's events, has a connection of its own. What is called again and
again, exec probes that pass, goes another way (`cri.repeated`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from trio_kubelet.cri.caller import PATHS
from trio_kubelet.cri.connection import CallConnection, Found, Take
from trio_kubelet.cri.errors import CRIError, Unavailable, cri_error
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.framing import HTTP_CODES, told_message

_IDLE_SECONDS: Final = 60.0  # for which a connection stays beyond those that are kept
_ACCEPTED_AFTER: Final = 0.01  # seconds until a runtime that was slow to accept connections may have done so


class DirectCalls:
    """Calls over at most `most` connections, opened when they are needed. When idle `kept` of them stay open,
    more for a minute.
    """

    def __init__(self, path: str, most: int = 1, kept: int = 1) -> None:
        self.connections = 0
        self._path = path
        self._kept = kept
        self._places = trio.Semaphore(most)
        self._idle: deque[tuple[CallConnection, float]] = deque()  # and since when, by Trio's clock
        self._busy: dict[CallConnection, float] = {}  # and when its call is overdue, by Trio's clock
        self._watched = math.inf  # the next moment that `watch` waits for
        self._sleep = trio.CancelScope()  # until then

    def close(self) -> None:
        """Closes the connections; calls that are under way fail."""
        for connection in (*(connection for connection, _ in self._idle), *self._busy):
            connection.close()
        self._idle.clear()

    def is_full(self) -> bool:
        """Whether a call would have to wait for another one to end."""
        return self._places.value == 0

    def under_way(self) -> int:
        """How many calls are being answered."""
        return len(self._busy)

    async def watch(self) -> None:
        """Ends the calls that are overdue, until cancelled. It has to run, or there are no deadlines.

        One task does that for all: a scope with a deadline for each call would be a sixth of what it costs.
        """
        while True:
            self._watched = min(self._busy.values(), default=math.inf)
            with trio.CancelScope(deadline=self._watched) as self._sleep:
                await trio.sleep_forever()
            now = trio.current_time()
            for connection, end in list(self._busy.items()):
                if end <= now:
                    connection.is_overdue = True
                    self._busy[connection] = math.inf
                    connection.close()

    def _wake_by(self, moment: float) -> None:
        """Something is to be done then."""
        if moment < self._watched:
            self._watched = self._sleep.deadline = moment

    def _keep(self, connection: CallConnection, now: float) -> None:
        """It can be used again. The one used last is the next to be, so those that are too many grow old."""
        self._idle.append((connection, now))
        while len(self._idle) > self._kept and self._idle[0][1] < now - _IDLE_SECONDS:
            self._idle.popleft()[0].close()

    async def call(
        self,
        method: str,
        request: bytes,
        deadline: float,
        metadata: Mapping[str, str] | None = None,
        enough: int | None = None,
    ) -> Sequence[bytes]:
        """All messages of the answer; `metadata` goes with the request. Raises CRIError, OSError if there is
        nobody to connect to, or trio.TooSlowError at the deadline, by Trio's clock.
        """
        try:
            self._places.acquire_nowait()  # without a turn for everybody else, if it can be
        except trio.WouldBlock:
            with trio.fail_at(deadline):
                await self._places.acquire()
        connection = None
        try:
            connection = self._kept_one() or await self._connected_by(deadline)
            self._busy[connection] = deadline
            self._wake_by(deadline)
            found = await connection.call(PATHS[method], request, metadata, enough)
            del self._busy[connection]
            self._keep(connection, trio.current_time())
            connection = None
        except (trio.BrokenResourceError, trio.ClosedResourceError, GrpcError) as exc:
            if connection is not None and connection.is_overdue:
                raise trio.TooSlowError from exc
            raise _error(exc, method) from exc
        finally:
            self._places.release()
            if connection is not None:
                self._busy.pop(connection, None)
                connection.close()
        return messages_of(method, found)

    @asynccontextmanager
    async def listening(
        self, method: str, request: bytes, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[Listening]:
        """A call whose answer goes on, once its request is sent; leaving ends it. Raises CRIError, or OSError
        if there is nobody to connect to.
        """
        connection = await self._connected_by(math.inf)
        self._busy[connection] = math.inf
        try:
            try:
                await connection.ask(PATHS[method], request, metadata)
            except (trio.BrokenResourceError, GrpcError) as exc:
                raise _error(exc, method) from exc
            yield Listening(connection, method)
        finally:
            self._busy.pop(connection, None)
            connection.close()

    def _kept_one(self) -> CallConnection | None:
        """A connection that was kept and can be used."""
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    async def _connected_by(self, deadline: float) -> CallConnection:
        """A new connection. Raises OSError, or trio.TooSlowError at the deadline."""
        with trio.fail_at(deadline):
            while True:
                try:
                    return self._connected()
                except BlockingIOError:  # as many as may wait for the runtime to accept them
                    await trio.sleep(_ACCEPTED_AFTER)

    def _connected(self) -> CallConnection:
        """A new connection, which a unix socket has at once or not at all. Raises OSError."""
        connection = CallConnection.open(self._path)
        self.connections += 1
        return connection


class Listening:
    """A call whose answer goes on."""

    def __init__(self, connection: CallConnection, method: str) -> None:
        self._connection, self._method = connection, method

    async def run(self, take: Take) -> None:
        """Hands over messages as they come, until the runtime ends the answer. Raises CRIError."""
        try:
            found = await self._connection.listen(take)
        except (trio.BrokenResourceError, GrpcError) as exc:
            raise _error(exc, self._method) from exc
        _check(found, self._method)


def messages_of(method: str, found: Found) -> Sequence[bytes]:
    """The messages of an answer; raises what it says instead."""
    messages, said = found
    _check(said, method)
    return messages


def _error(broken: trio.BrokenResourceError | trio.ClosedResourceError | GrpcError, method: str) -> CRIError:
    """What ended a call."""
    if isinstance(broken, GrpcError):
        return cri_error(broken.code, broken.message, method)
    return Unavailable("connection error: Connection lost", method)


def _check(found: dict[str, str], method: str) -> None:
    """Raises what an answer's headers and trailers say."""
    if (error := _status_error(found)) is not None:
        error.method = method
        raise error


def _status_error(found: dict[str, str]) -> CRIError | None:
    """What the headers and trailers of an answer say; None if the call succeeded."""
    if (http := found.get(":status", "")) != "200":
        return cri_error(HTTP_CODES.get(http, Code.UNKNOWN), f"unexpected HTTP status {http!r}")
    status = found.get("grpc-status", "")
    if status == "0":
        return None
    if not (status.isascii() and status.isdigit()):
        return cri_error(Code.UNKNOWN, f"unexpected grpc-status {status!r}")
    return cri_error(int(status), told_message(found))
