"""JSON that is nested deeper than a decoder goes, or no text.

Decoders call themselves for each level and give up with RecursionError at some hundreds: it is no error of
theirs for bad input, nor does it say which of many objects is at fault. Nothing that is read here has so many
levels but what is read by nobody, as the managed fields of an object, so such depths can be left out. Bytes
that are no UTF-8 are no error of theirs either, but Python's. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

MOST_LEVELS: Final = 100
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
"""A text without an end goes on to the end: else it would be looked for again at each quote within."""


def decode_deep(decode: Callable[[bytes], T], data: bytes) -> T:
    """What `decode` makes of `data`; if that is too deep for it, of the same `without_depths`. Raises
    msgspec.DecodeError.
    """
    try:
        try:
            return decode(data)
        except RecursionError:
            return decode(without_depths(data))
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None


def decode_flat(content: bytes | str | msgspec.Raw, kind: type[T], *, strict: bool = True) -> T:
    """What JSON says that has no such depths where all is well: a file of the agent's, say. Raises
    msgspec.DecodeError, also if it is too deep or no UTF-8.
    """
    try:
        return msgspec.json.decode(content, type=kind, strict=strict)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from None


def without_depths(data: bytes) -> bytes:
    """The same JSON with null for each object and list below `MOST_LEVELS`."""
    kept, at, level = list[bytes](), 0, 0
    for found in _TOKEN.finditer(data):
        match found[0]:
            case b"[" | b"{":
                level += 1
                if level == MOST_LEVELS + 1:
                    kept += data[at : found.start()], b"null"
            case b"]" | b"}":
                if level == MOST_LEVELS + 1:
                    at = found.end()
                level -= 1
    if level <= MOST_LEVELS:  # else it ends within what is left out
        kept.append(data[at:])
    return b"".join(kept)
