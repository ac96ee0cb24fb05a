"""Calls by the shortest way: a minimal gRPC client on Trio sockets.

A relist reads megabytes each second on a large node, and exec probes are most of what a node at rest asks of
its runtime. A complete HTTP/2 stack spends most of its time per frame on things that a local call does not
need: priorities, many streams, windows that are never full. This client does one call at a time on a
connection, checks what it reads, gives the peer the largest windows there are, and joins the answer's bytes
once. Whatever it does not understand ends the connection with an error; the next call opens a new one.

A cancelled call closes its connection, which ends the call in the runtime as a reset of its stream would. An
answer that goes on for ever, the runtime's events, has a connection of its own.
"""

from __future__ import annotations

import functools
import math
import select
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeAlias

import trio

from trio_kubelet.cri.caller import PATHS
from trio_kubelet.cri.connection import CallConnection, Found, Take
from trio_kubelet.cri.errors import CRIError, Unavailable, cri_error
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.framing import HTTP_CODES, told_message

_LOOKS: Final = 8  # moments in each second at which answers are looked for that no task waits for
_LATE_LOOKS: Final = 4  # of those that have not come after
_LATE: Final = 0.25  # seconds
_IDLE_SECONDS: Final = 60.0  # for which a connection stays beyond those that are kept
_ACCEPTED_AFTER: Final = 0.01  # seconds until a runtime that was slow to accept connections may have done so

Answer: TypeAlias = Callable[[], Sequence[bytes]]
"""All messages of an answer that nobody waited for; raises as the call would have."""


class _Unwaited(NamedTuple):
    """A call that no task waits for."""

    connection: CallConnection
    method: str
    began: float
    end: Callable[[Answer], None]


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
        self._unwaited: dict[int, _Unwaited] = {}  # by the connection's descriptor
        self._arrivals = select.epoll()  # tells of all connections on which something has come
        self._look_at = math.inf  # the next moment at which answers are looked for

    def close(self) -> None:
        """Closes the connections; calls that are under way fail."""
        for connection in (*(connection for connection, _ in self._idle), *self._busy):
            connection.close()
        self._idle.clear()
        self._unwaited.clear()
        self._arrivals.close()

    def is_full(self) -> bool:
        """Whether a call would have to wait for another one to end."""
        return self._places.value == 0

    def under_way(self) -> int:
        """How many calls are being answered."""
        return len(self._busy)

    async def watch(self) -> None:
        """Ends the calls that are overdue and looks for answers that no task waits for, until cancelled. It
        has to run, or there are no deadlines.

        One task does that for all: a scope with a deadline for each call would be a sixth of what it costs.
        """
        while True:
            self._watched = min(self._look_at, *self._busy.values(), math.inf)
            with trio.CancelScope(deadline=self._watched) as self._sleep:
                await trio.sleep_forever()
            now = trio.current_time()
            if self._look_at <= now:
                self._look(now)
            for connection, end in list(self._busy.items()):
                if end <= now:
                    connection.is_overdue = True
                    self._busy[connection] = math.inf
                    if (number := connection.fileno()) in self._unwaited:
                        self._end(number, trio.TooSlowError(), now)
                    connection.close()

    def _wake_by(self, moment: float) -> None:
        """Something is to be done then."""
        if moment < self._watched:
            self._watched = self._sleep.deadline = moment

    def _look(self, now: float) -> None:
        """Ends the calls whose answers are there. The moments are the same for all: one wake-up for many."""
        for number, _ in self._arrivals.poll(0) if self._unwaited else ():
            if (call := self._unwaited.get(number)) is None:
                continue
            try:
                found = call.connection.arrived()
            except (trio.BrokenResourceError, GrpcError) as exc:
                self._end(number, exc, now)
            else:
                if found is not None:
                    self._end(number, found, now)
        if not self._unwaited:
            self._look_at = math.inf
        elif any(now - each.began < _LATE for each in self._unwaited.values()):
            self._look_at = _next_moment(now, _LOOKS)
        else:
            self._look_at = _next_moment(now, _LATE_LOOKS)

    def _end(self, number: int, found: Found | Exception, now: float) -> None:
        """Tells what became of a call that no task waits for."""
        connection, method, _, end = self._unwaited.pop(number)
        del self._busy[connection]
        self._places.release()
        if isinstance(found, Exception):
            connection.close()
        else:
            self._keep(connection, now)
        end(functools.partial(_messages, method, found))

    def _keep(self, connection: CallConnection, now: float) -> None:
        """It can be used again. The one used last is the next to be, so those that are too many grow old."""
        self._idle.append((connection, now))
        while len(self._idle) > self._kept and self._idle[0][1] < now - _IDLE_SECONDS:
            self._idle.popleft()[0].close()

    def begin(
        self,
        method: str,
        request: bytes,
        now: float,
        deadline: float,
        enough: int | None,
        end: Callable[[Answer], None],
    ) -> bool:
        """Sends a request; `end` is told of the answer when it is looked for. False if there are too many
        calls, or the runtime does not take this one at once.

        To be woken is most of what a small call costs: many such answers are taken in one turn of one task.
        """
        if self.is_full():
            return False
        try:
            connection = self._idle.pop()[0] if self._idle else self._connected()
        except OSError:
            return False
        try:
            connection.begin(PATHS[method], request, enough)
        except (trio.BrokenResourceError, GrpcError):
            connection.close()
            return False
        self._places.acquire_nowait()
        self._busy[connection] = deadline
        self._unwaited[connection.fileno()] = _Unwaited(connection, method, now, end)
        self._look_at = min(self._look_at, _next_moment(now, _LOOKS))
        self._wake_by(min(self._look_at, deadline))
        return True

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
        return _messages(method, found)

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
        try:
            self._arrivals.register(connection.fileno(), select.EPOLLIN)
        except BaseException:
            connection.close()
            raise
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


def _next_moment(now: float, each_second: int) -> float:
    return (math.floor(now * each_second) + 1) / each_second


def _messages(method: str, found: Found | Exception) -> Sequence[bytes]:
    """The messages of an answer; raises what it says instead, or what ended its call."""
    if isinstance(found, (trio.BrokenResourceError, GrpcError)):
        raise _error(found, method) from found
    if isinstance(found, Exception):
        raise found
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
