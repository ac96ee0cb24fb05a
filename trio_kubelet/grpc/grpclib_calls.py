"""How `channel.Channel` makes its calls: by grpclib, on the asyncio loop. Imported with the first call."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

import grpclib.client
import trio
from google.protobuf.message import DecodeError, Message
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from h2.exceptions import H2Error

from trio_kubelet.grpc.connection import MessageCodec, PacedProtocol, prepare, tune_h2
from trio_kubelet.grpc.doors import Sink
from trio_kubelet.grpc.errors import (
    Code,
    ConnectionLost,
    GrpcError,
    deadline_exceeded,
    dial_error,
    garbled,
    status_error,
)
from trio_kubelet.grpc.loop import AsyncioLoop, LoopClosed

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_CLOSE_STREAM_SECONDS: Final = 5.0
_REFUSED_STREAM: Final = "error_code: 7"


class Messages(Generic[T]):
    """The messages of a stream in order: at most `capacity` wait here, the others in the peer."""

    def __init__(self, capacity: int) -> None:
        self._waiting: deque[T] = deque()
        self._places = asyncio.Semaphore(capacity)
        self._ended = False
        self._error: GrpcError | None = None
        self._readers = trio.lowlevel.ParkingLot()

    async def room(self) -> None:
        await self._places.acquire()

    def put(self, message: T) -> None:
        self._waiting.append(message)
        self._readers.unpark_all()

    def close(self, error: GrpcError | None) -> None:
        self._ended, self._error = True, error
        self._readers.unpark_all()

    def __aiter__(self) -> Messages[T]:
        return self

    async def __anext__(self) -> T:
        """The next message. Raises GrpcError when the stream has failed."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            await self._readers.park()
        self._places.release()
        return self._waiting.popleft()


