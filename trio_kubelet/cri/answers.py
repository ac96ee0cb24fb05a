"""Reading the answers of `cri.direct`: HTTP/2's frames, one stream at a time, out of pieces of any size.

Bytes go in; messages, headers and what the peer is owed come out. Whatever it does not understand raises
GrpcError; after that, the connection is of no more use.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from hpack import Decoder, HPACKError

from trio_kubelet.cri.errors import CRIError, Internal, Unavailable
from trio_kubelet.grpc.framing import MessageReader

MAX_MESSAGE: Final = 1 << 30
"""Bytes of one message that are accepted."""

MAX_FRAME: Final = 1 << 20

PONG_PAUSE: Final = 10.0
"""Seconds that a ping waits for its answer, which goes with the first request after that. Go's server sends
one with each request to measure its way, unless one is unanswered: who answers at once is woken twice for
each call. It gives up a peer after 20 s without an answer where it is told to look for dead ones.
"""

ROOM: Final = 1 << 20
"""Bytes of answers after which the peer is told that there is room for more."""

_MAX_HEADERS: Final = 1 << 16
_MAX_REPLIES: Final = 1 << 12
_BLOCKS: Final = 16

DATA, HEADERS, RST, SETTINGS, PUSH, PING, GOAWAY = 0, 1, 3, 4, 5, 6, 7
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 0x20
_REFUSED_STREAM: Final = 7

_HEAD: Final = struct.Struct(">BHBBI")  # the length's high byte and the rest of it, kind, flags, stream


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


class AnswerReader:
    """Reads the answers that come on one connection, one after the other."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: seconds, by any clock that goes evenly."""
        self._now = now
        self.going_away = False
        self._decoder = Decoder()
        self._blocks: dict[bytes, dict[str, str]] = {}  # header blocks whose meaning is known
        self._stream = 0
        self._messages = MessageReader(MAX_MESSAGE)
        self._found: dict[str, str] = {}  # headers and trailers
        self._ended = False
        self._rest = b""  # the beginning of a frame
        self._missing = 0  # bytes of a frame of data
        self._last = False  # that frame is the answer's last
        self._block: bytes | None = None  # headers to be continued
        self._ends = False  # their end is the answer's
        self._taken = 0  # bytes of answers by which the connection's window has become smaller
        self._replies = b""
        self._pongs = b""
        self._pinged = 0.0  # when the first of the pings came that are not answered

    def begin(self, stream: int, enough: int | None = None) -> None:
        """What comes now is the answer on this stream; `enough` as `MessageReader` has it."""
        self._messages.enough = enough
        self._stream, self._ended = stream, False

    def take(self) -> tuple[list[bytes], dict[str, str]]:
        """An answer that has ended: its messages, and the headers and trailers. It is forgotten here."""
        messages, found = self._messages.take(), self._found
        if not self._messages.is_complete:  # an error was told within a message
            self._messages = MessageReader(MAX_MESSAGE)
        self._found = {}
        return messages, found

    def owed(self) -> bytes:
        """Frames that the peer waits for. They go with the next request: it need not be woken for them.

        Among them is the room in the connection's window that answers took, by the mebibyte; each stream has
        its own window, which ended with it.
        """
        owed, self._replies = self._replies, b""
        if self._pongs and self._now() - self._pinged >= PONG_PAUSE:
            owed, self._pongs = owed + self._pongs, b""
        if self._taken >= ROOM:
            owed += frame(WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big"))
            self._taken = 0
        return owed

    def arrived(self) -> list[bytes]:
        """Of an answer that goes on: the messages that have come since the last call."""
        return self._messages.take()

    def owed_now(self) -> bytes:
        """What the peer waits for while its answer goes on: there is no next request that this could go with,
        and the stream's window is as much in use as the connection's.
        """
        owed, self._replies, self._pongs = self._replies + self._pongs, b"", b""
        if self._taken >= ROOM:
            size, self._taken = self._taken.to_bytes(4, "big"), 0
            owed += frame(WINDOW_UPDATE, 0, 0, size) + frame(WINDOW_UPDATE, 0, self._stream, size)
        return owed

    def feed(self, data: bytes) -> bool:
        """Takes the next bytes; True when they end the answer. What stands behind it waits for the next."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        at = self._data(data, 0) if self._missing else 0
        while not self._ended and len(data) - at >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            length, start = high << 16 | low, at + _HEAD.size
            if length > MAX_FRAME:
                raise Unavailable("connection error: the runtime sent a frame that is too large")
            if (self._block is None) == (kind == CONTINUATION):
                raise Unavailable("connection error: the runtime broke off its headers")
            if kind in (DATA, HEADERS) and stream & 0x7FFFFFFF != self._stream:
                raise Unavailable("connection error: the runtime answered another stream")
            if kind == DATA and not flags & PADDED:
                self._begin_data(length, flags)
                at = self._data(data, start)
                continue
            if len(data) - start < length:
                break
            at = start + length
            self._frame(kind, flags, stream & 0x7FFFFFFF, data[start:at])
        self._rest = data[at:]
        if self._ended and self._found.get("grpc-status") == "0" and not self._messages.is_complete:
            raise Internal("the answer ends within a message")
        return self._ended

    def _begin_data(self, length: int, flags: int) -> None:
        if not self._found:
            raise Unavailable("connection error: the runtime sent data before headers")
        self._missing = length
        self._taken += length
        self._last = flags & END_STREAM != 0
        self._ended = self._last and not length

    def _data(self, data: bytes, start: int) -> int:
        """Takes what is there of a frame of data; where it ends."""
        end = min(start + self._missing, len(data))
        self._messages.feed(memoryview(data)[start:end])
        self._missing -= end - start
        self._ended = self._last and not self._missing
        return end

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._begin_data(len(payload), flags)
            if not payload or payload[0] >= len(payload):
                raise Unavailable("connection error: the runtime sent more padding than data")
            self._missing = 0
            self._messages.feed(memoryview(payload)[1 : len(payload) - payload[0]])
            self._ended = self._last
        elif kind == HEADERS:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]] if payload else b""
            if flags & PRIORITY:
                payload = payload[5:]
            self._ends = flags & END_STREAM != 0
            self._headers(payload, flags)
        elif kind == CONTINUATION:
            self._headers((self._block or b"") + payload, flags)
        elif kind == SETTINGS and not flags & ACK:
            self._replies += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            if not self._pongs:
                self._pinged = self._now()
            self._pongs += frame(PING, ACK, 0, payload)
        elif kind == RST and stream == self._stream:
            raise reset_error(int.from_bytes(payload, "big"))
        elif kind == GOAWAY:
            self.going_away = True
            if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < self._stream:
                raise Unavailable("connection error: the runtime is going away")
        elif kind == PUSH:
            raise Unavailable("connection error: the runtime sent a frame that has no place here")
        if len(self._replies) + len(self._pongs) > _MAX_REPLIES:
            raise Unavailable("connection error: the runtime wants too many answers")

    def _headers(self, block: bytes, flags: int) -> None:
        if flags & END_HEADERS:
            self._block = None
            self._found.update(self._fields(block))
            self._ended = self._ends
        elif len(block) > _MAX_HEADERS:
            raise Unavailable("connection error: the runtime's headers are too large")
        else:
            self._block = block

    def _fields(self, block: bytes) -> dict[str, str]:
        """What a header block says. Most consist of numbers in the table of headers alone: such a block
        leaves the table as it is, and says the same until another kind of block comes.
        """
        if (known := self._blocks.get(block)) is not None:
            return known
        try:
            fields = {text_of(name): text_of(value) for name, value in self._decoder.decode(block)}
        except HPACKError as exc:
            raise Unavailable(f"connection error: the runtime's headers are broken: {exc}") from exc
        if len(self._blocks) >= _BLOCKS or not all(0x80 < byte < 0xFF for byte in block):
            self._blocks.clear()
        else:
            self._blocks[block] = fields
        return fields


def reset_error(code: int) -> CRIError:
    """What a call fails with whose stream the peer has reset."""
    text = f"Stream reset by remote party, error_code: {code}"
    return Unavailable(f"connection error: {text}") if code == _REFUSED_STREAM else Internal(text)


def text_of(value: str | bytes) -> str:
    """A header's name or value."""
    return value.decode("latin-1") if isinstance(value, bytes) else value
