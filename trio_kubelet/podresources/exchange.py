"""One connection of a small gRPC server: unary calls over HTTP/2, without any I/O.

Bytes go in, bytes to be sent come out; the answer to a call is made the moment its request is complete. For
three small calls on a local socket a gRPC library would bring an event loop of its own and no bounds on what
a peer may send; here a peer can hold a few requests of some kilobytes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import msgspec

from trio_kubelet.grpc.errors import Code, GrpcError, too_large
from trio_kubelet.grpc.framing import CONTENT_TYPE, PREFIX, frame, read_prefix, status_headers

MAX_STREAMS: Final = 32
MAX_REQUEST: Final = 64 * 1024
MAX_HEADERS: Final = 16 * 1024
MAX_QUIET: Final = 64 * 1024
"""Bytes that may come without making sense yet; h2 would keep 16 MiB before it finds a frame too long."""

_OPENING: Final = ((":status", "200"), ("content-type", CONTENT_TYPE))


class Broken(Exception):
    """The peer does not speak HTTP/2; the connection is to be closed after what is left to be sent."""


Call = Callable[[str, bytes], bytes]
"""Answers a call: path and request to answer. Raises GrpcError."""


class _Stream(msgspec.Struct):
    path: str
    refused: GrpcError | None = None
    request: bytearray = msgspec.field(default_factory=bytearray)
    waiting: bytes = b""  # of the answer, for the peer to have room
    answered: bool = False


class Exchange:
    """A connection with one peer."""

    def __init__(self, call: Call) -> None:
        self._call = call
        # Clients on unix sockets name all sorts of authorities, or none.
        config = h2.config.H2Configuration(
            client_side=False, header_encoding=None, validate_inbound_headers=False
        )
        self._http = h2.connection.H2Connection(config)
        self._http.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: MAX_REQUEST,
            },
        )
        self._streams: dict[int, _Stream] = {}
        self._quiet = 0
        self._has_answered = False
        self.ended = False

    def begin(self) -> bytes:
        """What is sent first."""
        self._http.initiate_connection()
        return self._http.data_to_send()

    def idle(self) -> bool:
        """Whether there have been calls and none is under way."""
        return self._has_answered and not self._streams

    def received(self, data: bytes) -> bytes:
        """Takes what came; what is to be sent. Raises Broken, whose argument is what is left to be sent."""
        try:
            events = self._http.receive_data(data)
            for event in events:
                self._handle(event)
        except (h2.exceptions.H2Error, UnicodeError) as exc:
            raise Broken(self._http.data_to_send()) from exc
        self._quiet = 0 if events else self._quiet + len(data)
        if self._quiet > MAX_QUIET:
            raise Broken(b"")
        return self._http.data_to_send()

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(number)):
                self._streams[number] = _begin(dict(event.headers or ()))
            case h2.events.DataReceived(stream_id=int(number)):
                self._take(number, event.data or b"", event.flow_controlled_length or 0)
            case h2.events.StreamEnded(stream_id=int(number)):
                if number in self._streams:
                    self._answer(number, self._streams[number])
            case h2.events.StreamReset(stream_id=int(number)):
                self._streams.pop(number, None)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for number, stream in tuple(self._streams.items()):
                    self._send(number, stream)
            case h2.events.ConnectionTerminated():
                self.ended = True

    def _take(self, number: int, data: bytes, counted: int) -> None:
        stream = self._streams.get(number)
        self._http.acknowledge_received_data(counted, number)
        if stream is None or stream.answered:
            return
        if len(stream.request) + len(data) > MAX_REQUEST + PREFIX:
            size = len(stream.request) + len(data) - PREFIX
            self._fail(number, too_large(size, MAX_REQUEST))
            self._http.reset_stream(number, h2.errors.ErrorCodes.NO_ERROR)
            del self._streams[number]
            return
        stream.request += data

    def _answer(self, number: int, stream: _Stream) -> None:
        stream.answered = self._has_answered = True
        try:
            if stream.refused is not None:
                raise stream.refused
            answer = self._call(stream.path, _message(bytes(stream.request)))
        except GrpcError as exc:
            self._fail(number, exc)
            del self._streams[number]
            return
        self._http.send_headers(number, _OPENING)
        stream.waiting = frame(answer)
        self._send(number, stream)

    def _send(self, number: int, stream: _Stream) -> None:
        """As much of the answer as the peer has room for, and its end."""
        if not stream.answered:
            return
        while stream.waiting:
            room = min(self._http.local_flow_control_window(number), self._http.max_outbound_frame_size)
            if room <= 0:
                return
            self._http.send_data(number, stream.waiting[:room])
            stream.waiting = stream.waiting[room:]
        self._http.send_headers(number, tuple(status_headers().items()), end_stream=True)
        del self._streams[number]

    def _fail(self, number: int, error: GrpcError) -> None:
        headers = (*_OPENING, *status_headers(error).items())
        self._http.send_headers(number, headers, end_stream=True)


def _begin(headers: dict[bytes, bytes]) -> _Stream:
    path = headers.get(b":path", b"").decode("ascii", "replace")
    kind = headers.get(b"content-type", b"")
    if headers.get(b":method") != b"POST" or not kind.startswith(CONTENT_TYPE.encode()):
        return _Stream(path, GrpcError(Code.INTERNAL, "not a gRPC request"))
    return _Stream(path)


def _message(request: bytes) -> bytes:
    """The one message of a unary request, out of its frame. Raises GrpcError."""
    if len(request) < PREFIX:
        raise GrpcError(Code.INTERNAL, "the request has no message")
    compressed, length = read_prefix(request)
    if compressed:
        raise GrpcError(Code.UNIMPLEMENTED, "compressed requests are not supported")
    if len(request) != PREFIX + length:
        raise GrpcError(Code.INTERNAL, "the request is not one message")
    return request[PREFIX:]
