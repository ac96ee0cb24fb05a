"""Text that is to be JSON, of bytes that may be no UTF-8: Go's encoder replaces each such byte by U+FFFD.

Python carries undecodable bytes of names and values as halves of surrogate pairs (`surrogateescape`), so that
they reach files and processes as they were. No encoder takes those: what others are told goes through here.
"""

from __future__ import annotations

import re

_HALVES = re.compile("[\ud800-\udfff]")


def decode(data: bytes) -> str:
    """Bytes as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return valid(data.decode("utf-8", "surrogateescape"))


def valid(text: str) -> str:
    """A text without halves of surrogate pairs; itself if it has none."""
    return text if text.isascii() else _HALVES.sub("\ufffd", text)