class _Handler(grpclib.client.Handler):
    """Knows when a connection is ready: the peer has said what it allows."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()

    def close(self) -> None:
        super().close()
        self.settled.set()


class _Wire(grpclib.client.Channel):
    """grpclib's channel with connections that are fitted out, counted, and waited for until they are ready.

    Calls that do not wait for the peer's settings could be more than it takes at once, which would end the
    connection.
    """

    def __init__(self, path: str, config: Configuration, max_message: int) -> None:
        super().__init__(path=path, config=config, codec=MessageCodec())
        self.connections = 0
        self.streams: dict[int, Any] = {}
        self._max_message = max_message

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        return PacedProtocol(made.handler, made.config, made.h2_config)

    async def _create_connection(self) -> H2Protocol:
        protocol = await super()._create_connection()
        handler = _Handler()
        protocol.processor.handler = protocol.handler = handler
        prepare(protocol.processor, self._max_message, handler.settled.set)
        try:
            await handler.settled.wait()
            if handler.connection_lost:
                raise StreamTerminatedError("Connection lost")
        except BaseException:
            protocol.processor.close()
            raise
        self.connections += 1
        self.streams = protocol.processor.streams
        return protocol


class GrpclibCalls:
    """One HTTP/2 connection to the server at a path, while there are calls, with the methods of `Channel`."""

    def __init__(self, loop: AsyncioLoop, path: str, *, window: int, max_message: int) -> None:
        self.path = path
        self._loop = loop
        self._max_message = max_message
        self._config = Configuration(http2_connection_window_size=window, http2_stream_window_size=window)
        self._wire: _Wire | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    @property
    def connections(self) -> int:
        return self._wire.connections if self._wire is not None else 0

    @property
    def open_streams(self) -> int:
        return len(self._wire.streams) if self._wire is not None else 0

    async def reach(self, deadline: float) -> None:
        async def connect() -> None:
            await self._opened().__connect__()

        await self._run("", deadline, connect())

    async def unary(
        self,
        method: str,
        request: Message,
        response: type[M],
        *,
        deadline: float,
        metadata: Mapping[str, str] | None,
    ) -> M:
        kind = Cardinality.UNARY_UNARY

        async def call() -> M | None:
            async with self._open(method, kind, request, response, deadline, metadata) as stream:
                await stream.send_message(request, end=True)
                answer: M | None = await stream.recv_message()
            return answer

        answer = await self._run(method, deadline, call())
        if answer is None:
            raise GrpcError(Code.INTERNAL, "the server sent no answer", method)
        return answer

    async def raw(
        self,
        method: str,
        request: Message,
        *,
        streaming: bool,
        deadline: float,
        metadata: Mapping[str, str] | None,
    ) -> Sequence[bytes]:
        cardinality = Cardinality.UNARY_STREAM if streaming else Cardinality.UNARY_UNARY

        async def call() -> list[bytes]:
            async with self._open(method, cardinality, request, bytes, deadline, metadata) as stream:
                await stream.send_message(request, end=True)
                return [message async for message in stream]

        return await self._run(method, deadline, call())

    @asynccontextmanager
    async def stream(
        self, method: str, request: Message, response: type[M], *, opening: float, capacity: int = 16
    ) -> AsyncIterator[Messages[M]]:
        messages: Messages[M] = Messages(capacity)
        async with self.pour(method, request, response, messages, opening=opening):
            yield messages

    @asynccontextmanager
    async def pour(
        self,
        method: str,
        request: Message,
        response: type[M],
        sink: Sink[M],
        *,
        opening: float,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[None]:
        begun = _Begun()
        pump = self._loop.start(self._pump(method, request, response, sink, begun, metadata))
        try:
            with trio.move_on_after(opening):
                await begun.settled.wait()
            if not begun.opened:
                raise begun.error or deadline_exceeded(method)
            yield
        finally:
            pump.cancel()
            with trio.move_on_after(_CLOSE_STREAM_SECONDS) as closing:
                closing.shield = True
                await self._loop.run(_settled(pump))

    async def _pump(
        self,
        method: str,
        request: Message,
        response: type[M],
        sink: Sink[M],
        begun: _Begun,
        metadata: Mapping[str, str] | None,
    ) -> None:
        """The asyncio task of a stream."""
        try:
            kind = Cardinality.UNARY_STREAM
            async with self._open(method, kind, request, response, math.inf, metadata) as stream:
                await stream.send_message(request, end=True)
                begun.opened = True
                begun.settled.set()
                while True:
                    await sink.room()
                    message = await stream.recv_message()
                    if message is None:
                        break
                    sink.put(message)
        except Exception as exc:
            begun.error = self._translate(method, exc)
        except asyncio.CancelledError:
            begun.error = GrpcError(Code.CANCELLED, "context canceled", method)
            raise
        finally:
            sink.close(begun.error)
            begun.settled.set()

    def _open(
        self,
        method: str,
        cardinality: Cardinality,
        request: Message,
        response: type[Any],
        deadline: float,
        metadata: Mapping[str, str] | None = None,
    ) -> Any:
        timeout = None if deadline == math.inf else deadline
        return self._opened().request(
            method, cardinality, type(request), response, timeout=timeout, metadata=metadata
        )

    def _opened(self) -> _Wire:
        """To be asked for on the loop, which grpclib looks for."""
        if self._wire is None:
            tune_h2()
            self._wire = _Wire(self.path, self._config, self._max_message)
        return self._wire

    async def _run(self, method: str, deadline: float, call: Coroutine[Any, Any, T]) -> T:
        try:
            with trio.fail_after(deadline):
                return await self._loop.run(call)
        except trio.TooSlowError:
            raise deadline_exceeded(method) from None
        except LoopClosed:
            raise GrpcError(Code.UNAVAILABLE, "the client is closing", method) from None
        except Exception as exc:
            raise self._translate(method, exc) from exc

    def _translate(self, method: str, exc: Exception) -> GrpcError:
        match exc:
            case GrpcError():
                exc.method = method
                return exc
            case GRPCError():
                return status_error(exc.status.value, exc.message or "", method)
            case TimeoutError():
                return deadline_exceeded(method)
            case StreamTerminatedError():
                return _terminated(str(exc), method)
            case DecodeError():
                return garbled(method)
            case OSError():
                return dial_error(self.path, exc, method)
            case H2Error():
                return ConnectionLost(Code.UNAVAILABLE, f"connection error: {exc}", method)
        return GrpcError(Code.INTERNAL, f"{type(exc).__name__}: {exc}", method)


class _Begun:
    """How far a stream's beginning has come."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.opened = False
        self.error: GrpcError | None = None


async def _settled(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


def _terminated(reason: str, method: str) -> GrpcError:
    """A reset of one stream is the peer's own error, except a refused one; all else is a lost connection."""
    if reason.startswith("Stream reset") and not reason.endswith(_REFUSED_STREAM):
        return GrpcError(Code.INTERNAL, reason, method)
    kind = GrpcError if reason.endswith(_REFUSED_STREAM) else ConnectionLost
    return kind(Code.UNAVAILABLE, f"connection error: {reason}", method)
