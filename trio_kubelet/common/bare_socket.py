"""A connected socket without Trio's own sockets and streams, each call of which lets all other tasks have
their turn first: who exchanges many small messages waits for nothing that can be done at once.
"""

from __future__ import annotations

import socket
import ssl

import trio


class BareSocket:
    """A connected socket that does not block, of TLS or plain. Its methods raise OSError."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def close(self) -> None:
        """At once, whatever is under way."""
        if self.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """All of it."""
        left = memoryview(data)
        while left:
            try:
                left = left[self.sock.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await trio.lowlevel.wait_writable(self.sock)
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self.sock)

    async def receive(self, most: int) -> bytes:
        """At most so many bytes, none when the peer has closed."""
        while True:
            try:
                return self.sock.recv(most)
            except (BlockingIOError, ssl.SSLWantReadError):
                await trio.lowlevel.wait_readable(self.sock)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self.sock)
