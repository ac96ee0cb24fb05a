"""Calls by the shortest way: a minimal gRPC client on Trio sockets.

A relist reads megabytes each second on a large node, and exec probes are most of what a node at rest asks of
its runtime. A complete HTTP/2 stack spends most of its time per frame on things that a local call does not
need: priorities, many streams, windows that are never full. This client does one call at a time on a
connection, checks what it reads, gives the peer the largest windows there are, and joins the answer's bytes
once. Whatever it does not understand ends the connection with an error; the next call opens a new one.

A cancelled call closes its connection, which ends the call in the runtime as a reset of its stream would.
"""

from __future__ import annotations

import functools
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import trio
from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

from trio_kubelet.cri.caller import PATHS
from trio_kubelet.cri.errors import CRIError, Internal, ResourceExhausted, Unavailable, cri_error
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.framing import (
    HTTP_CODES,
    PREFIX,
    MessageReader,
    call_headers,
    frame,
    told_message,
)

MAX_MESSAGE: Final = 1 << 30
"""Bytes of one message that are accepted."""

MAX_REQUEST: Final = 16384 - PREFIX
"""Bytes of a request: what fits into one frame of a peer that has said nothing about frames."""

_FIRST_CHUNK: Final = 1 << 14
_CHUNK: Final = 1 << 18
_MAX_FRAME: Final = 1 << 20
_MAX_WINDOW: Final = (1 << 31) - 1
_INITIAL_WINDOW: Final = (1 << 16) - 1
_MAX_HEADERS: Final = 1 << 16
_BLOCKS: Final = 16
_LAST_STREAM: Final = 1 << 30

_DATA, _HEADERS, _RST, _SETTINGS, _PUSH, _PING, _GOAWAY = 0, 1, 3, 4, 5, 6, 7
_WINDOW_UPDATE, _CONTINUATION = 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 0x20
_REFUSED_STREAM: Final = 7


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _setting(number: int, value: int) -> bytes:
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


_HELLO: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    # no server push, windows and frames as large as can be
    + _frame(
        _SETTINGS,
        0,
        0,
        _setting(2, 0) + _setting(4, _MAX_WINDOW) + _setting(5, _MAX_FRAME),
    )
    + _frame(_WINDOW_UPDATE, 0, 0, (_MAX_WINDOW - _INITIAL_WINDOW).to_bytes(4, "big"))
)


@functools.cache
def _request_headers(path: str) -> bytes:
    """The header block of calls of one method, which refers to no table: the same for all."""
    return _header_block(call_headers(path, "localhost"))


def _header_block(fields: Mapping[str, str]) -> bytes:
    literal = [NeverIndexedHeaderTuple(name, value) for name, value in fields.items()]
    block: bytes = Encoder().encode(literal, huffman=False)
    return block


class _Connection:
    """One HTTP/2 connection with one stream at a time. Any exception leaves it unusable."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock` does not block. It is used without Trio's own socket, each call of which lets all other
        tasks have their turn first: small requests and answers wait for nothing.
        """
        self._socket = sock
        self._chunk = memoryview(b"")
        self._most = _FIRST_CHUNK  # bytes that are asked for at once
        self._decoder = Decoder()
        self._blocks: dict[bytes, dict[str, str]] = {}  # header blocks whose meaning is known
        self._next_stream = 1
        self._reply = b""
        self._taken = 0  # bytes of answers by which the connection's window has become smaller
        self._going_away = False

    def close(self) -> None:
        """At once, whatever is under way."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def is_usable(self) -> bool:
        """Whether another call may be sent: the peer has not closed it, and there are stream numbers left."""
        if self._going_away or self._next_stream > _LAST_STREAM:
            return False
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def hello(self) -> None:
        """Opens the conversation; the peer's own settings are read with the first answer."""
        await self._send(_HELLO)

    async def call(
        self, path: str, body: bytes, metadata: Mapping[str, str] | None
    ) -> tuple[list[bytes], dict[str, str]]:
        """Sends a request and reads the answer to its end: the messages, and the headers and trailers."""
        stream_id = self._next_stream
        self._next_stream += 2
        if len(body) > MAX_REQUEST:
            raise ResourceExhausted("the request is too large for one frame")
        headers = _request_headers(path) + _header_block(metadata) if metadata else _request_headers(path)
        head = _frame(_HEADERS, _END_HEADERS, stream_id, headers)
        data = _frame(_DATA, _END_STREAM, stream_id, frame(body))
        await self._send(self._window() + head + data)
        self._most = _FIRST_CHUNK
        return await self._answer(stream_id)

    async def _answer(self, stream_id: int) -> tuple[list[bytes], dict[str, str]]:
        reader, found, received, ended = MessageReader(MAX_MESSAGE), dict[str, str](), 0, False
        while not ended:
            head = await self._exactly(9)
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            if length > _MAX_FRAME:
                raise Unavailable("connection error: the runtime sent a frame that is too large")
            if kind in (_DATA, _HEADERS) and stream != stream_id:
                raise Unavailable("connection error: the runtime answered another stream")
            if kind == _DATA:
                if not found:
                    raise Unavailable("connection error: the runtime sent data before headers")
                await self._data(reader, length, flags)
                received += length
                ended = bool(flags & _END_STREAM)
            elif kind == _HEADERS:
                found.update(await self._headers(length, flags))
                ended = bool(flags & _END_STREAM)
            else:
                self._control(kind, flags, stream, stream_id, await self._exactly(length))
        self._taken += received
        if self._reply:
            reply, self._reply = self._reply, b""
            await self._send(reply)
        if found.get("grpc-status") == "0" and not reader.is_complete:
            raise Internal("the answer ends within a message")
        return reader.messages, found

    def _window(self) -> bytes:
        """Fills the connection's window up again; each stream has its own, which ended with it. Goes with the
        next request: the runtime need not be woken for it.
        """
        taken, self._taken = self._taken, 0
        return _frame(_WINDOW_UPDATE, 0, 0, taken.to_bytes(4, "big")) if taken else b""

    async def _data(self, reader: MessageReader, length: int, flags: int) -> None:
        if flags & _PADDED:
            payload = await self._exactly(length)
            if not payload or payload[0] >= length:
                raise Unavailable("connection error: the runtime sent more padding than data")
            reader.feed(memoryview(payload)[1 : length - payload[0]])
            return
        while length:
            piece = await self._some(length)
            length -= len(piece)
            reader.feed(piece)

    async def _headers(self, length: int, flags: int) -> dict[str, str]:
        block = await self._exactly(length)
        if flags & _PADDED:
            block = block[1 : len(block) - block[0]] if block else b""
        if flags & _PRIORITY:
            block = block[5:]
        while not flags & _END_HEADERS:
            head = await self._exactly(9)
            if head[3] != _CONTINUATION:
                raise Unavailable("connection error: the runtime broke off its headers")
            flags = head[4]
            block += await self._exactly(int.from_bytes(head[:3], "big"))
            if len(block) > _MAX_HEADERS:
                raise Unavailable("connection error: the runtime's headers are too large")
        return self._fields(block)

    def _fields(self, block: bytes) -> dict[str, str]:
        """What a header block says. Most consist of numbers in the table of headers alone: such a block
        leaves the table as it is, and says the same until another kind of block comes.
        """
        if (known := self._blocks.get(block)) is not None:
            return known
        try:
            fields = {_text(name): _text(value) for name, value in self._decoder.decode(block)}
        except HPACKError as exc:
            raise Unavailable(f"connection error: the runtime's headers are broken: {exc}") from exc
        if len(self._blocks) >= _BLOCKS or not all(0x80 < byte < 0xFF for byte in block):
            self._blocks.clear()
        else:
            self._blocks[block] = fields
        return fields

    def _control(self, kind: int, flags: int, stream: int, stream_id: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._reply += _frame(_SETTINGS, _ACK, 0)
        elif kind == _PING and not flags & _ACK:
            self._reply += _frame(_PING, _ACK, 0, payload)
        elif kind == _RST and stream == stream_id:
            code = int.from_bytes(payload, "big")
            text = f"Stream reset by remote party, error_code: {code}"
            raise Unavailable(f"connection error: {text}") if code == _REFUSED_STREAM else Internal(text)
        elif kind == _GOAWAY:
            self._going_away = True
            if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < stream_id:
                raise Unavailable("connection error: the runtime is going away")
        elif kind in (_PUSH, _CONTINUATION):
            raise Unavailable("connection error: the runtime sent a frame that has no place here")

    async def _some(self, limit: int) -> memoryview:
        """The next bytes, at least one and at most `limit`."""
        if not len(self._chunk):
            data = await self._receive()
            if not data:
                raise Unavailable("connection error: Connection lost")
            self._chunk = memoryview(data)
        piece, self._chunk = self._chunk[:limit], self._chunk[limit:]
        return piece

    async def _receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(self._most)
            except BlockingIOError:
                continue
            except OSError as exc:
                raise trio.BrokenResourceError from exc
            if len(data) == self._most:
                self._most = _CHUNK
            return data

    async def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as exc:
                raise trio.BrokenResourceError from exc

    async def _exactly(self, count: int) -> bytes:
        out = bytes(self._chunk[:count])
        self._chunk = self._chunk[len(out) :]
        while len(out) < count:
            out += await self._some(count - len(out))
        return out


class DirectCalls:
    """Calls over at most `most` connections, opened when they are needed; `kept` stay open when idle."""

    def __init__(self, path: str, most: int = 1, kept: int = 1) -> None:
        self.connections = 0
        self._path = path
        self._kept = kept
        self._places = trio.Semaphore(most)
        self._idle: deque[_Connection] = deque()
        self._busy: set[_Connection] = set()

    def close(self) -> None:
        """Closes the connections; calls that are under way fail."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    def is_full(self) -> bool:
        """Whether a call would have to wait for another one to end."""
        return self._places.value == 0

    def under_way(self) -> int:
        """How many calls are being answered."""
        return len(self._busy)

    async def call(
        self, method: str, request: bytes, metadata: Mapping[str, str] | None = None
    ) -> Sequence[bytes]:
        """All messages of the answer; `metadata` goes with the request. Raises CRIError, or OSError if there
        is nobody to connect to.
        """
        try:
            self._places.acquire_nowait()  # without a turn for everybody else, if it can be
        except trio.WouldBlock:
            await self._places.acquire()
        try:
            messages, found = await self._one(PATHS[method], request, metadata)
        except trio.BrokenResourceError as exc:
            raise Unavailable("connection error: Connection lost", method) from exc
        except GrpcError as exc:
            raise cri_error(exc.code, exc.message, method) from exc
        finally:
            self._places.release()
        if (error := _status_error(found)) is not None:
            error.method = method
            raise error
        return messages

    async def _one(
        self, path: str, request: bytes, metadata: Mapping[str, str] | None
    ) -> tuple[list[bytes], dict[str, str]]:
        connection = await self._usable()
        self._busy.add(connection)
        healthy = False
        try:
            answer = await connection.call(path, request, metadata)
            healthy = True
            return answer
        finally:
            self._busy.discard(connection)
            if healthy and len(self._idle) < self._kept:
                self._idle.append(connection)
            else:
                connection.close()

    async def _usable(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        stream = await trio.open_unix_socket(self._path)
        self.connections += 1
        plain = socket.socket(fileno=stream.socket.detach())
        plain.setblocking(False)
        connection = _Connection(plain)
        try:
            await connection.hello()
        except BaseException:
            connection.close()
            raise
        return connection


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _status_error(found: dict[str, str]) -> CRIError | None:
    """What the headers and trailers of an answer say; None if the call succeeded."""
    if (http := found.get(":status", "")) != "200":
        return cri_error(HTTP_CODES.get(http, Code.UNKNOWN), f"unexpected HTTP status {http!r}")
    status = found.get("grpc-status", "")
    if status == "0":
        return None
    if not (status.isascii() and status.isdigit()):
        return cri_error(Code.UNKNOWN, f"unexpected grpc-status {status!r}")
    return cri_error(int(status), told_message(found))
