"""One HTTP/2 connection to the runtime with one stream at a time, for the calls of `cri.direct`.

It is used without Trio's own socket, each call of which lets all other tasks have their turn first: small
requests and answers wait for nothing.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import trio
from hpack import Encoder, NeverIndexedHeaderTuple

from trio_kubelet.cri import answers
from trio_kubelet.cri.answers import AnswerReader, frame
from trio_kubelet.cri.errors import ResourceExhausted, Unavailable
from trio_kubelet.grpc import framing
from trio_kubelet.grpc.framing import call_headers

MAX_REQUEST: Final = 16384 - framing.PREFIX
"""Bytes of a request: what fits into one frame of a peer that has said nothing about frames."""

_FIRST_CHUNK: Final = 1 << 14
_CHUNK: Final = 1 << 18
_MAX_WINDOW: Final = (1 << 31) - 1
_INITIAL_WINDOW: Final = (1 << 16) - 1
_LAST_STREAM: Final = 1 << 30

_READS: Final = 4  # one after the other, of an answer that is there

Found: TypeAlias = tuple[list[bytes], dict[str, str]]
"""A whole answer: its messages, and the headers and trailers."""

Take: TypeAlias = Callable[[bytes], None]
"""Takes one message of an answer that goes on."""


def _setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


_HELLO: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    # no server push, windows and frames as large as can be
    + frame(
        answers.SETTINGS,
        0,
        0,
        _setting(2, 0) + _setting(4, _MAX_WINDOW) + _setting(5, answers.MAX_FRAME),
    )
    + frame(answers.WINDOW_UPDATE, 0, 0, (_MAX_WINDOW - _INITIAL_WINDOW).to_bytes(4, "big"))
)


@functools.cache
def request_headers(path: str) -> bytes:
    """The header block of calls of one method, which refers to no table: the same for all."""
    return _header_block(call_headers(path, "localhost"))


def _header_block(fields: Mapping[str, str]) -> bytes:
    literal = [NeverIndexedHeaderTuple(name, value) for name, value in fields.items()]
    block: bytes = Encoder().encode(literal, huffman=False)
    return block


class CallConnection:
    """One HTTP/2 connection with one stream at a time. Any exception leaves it unusable."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` does not block."""
        self._socket = sock
        self.is_overdue = False
        self._reader = AnswerReader(time.monotonic)
        self._next_stream = 1
        self._hello = _HELLO  # goes with the first request; the peer's own settings come with its answer

    @classmethod
    def open(cls, path: str) -> CallConnection:
        """Connects to a unix socket. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(path)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    def fileno(self) -> int:
        """The socket's descriptor; -1 once it is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """At once, whatever is under way."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def is_usable(self) -> bool:
        """Whether another call may be sent: the peer has not closed it, and takes more."""
        if self._reader.going_away or self._next_stream > _LAST_STREAM:
            return False
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def call(
        self,
        path: str,
        body: bytes,
        metadata: Mapping[str, str] | None,
        enough: int | None,
    ) -> Found:
        """Sends a request and reads the answer to its end."""
        await self._send(self._request(path, body, metadata, enough))
        found = None
        while found is None:
            await trio.lowlevel.wait_readable(self._socket)
            found = self._arrived()
        return found

    def _arrived(self) -> Found | None:
        """The answer, once it is there whole. Takes what has come of it, up to a mebibyte."""
        most = _FIRST_CHUNK  # bytes that are asked for at once
        for _ in range(_READS):
            chunk = self._received(most)
            if chunk and self._reader.feed(chunk):
                return self._reader.take()
            if len(chunk) < most:
                break
            most = _CHUNK
        return None

    async def ask(self, path: str, body: bytes, metadata: Mapping[str, str] | None) -> None:
        """Sends a request whose answer goes on."""
        await self._send(self._request(path, body, metadata))

    async def listen(self, take: Take) -> dict[str, str]:
        """Hands over the answer's messages as they come; its headers and trailers at its end."""
        reader, ended = self._reader, False
        while not ended:
            await trio.lowlevel.wait_readable(self._socket)
            ended = reader.feed(self._received(_CHUNK))
            for message in reader.arrived():
                take(message)
            if owed := reader.owed_now():
                await self._send(owed)
        return reader.take()[1]

    def _request(
        self, path: str, body: bytes, metadata: Mapping[str, str] | None, enough: int | None = None
    ) -> bytes:
        """What is sent for a call, on a stream of its own."""
        if len(body) > MAX_REQUEST:
            raise ResourceExhausted("the request is too large for one frame")
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        headers = request_headers(path) + _header_block(metadata) if metadata else request_headers(path)
        head = frame(answers.HEADERS, answers.END_HEADERS, stream, headers)
        data = frame(answers.DATA, answers.END_STREAM, stream, framing.frame(body))
        self._reader.begin(stream, enough)
        hello, self._hello = self._hello, b""
        return hello + self._reader.owed() + head + data

    def _received(self, most: int) -> bytes:
        """The next bytes, at most so many; none if none have come."""
        try:
            chunk = self._socket.recv(most)
        except BlockingIOError:
            return b""
        except OSError as exc:
            raise trio.BrokenResourceError from exc
        if not chunk:
            raise Unavailable("connection error: Connection lost")
        return chunk

    async def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as exc:
                raise trio.BrokenResourceError from exc
