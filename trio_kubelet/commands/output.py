"""Standard output and error: what pods wrote must not reach a terminal as a command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

KEPT = "\t"
"""What a template may ask for besides line ends."""


def say(lines: Iterable[str]) -> None:
    """Prints lines, with what is not printable escaped."""
    write("".join(f"{line}\n" for line in lines))


def write(text: str, *, verbatim: bool = False) -> None:
    """Writes text with what is not printable escaped; `verbatim`: only where it goes to a terminal."""
    if not verbatim or sys.stdout.isatty():
        # Line by line, most of which need no look at their characters.
        text = "\n".join(escaped(line, keep=KEPT if verbatim else "") for line in text.split("\n"))
    sys.stdout.buffer.write(text.encode(sys.stdout.encoding, "backslashreplace"))
    sys.stdout.buffer.flush()


def complain(text: str) -> None:
    """A line on standard error, with what is not printable escaped. If it cannot be written, nobody hears."""
    with contextlib.suppress(OSError):
        print(escaped(text), file=sys.stderr)


def escaped(text: str, *, keep: str = "") -> str:
    """The text with all that is not printable as an escape, but for the characters to `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
