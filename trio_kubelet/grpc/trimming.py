"""A large message kept small while it comes: of each of its fields the beginning. Pure.

What a command in a container writes is as large as its pod wants it to be, and nobody looks at more than the
first kilobytes.
"""

from __future__ import annotations

from typing import Final

from trio_kubelet.grpc.errors import Code, GrpcError

_VARINT, _BYTES = 0, 2  # what follows a field's key: a number, or a length and so many bytes
_GROUP: Final = (3, 4)  # nothing follows the keys that begin and end one
_FIXED: Final = {1: 8, 5: 4}
"""Bytes of the kinds of fields that always have as many."""

_LONGEST: Final = 10
"""Bytes of a number in protobuf's variable length."""


class Trimmer:
    """Copies one message of protobuf's wire format, with at most `most` bytes of each text or bytes field.

    For messages without messages inside, which would be cut apart.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._number = bytearray()  # the beginning of a number
        self._kind: int | None = None  # of the field whose key has come last
        self._missing = 0  # bytes of this field that are still to come
        self._room = 0  # how many of them are kept

    def feed(self, piece: memoryview) -> None:
        """Takes the next bytes. Raises GrpcError for what is no message."""
        at = 0
        while at < len(piece):
            if self._missing:
                part = piece[at : at + self._missing]
                self._kept += part[: self._room]
                self._room = max(0, self._room - len(part))
                self._missing -= len(part)
                at += len(part)
                continue
            self._number.append(piece[at])
            if piece[at] < 0x80:
                self._take(bytes(self._number))
                self._number.clear()
            elif len(self._number) == _LONGEST:
                raise _broken()
            at += 1

    def end(self) -> bytes:
        """The message, all of which has come. Raises GrpcError if it ends within a field."""
        if self._missing or self._number or self._kind is not None:
            raise _broken()
        return bytes(self._kept)

    def _take(self, number: bytes) -> None:
        """A number is complete: a key, a value, or the length of what follows."""
        if self._kind == _BYTES:
            self._missing = _value(number)
            self._room = min(self._missing, self._most)
            self._kept += _varint(self._room)
            self._kind = None
            return
        self._kept += number
        if self._kind == _VARINT:
            self._kind = None
            return
        kind = number[0] & 7
        if kind in (_VARINT, _BYTES):
            self._kind = kind
        elif kind in _FIXED:
            self._missing = self._room = _FIXED[kind]
        elif kind not in _GROUP:
            raise _broken()


def _value(number: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(number))


def _varint(value: int) -> bytes:
    number = bytearray()
    while value >= 0x80:
        number.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*number, value))


def _broken() -> GrpcError:
    return GrpcError(Code.INTERNAL, "grpc: failed to unmarshal the received message")
