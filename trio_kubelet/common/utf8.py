"""Text that is to be JSON, of bytes that may be no UTF-8: Go's encoder replaces each such byte by U+FFFD.

Python carries undecodable bytes of names and values as halves of surrogate pairs (`surrogateescape`), so that
they reach files and processes as they were. No encoder takes those: what others are told goes through here.
"""

from __future__ import annotations

import re

_HALVES = re.compile("[\ud800-\udfff]")
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ESCAPED = re.compile('["\\\\\x00-\x1f<>&\u2028\u2029\udc80-\udcff]')


def decode(data: bytes) -> str:
    """Bytes as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return valid(data.decode("utf-8", "surrogateescape"))


def valid(text: str) -> str:
    """A text without halves of surrogate pairs; itself if it has none."""
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def json_string(data: bytes) -> bytes:
    """A string as Go's `json.Marshal` writes it: HTML-safe, U+2028/9 escaped, invalid bytes as \\ufffd."""
    text = data.decode("utf-8", "surrogateescape")
    return f'"{_ESCAPED.sub(_escape, text)}"'.encode()


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char >= "\udc80":  # a byte that is no part of valid UTF-8
        return "\\ufffd"
    return _ESCAPES.get(char) or f"\\u{ord(char):04x}"
