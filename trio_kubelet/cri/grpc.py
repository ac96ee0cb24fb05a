"""The gRPC channel to a runtime's unix socket: grpclib on Trio, behind the `Caller` seam.

Two HTTP/2 connections per socket. One carries ordinary calls and the event stream with protobuf messages; the
other carries the lists, whose answers are passed on as raw bytes, so that megabytes of list neither become
Python objects nor stand in the way of a small call. The agent makes most calls by `cri.direct`: grpclib
takes a millisecond of CPU for each, half of all that a node at rest needs. Left to it are the event
stream, large requests, and calls beyond the number that may have connections of their own.

What is left to the callers: back-off after `Unavailable` (a channel connects anew at the next call, by
itself), and finding out whether a call that ended in an error was executed.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import trio
from google.protobuf.message import Message
from grpclib.client import Channel, Handler
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from h2.connection import H2Connection
from h2.events import (
    AlternativeServiceAvailable,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    UnknownFrameReceived,
)
from h2.exceptions import H2Error
from hyperframe.frame import DataFrame

from trio_kubelet.cri.caller import PATHS, CallHook, M
from trio_kubelet.cri.client import ContainerEvent
from trio_kubelet.cri.direct import MAX_REQUEST, DirectCalls
from trio_kubelet.cri.errors import Code, CRIError, DeadlineExceeded, Internal, Unavailable, cri_error
from trio_kubelet.cri.event_queue import EventQueue
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.loop import AsyncioLoop, LoopClosed

T = TypeVar("T")

# A list answer fits in one window, so that the runtime never waits for us in the middle of it.
_WINDOW: Final = 64 << 20
# h2 remembers streams that have ended, to know frames for them that come late. Its own 65,536 are megabytes.
_REMEMBERED_STREAMS: Final = 4096
_OPEN_STREAM_SECONDS: Final = 30.0
_CLOSE_STREAM_SECONDS: Final = 5.0
# Each connection is some tens of kilobytes in the runtime, and one more thing it has to poll.
_DIRECT_CALLS: Final = 32
_DIRECT_KEPT: Final = 4


class RawCodec(CodecBase):
    """Requests are protobuf messages, answers stay bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Message, message_type: Any) -> bytes:
        return message.SerializeToString()

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class _Handler(Handler):
    """Knows when a connection is ready: the peer has said what it allows."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()

    def close(self) -> None:
        super().close()
        self.settled.set()


class CRIChannel(Channel):
    """A channel that counts its connections and passes over frames that mean nothing to it.

    HTTP/2 asks for the latter; grpclib would end the connection over an unknown frame. Nor does it wait for
    the peer's settings: many calls at once would be more streams than the peer takes, and end the connection.
    """

    connections = 0

    async def _create_connection(self) -> H2Protocol:
        protocol = await super()._create_connection()
        self.connections += 1
        processor, handler = protocol.processor, _Handler()
        processor.handler = protocol.handler = handler
        for event in (UnknownFrameReceived, InformationalResponseReceived, AlternativeServiceAvailable):
            processor.processors[event] = _pass_over
        settings_changed = processor.process_remote_settings_changed

        def settled(event: RemoteSettingsChanged) -> None:
            settings_changed(event)
            handler.settled.set()

        processor.processors[RemoteSettingsChanged] = settled
        try:
            await handler.settled.wait()
            if handler.connection_lost:
                raise StreamTerminatedError("Connection lost")
        except BaseException:
            processor.close()
            raise
        return protocol

    async def send(self, stream: Any, request: Message) -> None:
        """Sends the request of a new stream.

        A connection that was lost between its opening and the stream's would never answer, and grpclib would
        not notice: from here on it does.
        """
        await stream.send_message(request, end=True)
        if stream._stream.connection.is_closing():
            raise StreamTerminatedError("Connection lost")


def _pass_over(event: object) -> None:
    """Nothing to be done."""


class GrpcCaller:
    """Carries CRI calls to the runtime behind one unix socket.

    To be created, used and closed inside the context of `loop`. Connecting happens at the first call. With
    `direct`, calls do without grpclib where they can (`cri.direct`).
    """

    def __init__(
        self, loop: AsyncioLoop, path: str, on_call: CallHook | None = None, direct: bool = False
    ) -> None:
        silence_data_frames()
        H2Connection.MAX_CLOSED_STREAMS = _REMEMBERED_STREAMS
        self._loop = loop
        self._path = path
        self._on_call = on_call
        self._calls: CRIChannel | None = None
        self._lists: CRIChannel | None = None
        self._direct_calls = DirectCalls(path, _DIRECT_CALLS, _DIRECT_KEPT) if direct else None
        self._direct_lists = DirectCalls(path) if direct else None

    def close(self) -> None:
        """Closes the connections; calls in flight fail with `Unavailable`."""
        for channel in (self._calls, self._lists, self._direct_calls, self._direct_lists):
            if channel is not None:
                channel.close()

    def connection(self) -> int:
        lists = self._direct_lists or self._lists
        return lists.connections if lists is not None else 0

    def open_streams(self) -> int:
        """How many calls and event streams are under way on the wire."""
        protocols = [c._protocol for c in (self._calls, self._lists) if c is not None]
        streams = sum(len(protocol.processor.streams) for protocol in protocols if protocol is not None)
        return streams + sum(d.under_way() for d in (self._direct_calls, self._direct_lists) if d is not None)

    async def unary(self, method: str, request: Message, response: type[M], timeout: float) -> M:
        async def call() -> M:
            channel = self._call_channel()
            async with self._open(channel, method, request, response) as stream:
                await channel.send(stream, request)
                answer: M | None = await stream.recv_message()
            if answer is None:
                raise Internal(_NO_ANSWER, method)
            return answer

        direct = self._direct_calls
        if direct is None or direct.is_full() or request.ByteSize() > MAX_REQUEST:
            return await self._run(method, timeout, lambda: self._loop.run(call()))

        async def direct_call() -> M:
            messages = await direct.call(method, request.SerializeToString())
            if len(messages) != 1:
                raise Internal(_NO_ANSWER, method)
            return response.FromString(messages[0])

        return await self._run(method, timeout, direct_call)

    async def raw(self, method: str, request: Message, timeout: float) -> Sequence[bytes]:
        async def call() -> list[bytes]:
            messages = []
            self._lists = channel = self._lists or self._channel(RawCodec())
            async with self._open(channel, method, request, bytes) as stream:
                await channel.send(stream, request)
                async for message in stream:
                    messages.append(message)
            return messages

        async def lists() -> Sequence[bytes]:
            if self._direct_lists is not None:
                messages = await self._direct_lists.call(method, request.SerializeToString())
            else:
                messages = await self._loop.run(call())
            if not messages and not _is_streaming(method):
                raise Internal(_NO_ANSWER, method)
            return messages

        return await self._run(method, timeout, lists)

    @asynccontextmanager
    async def events(self, capacity: int) -> AsyncIterator[AsyncIterator[ContainerEvent]]:
        method, begin = "GetContainerEvents", trio.current_time()
        queue = EventQueue(capacity)
        opened, settled = trio.Event(), trio.Event()
        pump = self._loop.start(self._pump(queue, opened, settled))
        try:
            with trio.move_on_after(_OPEN_STREAM_SECONDS):
                await settled.wait()
            if not opened.is_set():
                raise self._failed(method, begin, queue.error or DeadlineExceeded(_DEADLINE, method))
            self._report(method, begin, Code.OK)
            yield queue
        finally:
            pump.cancel()
            with trio.move_on_after(_CLOSE_STREAM_SECONDS) as closing:
                closing.shield = True
                await self._loop.run(asyncio.wait({pump}))

    async def _pump(self, queue: EventQueue, opened: trio.Event, settled: trio.Event) -> None:
        """The asyncio task of an event stream. What the runtime answers to an open stream is in the queue."""
        method, request = "GetContainerEvents", cri.GetEventsRequest()
        error: CRIError | None = None
        try:
            channel = self._call_channel()
            async with self._open(channel, method, request, cri.ContainerEventResponse) as stream:
                await channel.send(stream, request)
                opened.set()
                settled.set()
                async for event in stream:
                    queue.put(event)
        except Exception as exc:
            error = self._translate(method, exc)
        finally:
            queue.close(error)
            settled.set()

    def _call_channel(self) -> CRIChannel:
        self._calls = self._calls or self._channel(None)
        return self._calls

    def _channel(self, codec: CodecBase | None) -> CRIChannel:
        """To be called on the asyncio loop, which grpclib looks for."""
        config = Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW)
        return CRIChannel(path=self._path, config=config, codec=codec)

    def _open(self, channel: CRIChannel, method: str, request: Message, response: type[Any]) -> Any:
        cardinality = Cardinality.UNARY_STREAM if _is_streaming(method) else Cardinality.UNARY_UNARY
        return channel.request(PATHS[method], cardinality, type(request), response)

    async def _run(self, method: str, timeout: float, call: Callable[[], Awaitable[T]]) -> T:
        """Runs a call with its deadline; whatever goes wrong in it comes out as a CRIError."""
        begin = trio.current_time()
        try:
            with trio.fail_after(timeout):
                result = await call()
        except trio.TooSlowError:
            raise self._failed(method, begin, DeadlineExceeded(_DEADLINE, method)) from None
        except LoopClosed:
            raise self._failed(method, begin, Unavailable("the client is closing", method)) from None
        except trio.Cancelled:
            self._report(method, begin, Code.CANCELLED)
            raise
        except Exception as exc:
            raise self._failed(method, begin, self._translate(method, exc)) from exc
        self._report(method, begin, Code.OK)
        return result

    def _failed(self, method: str, begin: float, error: CRIError) -> CRIError:
        self._report(method, begin, error.code)
        return error

    def _report(self, method: str, begin: float, code: Code) -> None:
        if self._on_call is not None:
            self._on_call(method, trio.current_time() - begin, code)

    def _translate(self, method: str, exc: Exception) -> CRIError:
        if isinstance(exc, CRIError):
            return exc
        if isinstance(exc, GRPCError):
            return cri_error(exc.status.value, exc.message or "", method)
        if isinstance(exc, StreamTerminatedError):
            return _terminated(str(exc), method)
        if isinstance(exc, OSError):
            return Unavailable(_dial_error(self._path, exc), method)
        if isinstance(exc, H2Error):
            return Unavailable(f"connection error: {exc}", method)
        return Internal(f"{type(exc).__name__}: {exc}", method)


def _is_streaming(method: str) -> bool:
    return method == "GetContainerEvents" or method.startswith("Stream")


_DEADLINE: Final = "context deadline exceeded"
_NO_ANSWER: Final = "the runtime sent no answer"
_REFUSED_STREAM: Final = "error_code: 7"


def _terminated(reason: str, method: str) -> CRIError:
    """A reset of one stream is the peer's own error, except a refused one; all else is a lost connection."""
    if reason.startswith("Stream reset") and not reason.endswith(_REFUSED_STREAM):
        return Internal(reason, method)
    return Unavailable(f"connection error: {reason}", method)


def _dial_error(path: str, exc: OSError) -> str:
    """The text of Go's gRPC client, which ends up in node conditions and events."""
    number = exc.errno or errno.EIO
    return (
        'connection error: desc = "transport: Error while dialing: '
        f'dial unix {path}: connect: {os.strerror(number).lower()}"'
    )


def silence_data_frames() -> None:
    """Keeps h2 from formatting each DATA frame for a trace log that nobody reads.

    h2 computes `repr(frame)` before it asks whether tracing is on; for a list of 8 MB that is half of the
    client's CPU time. The representation of DATA frames becomes their length.
    """

    def body_repr(frame: DataFrame) -> str:
        return f"<{len(frame.data)} bytes>"

    DataFrame._body_repr = body_repr  # type: ignore[method-assign, assignment]
