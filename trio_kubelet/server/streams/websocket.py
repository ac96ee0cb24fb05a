"""The server's end of a WebSocket connection (RFC 6455), for whole messages: wsproto on a Trio stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, generate_accept_token

_LONGEST_MESSAGE: Final = 16 * 1024 * 1024
"""kubectl copies input in pieces of 32 KiB, but some libraries send all of it in one message."""
_READ: Final = 16 * 1024
"""Bytes taken in one turn, for they may be thousands of frames."""


class WebSocketError(Exception):
    """The peer broke a rule of the protocol."""


def switch_head(key: str, protocol: str) -> bytes:
    """The answer that switches to WebSocket; `protocol` "" for none."""
    chosen = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {generate_accept_token(key.encode()).decode()}\r\n{chosen}\r\n"
    ).encode()


class WebSocket:
    """One connection. One task receives, any may send. `longest` bounds the messages of the peer, in
    bytes.
    """

    def __init__(self, stream: trio.abc.Stream, already_read: bytes, longest: int = _LONGEST_MESSAGE) -> None:
        self._stream = stream
        self._longest = longest
        self._ahead = already_read
        self._wire = Connection(ConnectionType.SERVER)
        self._events: Iterator[Event] = self._wire.events()
        self._sending = trio.Lock()

    async def receive(self) -> bytes | None:
        """The next message, None when the peer closed. Raises WebSocketError, trio.BrokenResourceError."""
        message = bytearray()
        while True:
            match await self._event():
                case BytesMessage() | TextMessage() as part:
                    data = part.data.encode() if isinstance(part.data, str) else part.data
                    if len(message) + len(data) > self._longest:
                        raise WebSocketError("message too long")
                    if part.message_finished and not message:
                        return bytes(data)
                    message += data
                    if part.message_finished:
                        return bytes(message)
                case Ping() as ping:
                    await self._send(ping.response())
                case CloseConnection() as goodbye:
                    if self._wire.state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
                        raise WebSocketError(goodbye.reason)  # what wsproto makes of a broken rule
                    await self._send(goodbye.response())
                    return None

    async def send(self, payload: bytes) -> None:
        """Sends one binary message; nothing after a goodbye."""
        await self._send(BytesMessage(data=payload))

    async def close(self) -> None:
        """Says goodbye once; the connection is the caller's to close."""
        await self._send(CloseConnection(code=1000))

    async def _send(self, event: Event) -> None:
        async with self._sending:
            with contextlib.suppress(LocalProtocolError):  # nothing is said after a goodbye
                await self._stream.send_all(self._wire.send(event))

    async def _event(self) -> Event:
        while (event := next(self._events, None)) is None:
            if self._ahead:
                await trio.lowlevel.checkpoint()
                data, self._ahead = self._ahead[:_READ], self._ahead[_READ:]
            else:
                data = bytes(await self._stream.receive_some(_READ))
            if not data:
                raise trio.BrokenResourceError("the connection ended without a goodbye")
            self._wire.receive_data(data)
            self._events = self._wire.events()
        return event
