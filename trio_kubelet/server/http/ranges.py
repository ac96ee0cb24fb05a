"""Which bytes of a file a request's `Range` asks for, and how several of them are one answer. Pure.

As Go's `http.ServeContent` has it, with its bound on their number; what asks for more bytes than there are
gets the whole file, as there.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from trio_kubelet.common.go_words import parse_integer

_UNIT: Final = "bytes="
_MOST: Final = 200
_BLANK: Final = " \t\r\n"


class ByteRange(NamedTuple):
    """`length` bytes from `first`."""

    first: int
    length: int

    def shown(self, size: int) -> str:
        """The range of a file of that size as `Content-Range` says it."""
        return f"bytes {self.first}-{self.first + self.length - 1}/{size}"


class InvalidRange(ValueError):
    """No range can be read or, with `overlaps` false, none begins in the file."""

    def __init__(self, text: str = "invalid range", *, overlaps: bool = True) -> None:
        super().__init__(text)
        self.overlaps = overlaps


def wanted_ranges(header: str, size: int) -> Sequence[ByteRange]:
    """The ranges of a file of that size; none for the whole. Raises InvalidRange."""
    if not header:
        return ()
    if not header.startswith(_UNIT):
        raise InvalidRange
    asked = header.removeprefix(_UNIT)
    if asked.count(",") >= _MOST:
        return ()
    each = [text for part in asked.split(",") if (text := part.strip(_BLANK))]
    found = [part for text in each if (part := _range(text, size)) is not None]
    if each and not found and size:
        raise InvalidRange("invalid range: failed to overlap", overlaps=False)
    return found if sum(part.length for part in found) <= size else ()


def _range(text: str, size: int) -> ByteRange | None:
    """One range; None if it begins behind the end."""
    first, dash, last = (word.strip(_BLANK) for word in text.partition("-"))
    if not dash:
        raise InvalidRange
    if not first:
        count = min(_number(last), size)
        return ByteRange(size - count, count)
    start = _number(first)
    if start >= size:
        return None
    end = _number(last) if last else size
    if end < start:
        raise InvalidRange
    return ByteRange(start, min(end, size - 1) - start + 1)


def _number(text: str) -> int:
    try:
        number = parse_integer(text)
    except ValueError:
        raise InvalidRange from None
    if text.startswith("-"):
        raise InvalidRange
    return number


def parts_of(ranges: Sequence[ByteRange], kind: str, size: int) -> tuple[str, Sequence[bytes | ByteRange]]:
    """Several ranges of a file of that type and size as one body, and that body's type."""
    boundary = secrets.token_hex(30)
    parts: list[bytes | ByteRange] = []
    for each in ranges:
        head = f"--{boundary}\r\nContent-Range: {each.shown(size)}\r\nContent-Type: {kind}\r\n\r\n"
        parts += [(f"\r\n{head}" if parts else head).encode(), each]
    return f"multipart/byteranges; boundary={boundary}", [*parts, f"\r\n--{boundary}--\r\n".encode()]
