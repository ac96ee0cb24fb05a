"""The answer to one HTTP/1.1 request, read from its bytes as they come. Pure.

Only what a client of one server needs: no upgrades, no answers to HEAD, header lines that are not folded.
"""

from __future__ import annotations

import re
from typing import Final

MAX_HEAD: Final = 64 * 1024
"""Bytes of status line and headers, and of the trailers of a body in chunks."""
_MAX_SIZE_LINE: Final = 1024
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,15}")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_NO_BODY: Final = frozenset({204, 304})


class MalformedAnswer(ValueError):
    """What came is no answer."""


class EndedEarly(ValueError):
    """The peer closed the connection before the end of its answer, or before its beginning."""


class HTTPAnswerReader:
    """One answer: `status` and `headers` (names in lower case) are there once `has_head`, `ended` with the
    last byte; `reusable` says whether the connection may carry another request then.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = self.ended = self.reusable = False
        self._buffer = bytearray()  # of the head, or of a body in chunks
        self._left = 0  # bytes of the body, or of its chunk, that are still to come
        self._in_chunks = self._until_closed = False
        self._after_chunk = self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in what was received; no data means that the peer has closed.

        Raises MalformedAnswer, EndedEarly.
        """
        if not data:
            self._close()
            return b""
        if not self.has_head:
            self._buffer += data
            if not self._take_head():
                return b""
            data = bytes(self._buffer)
            self._buffer.clear()
        if self._in_chunks:
            self._buffer += data
            return self._take_chunks()
        if self._until_closed:
            return data
        if len(data) > self._left:  # more than was asked for
            self.reusable = False
        body = data[: self._left]
        self._left -= len(body)
        self.ended = not self._left
        return body

    def _close(self) -> None:
        self.reusable = False
        if not self._until_closed or not self.has_head:
            raise EndedEarly("peer closed connection" if self._buffer or self.has_head else "")
        self.ended = True

    def _take_head(self) -> bool:
        """Whether the head is complete; interim answers before it are passed over."""
        while not self.has_head:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0 or end > MAX_HEAD:
                if len(self._buffer) > MAX_HEAD:
                    raise MalformedAnswer(f"the answer's headers are longer than {MAX_HEAD} bytes")
                return False
            first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
            del self._buffer[: end + 4]
            self._read_head(first, lines)
        return True

    def _read_head(self, first: bytes, lines: list[bytes]) -> None:
        found = _STATUS.fullmatch(first)
        if found is None:
            raise MalformedAnswer(f"malformed HTTP response {first[:50]!r}")
        self.status = int(found[2])
        if self.status == 101:
            raise MalformedAnswer("the server changes to another protocol")
        if self.status < 200:
            return
        headers = self.headers
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or _NAME.fullmatch(name) is None:
                raise MalformedAnswer(f"malformed header line {line[:50]!r}")
            key, text = name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self.has_head = True
        wishes = {each.strip() for each in headers.get("connection", "").lower().split(",")}
        self.reusable = found[1] == b"1" and "close" not in wishes
        self._frame()

    def _frame(self) -> None:
        """How the body ends."""
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if self.status in _NO_BODY:
            self.ended = True
        elif coding is not None:
            if coding.lower() != "chunked":
                raise MalformedAnswer(f"unsupported transfer encoding {coding[:50]!r}")
            self._in_chunks = True
            self.reusable = self.reusable and length is None
        elif length is not None:
            same = {each.strip() for each in length.split(",")}
            if len(same) > 1 or _LENGTH.fullmatch(text := same.pop()) is None:
                raise MalformedAnswer(f"bad Content-Length {length[:50]!r}")
            self._left = int(text)
            self.ended = not self._left
        else:
            self._until_closed, self.reusable = True, False

    def _take_chunks(self) -> bytes:
        found, buffer = bytearray(), self._buffer
        while not self.ended:
            if self._left:
                piece = buffer[: self._left]
                del buffer[: len(piece)]
                found += piece
                self._left -= len(piece)
                if self._left:
                    break
                self._after_chunk = True
            end = buffer.find(b"\r\n")
            if end < 0:
                if len(buffer) > (MAX_HEAD if self._in_trailers else _MAX_SIZE_LINE):
                    raise MalformedAnswer("a line between chunks does not end")
                break
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if self._after_chunk:
                if line:
                    raise MalformedAnswer("a chunk is longer than its size")
                self._after_chunk = False
            elif self._in_trailers:
                self.ended = not line
            else:
                self._left = _size(line)
                self._in_trailers = not self._left
        if self.ended and buffer:
            self.reusable = False
        return bytes(found)


def _size(line: bytes) -> int:
    text = line.partition(b";")[0].strip(b" \t")
    if _SIZE.fullmatch(text) is None:
        raise MalformedAnswer("invalid byte in chunk length")
    return int(text, 16)
