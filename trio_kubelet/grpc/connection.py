"""What grpclib's HTTP/2 connections are given beyond what grpclib does, for its client and its server.

* A message whose prefix announces more than is taken ends its call before it is read.
* A frame that means nothing is passed over, as HTTP/2 asks for; grpclib would end the connection.
* A stream that begins on a connection that was lost meanwhile fails; grpclib would wait for ever.
* A DATA frame is not formatted for h2's trace log that nobody reads: of a list of 8 MB that is half of the
  client's CPU time.
* What a peer sends without a pause, whatever kind of frames it is, has a share of the agent's time; grpclib
  would do nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import StreamTerminatedError
from grpclib.protocol import EventsProcessor, H2Protocol, Stream
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    AlternativeServiceAvailable,
    DataReceived,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    UnknownFrameReceived,
)
from hyperframe.frame import DataFrame

from trio_kubelet.grpc.errors import too_large
from trio_kubelet.grpc.framing import Splitter, announced

# h2 remembers streams that have ended, to know frames for them that come late. Its own 65,536 are megabytes.
_REMEMBERED_STREAMS: Final = 4096
_CHUNK: Final = 16 << 10
"""Bytes that are taken at once: of the smallest frames, which cost the most, a thousand."""
_BURST: Final = 0.05
"""Seconds of work for one connection after which it has its share."""
_SHARE: Final = 0.2
_MOST_UNREAD: Final = 1 << 20
"""Bytes that wait for a peer which does not read: answers to its pings mostly, calls wait for room."""


class PacedProtocol(H2Protocol):
    """A connection whose peer has a fifth of the agent's time when it sends without a pause, and is hung up
    on when it does not read what it is sent.
    """

    _worked = 0.0
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._transport = transport
        transport.max_size = _CHUNK

    def data_received(self, data: bytes) -> None:
        now, began = time.monotonic(), time.thread_time()
        self._worked = max(0.0, self._worked - _SHARE * (now - self._since))
        self._since = now
        super().data_received(data)
        self._worked += time.thread_time() - began
        if self._transport.get_write_buffer_size() > _MOST_UNREAD:
            self._transport.abort()
        elif self._worked > _BURST:
            self._transport.pause_reading()
            rest = (self._worked - _BURST) / _SHARE
            asyncio.get_running_loop().call_later(rest, self._transport.resume_reading)


class MessageCodec(CodecBase):
    """Messages of protobuf, or, where the type is bytes, messages as they are on the wire."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return message if isinstance(message, bytes) else message.SerializeToString()

    def decode(self, data: bytes, message_type: type[Message] | type[bytes]) -> Any:
        return data if message_type is bytes else message_type.FromString(data)  # type: ignore[union-attr]


def prepare(processor: EventsProcessor, max_message: int, settled: Callable[[], None] | None = None) -> None:
    """Fits out a connection; `settled` is called when the peer has said what it allows."""
    splitters: dict[Stream, Splitter] = {}
    register, data_received = processor.register, processor.process_data_received

    def registered(stream: Stream) -> Callable[[], None]:
        if processor.connection.is_closing():
            raise StreamTerminatedError("Connection lost")
        splitters[stream] = Splitter()
        release = register(stream)

        def released() -> None:
            del splitters[stream]
            release()

        return released

    def received(event: DataReceived) -> None:
        stream = processor.streams.get(event.stream_id or 0)
        size = announced(splitters[stream], event.data or b"") if stream is not None else 0
        if stream is None or size <= max_message:
            data_received(event)
            return
        if stream.closable:
            stream.reset_nowait(ErrorCodes.CANCEL)
        if stream.wrapper is not None:
            stream.wrapper.cancel(too_large(size, max_message))

    processor.register = registered  # type: ignore[method-assign]
    processors: Any = processor.processors
    processors[DataReceived] = received
    for event in (UnknownFrameReceived, InformationalResponseReceived, AlternativeServiceAvailable):
        processors[event] = _pass_over
    if settled is not None:
        settings_changed, then = processor.process_remote_settings_changed, settled

        def told(event: RemoteSettingsChanged) -> None:
            settings_changed(event)
            then()

        processors[RemoteSettingsChanged] = told


def _pass_over(event: object) -> None:
    """Nothing to be done."""


@functools.cache
def tune_h2() -> None:
    """Once in a process: less memory and less formatting."""
    H2Connection.MAX_CLOSED_STREAMS = _REMEMBERED_STREAMS
    DataFrame.__repr__ = _data_frame  # type: ignore[method-assign, assignment]


def _data_frame(frame: DataFrame) -> str:
    return f"<{len(frame.data)} bytes>"
