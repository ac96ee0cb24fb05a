"""The server's end of a WebSocket connection (RFC 6455), for whole binary messages.

Small on purpose: what it does at the speed of memory is taking the mask off, which decides the rate of large
uploads.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import Final

import trio

_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LONGEST_MESSAGE: Final = 16 * 1024 * 1024
_READ: Final = 128 * 1024
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0, 2, 8, 9, 10
_CONTROL = 8


class WebSocketError(Exception):
    """The peer broke a rule of the protocol."""


def accept_key(key: str) -> str:
    """`Sec-WebSocket-Accept` for a `Sec-WebSocket-Key`."""
    return base64.b64encode(
        hashlib.sha1(key.encode() + _ACCEPT_SUFFIX, usedforsecurity=False).digest()
    ).decode()


def switch_head(key: str, protocol: str) -> bytes:
    """The answer that switches to WebSocket; `protocol` "" for none."""
    chosen = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(key)}\r\n{chosen}\r\n"
    ).encode()


def masked(data: bytes | bytearray | memoryview, mask: bytes) -> bytes:
    """Puts a mask of four bytes on, or takes it off."""
    size = len(data)
    pattern = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ pattern).to_bytes(size, "little")


class WebSocket:
    """One connection. One task receives, any may send."""

    def __init__(self, stream: trio.abc.Stream, already_read: bytes) -> None:
        self._stream = stream
        self._unread = bytearray(already_read)
        self._sending = trio.Lock()
        self._closing = False

    async def receive(self) -> bytes | None:
        """The next message, None when the peer closed. Raises WebSocketError, trio.BrokenResourceError."""
        parts: list[bytes] = []
        size = 0
        while True:
            final, kind, payload = await self._frame(_LONGEST_MESSAGE - size)
            if kind == _CLOSE:
                await self.close(payload[:2])
                return None
            if kind == _PING:
                await self._send(_PONG, payload)
            if kind >= _CONTROL:
                continue
            if (kind == _CONTINUATION) != bool(parts):
                raise WebSocketError("message parts out of order")
            parts.append(payload)
            size += len(payload)
            if final:
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def send(self, payload: bytes) -> None:
        """Sends one binary message."""
        await self._send(_BINARY, payload)

    async def close(self, code: bytes = b"\x03\xe8") -> None:
        """Says goodbye once; the connection is the caller's to close."""
        if not self._closing:
            self._closing = True
            await self._send(_CLOSE, code)

    async def _send(self, kind: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", 0x80 | kind, size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | kind, 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 127, size)
        async with self._sending:
            await self._stream.send_all(head + payload)

    async def _frame(self, longest: int) -> tuple[bool, int, bytes]:
        first, second = await self._take(2)
        final, kind, size = bool(first & 0x80), first & 0x0F, second & 0x7F
        if not second & 0x80:
            raise WebSocketError("a client's frames are masked")
        if first & 0x70:
            raise WebSocketError("unknown extension")
        if kind >= _CONTROL and (size > 125 or not final):
            raise WebSocketError("control frame too long")
        if size == 126:
            size = int.from_bytes(await self._take(2), "big")
        elif size == 127:
            size = int.from_bytes(await self._take(8), "big")
        if size > longest:
            raise WebSocketError("message too long")
        mask = await self._take(4)
        return final, kind, masked(await self._take(size), mask)

    async def _take(self, size: int) -> bytes:
        while len(self._unread) < size:
            data = await self._stream.receive_some(_READ)
            if not data:
                raise trio.BrokenResourceError("the connection ended without a goodbye")
            self._unread += data
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken
