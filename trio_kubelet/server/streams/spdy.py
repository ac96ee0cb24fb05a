"""The client's end of SPDY/3.1 (draft-mbelshe-httpbis-spdy-3.1), as far as CRI streaming servers use it.

Those are all built on one Go library, which has no flow control per stream: a reader that waits holds back
the whole connection. Headers are sent without the preset dictionary, which a zlib stream may do without, and
those of the peer, which say nothing here, are skipped.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import trio

from trio_kubelet.common.tls import close_for_good

DATA, SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 0, 1, 2, 3, 6, 7
FIN: Final = 0x01
_CONTROL: Final = 0x8003
_READ: Final = 128 * 1024
_LONGEST_DATA: Final = 1024 * 1024


class Frame(NamedTuple):
    """A frame of the peer; `kind` DATA or a control frame's number."""

    kind: int
    stream: int
    fin: bool
    payload: bytes


class SPDYConnection:
    """One connection, the client's side. One task receives, any may send."""

    def __init__(self, stream: trio.abc.Stream, already_read: bytes = b"") -> None:
        self._stream = stream
        self._unread = bytearray(already_read)
        self._sending = trio.Lock()
        self._next = 1
        self._deflate = zlib.compressobj()

    async def open_stream(self, headers: Mapping[str, str], fin: bool = False) -> int:
        """Opens a stream and returns its number; does not wait for the reply."""
        async with self._sending:
            number, self._next = self._next, self._next + 2
            block = struct.pack("!I", len(headers))
            for name, value in headers.items():
                for text in (name.lower().encode(), value.encode()):
                    block += struct.pack("!I", len(text)) + text
            packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
            await self._control(SYN_STREAM, FIN if fin else 0, struct.pack("!IIBB", number, 0, 0, 0) + packed)
            return number

    async def send(self, stream: int, data: bytes, fin: bool = False) -> None:
        """Sends data on a stream; with `fin` the last there is."""
        view = memoryview(data)
        while True:
            part, view = view[:_LONGEST_DATA], view[_LONGEST_DATA:]
            flags = FIN if fin and not view else 0
            head = struct.pack("!II", stream, flags << 24 | len(part))
            async with self._sending:
                await self._stream.send_all(head + part)
            if not view:
                return

    async def receive(self) -> Frame | None:
        """The next frame that says something about a stream, or that the peer goes; None at the end."""
        while True:
            head = await self._take(8)
            if head is None:
                return None
            first, second = struct.unpack("!II", head)
            flags, size = second >> 24, second & 0xFFFFFF
            payload = await self._take(size)
            if payload is None:
                return None
            if not first >> 31:
                return Frame(DATA, first, bool(flags & FIN), payload)
            kind = first & 0xFFFF
            if kind == PING:
                await self._answer_ping(payload)
            elif kind in (SYN_REPLY, RST_STREAM, GOAWAY) and size >= 4:
                number = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
                return Frame(kind, number, bool(flags & FIN), payload[4:])

    async def aclose(self) -> None:
        """Closes the connection at once."""
        await close_for_good(self._stream)

    async def _answer_ping(self, payload: bytes) -> None:
        if len(payload) == 4 and payload[3] % 2 == 0:  # even numbers are the server's own
            async with self._sending:
                await self._control(PING, 0, payload)

    async def _control(self, kind: int, flags: int, payload: bytes) -> None:
        await self._stream.send_all(struct.pack("!HHI", _CONTROL, kind, flags << 24 | len(payload)) + payload)

    async def _take(self, size: int) -> bytes | None:
        while len(self._unread) < size:
            data = await self._stream.receive_some(_READ)
            if not data:
                return None
            self._unread += data
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken
