"""A client's connection that remembers what its errors have to say: addresses, how an answer began, and what
is wrong with the head of an HTTP answer, as Go's `net/http` finds it.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from typing import Final

import trio

from trio_kubelet.common.go_words import (
    EOF,
    NO_TLS,
    PLAIN_HTTP,
    UNEXPECTED_EOF,
    alert_words,
    os_words,
    system_words,
)
from trio_kubelet.common.http_syntax import TOKEN
from trio_kubelet.common.log import go_quote
from trio_kubelet.net.dial import DialError, dial, join_host_port

_RECORD: Final = 5  # bytes of a TLS record's head
_ALERT, _HANDSHAKE = 0x15, 0x16


class Wire(trio.abc.Stream):
    """A TCP connection. What breaks raises trio.BrokenResourceError, `words` says how."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._way = f"{_address(stream.socket.getsockname())}->{_address(stream.socket.getpeername())}"
        self._first = bytearray()
        self._received = 0
        self._broken: tuple[str, OSError] | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError as exc:
            self._keep("write", exc)
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(max_bytes))
        except trio.BrokenResourceError as exc:
            self._keep("read", exc)
            raise
        self._received += len(data)
        if len(self._first) < _RECORD + 2:
            self._first += data[: _RECORD + 2 - len(self._first)]
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()

    def close(self) -> None:
        """Closes it without waiting for anything."""
        self._stream.socket.close()

    def words(self, error: BaseException) -> str:
        """Go's words for what broke the connection."""
        if self._broken is not None:
            call, cause = self._broken
            return system_words(call, cause, self._way)
        return _tls_error(error) or EOF

    def handshake_words(self, error: BaseException) -> str:
        """Go's words for a TLS handshake that failed, from how the peer's answer began."""
        first = bytes(self._first)
        if self._broken is not None:
            return self.words(error)
        if len(first) < _RECORD:
            return UNEXPECTED_EOF if first else EOF
        if first[:_RECORD] == b"HTTP/":
            return PLAIN_HTTP
        if first[0] not in (_ALERT, _HANDSHAKE) or first[1] >= 0x10:
            return NO_TLS
        if first[0] == _ALERT and len(first) > _RECORD + 1 and self._received == _RECORD + 2:
            return alert_words(first[_RECORD + 1])
        if self._received < _RECORD + int.from_bytes(first[3:_RECORD], "big"):
            return UNEXPECTED_EOF
        return _tls_error(error) or EOF

    def _keep(self, call: str, error: BaseException) -> None:
        if self._broken is None and isinstance(error.__cause__, OSError):
            self._broken = (call, error.__cause__)


async def open_wire(host: str, port: int) -> Wire:
    """A connection. Raises DialError, also when it breaks at once; the caller sets the deadline."""
    stream = await dial(host, port)
    try:
        return Wire(stream)
    except OSError as exc:
        await trio.aclose_forcefully(stream)
        # Its peer is gone before anything was said: Go's dialer learns of that as well.
        reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        where = join_host_port(host, port)
        raise DialError(f"dial tcp {where}: connect: {os_words(reset)}") from exc


def _tls_error(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return os_words(cause)
        cause = cause.__cause__ or cause.__context__
    return ""


def _address(name: tuple[str, int]) -> str:
    return join_host_port(name[0], name[1])


_BROKEN: Final = "net/http: HTTP/1.x transport connection broken: "
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_NAME: Final = re.compile(TOKEN.encode())
_LENGTH: Final = re.compile(rb"[0-9]+")
_MOST_QUOTED: Final = 1024  # bytes of an answer in an error, and so in an event
_MOST_LENGTHS: Final = 8


def head_fault(said: bytes, ended: bool) -> str:
    """Why what a server said first is no head of an answer; `ended`: it said no more than that."""
    if not said:
        return EOF
    lines = said.split(b"\n")
    if len(lines) == 1 and ended:
        return _BROKEN + (UNEXPECTED_EOF if b" " in said else f"malformed HTTP response {quoted(said)}")
    return _BROKEN + (_status_fault(lines[0].rstrip(b"\r")) or _header_fault(lines[1:], ended))


def with_known_version(said: bytes) -> bytes:
    """The head with a version that h11 takes: Go takes any that looks like one."""
    if _VERSION.match(said) and not said.startswith((b"HTTP/1.0", b"HTTP/1.1")):
        return b"HTTP/1.1" + said[8:]
    return said


def _status_fault(line: bytes) -> str:
    proto, blank, status = line.partition(b" ")
    if not blank:
        return f"malformed HTTP response {quoted(line)}"
    code = status.lstrip(b" ").partition(b" ")[0]
    if len(code) != 3 or not code.isdigit():
        return f"malformed HTTP status code {quoted(code)}"
    if not _VERSION.fullmatch(proto):
        return f"malformed HTTP version {quoted(proto)}"
    return ""


def _header_fault(lines: list[bytes], ended: bool) -> str:
    lengths = list[bytes]()
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        text = line.rstrip(b"\r")
        if not text:
            if last and ended:
                return UNEXPECTED_EOF
            break
        if text[:1] in b" \t":
            if number == 0:
                return f"malformed MIME header initial line: {quoted(text)}"
            continue
        name, colon, value = text.partition(b":")
        if not colon:
            return f"malformed MIME header: missing colon: {quoted(text)}"
        if not _NAME.fullmatch(name):
            return f"malformed MIME header line: {quoted(text)}"
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            return f"unsupported transfer encoding: {quoted(value.strip())}"
        if name.lower() == b"content-length":
            lengths.append(value.strip())
    if len(set(lengths)) > 1:
        shown = " ".join(map(quoted, lengths[:_MOST_LENGTHS]))
        return f"http: message cannot contain multiple Content-Length headers; got [{shown}]"
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        return f"bad Content-Length {quoted(lengths[0])}"
    return UNEXPECTED_EOF


def quoted(said: bytes) -> str:
    """What a server said as Go quotes it, but that of a long one only the beginning is shown."""
    more = "..." if len(said) > _MOST_QUOTED else ""
    return go_quote(said[:_MOST_QUOTED].decode("utf-8", "surrogateescape") + more)
