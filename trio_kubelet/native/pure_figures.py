"""Numbers out of the kernel's small text files, in plain Python: decides what is right.

A `Figure` says where a number stands; a reader reads the same figures of many directories (cgroups,
processes). `figures` does that in C, one call for all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX: Final = 2**64 - 1
"""What `max` and all larger numbers are read as."""

FILE_MOST: Final = 65536
"""Bytes of a file that are looked at."""

FIGURES_MOST: Final = 64

NUMBER, HUNDREDTHS, LINES, TEXT = range(4)
"""Kinds: a number or `max`; one with two digits behind the point, times 100; lines of a file; all of it."""

_SHORT_READ: Final = 2048  # the kernel hands out lists a page at a time: less than half of one was the last
_NUMBER: Final = re.compile(rb"(?:(\d+)|max)(?=[ \n]|\Z)", re.ASCII)
_HUNDREDTHS: Final = re.compile(rb"(\d+)\.(\d\d)(?=[ \n]|\Z)", re.ASCII)


class Figure(NamedTuple):
    """The file is `base` + directory + `name`. `line`: what the line begins with, "" for the first one;
    `field`: what stands before the number, further on in that line.
    """

    base: str
    name: str
    line: str = ""
    field: str = ""
    kind: int = NUMBER


class DirectoryFigures(NamedTuple):
    """The figures of one directory: 0 for those not there, bit i of `there` set for those that are; the texts
    of figures of that kind, in order, without those not there.
    """

    values: Sequence[int]
    there: int
    texts: Sequence[bytes]

    def get(self, index: int) -> int | None:
        """A figure, None if it is not there."""
        return self.values[index] if self.there >> index & 1 else None

    def text(self) -> bytes:
        """The only text; empty if it is not there."""
        return self.texts[0] if self.texts else b""


def read_file(path: str) -> bytes | None:
    """The beginning of a file, None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        found = os.read(descriptor, FILE_MOST)
        size = len(found)
        while size >= _SHORT_READ and len(found) < FILE_MOST:
            more = os.read(descriptor, FILE_MOST - len(found))
            found, size = found + more, len(more)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found


def find_figure(figure: Figure, text: bytes) -> int | None:
    """What a figure is in the text of its file; None if it is not there."""
    if figure.kind == TEXT:
        return len(text)
    if figure.kind == LINES:
        return text.count(b"\n")
    start = 0
    if figure.line:
        start = (b"\n" + text).find(b"\n" + figure.line.encode())
        if start < 0:
            return None
        start += len(figure.line.encode())
    if figure.field:
        end = text.find(b"\n", start)
        start = text.find(figure.field.encode(), start, end if end >= 0 else len(text))
        if start < 0:
            return None
        start += len(figure.field.encode())
    match = (_HUNDREDTHS if figure.kind == HUNDREDTHS else _NUMBER).match(text, start)
    if match is None:
        return None
    digits = b"".join(part or b"" for part in match.groups())
    # Digits that can only be too many are not made a number, which Python refuses with thousands of them.
    significant = digits.lstrip(b"0") or b"0"
    return min(int(significant), MAX) if match[1] is not None and len(significant) <= 20 else MAX


class PureFigureReader:
    """Reads the same figures of many directories. Blocking; several threads may use one."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        if len(figures) > FIGURES_MOST:
            raise ValueError(f"{len(figures)} figures, at most {FIGURES_MOST} can be read at once")
        self.figures = tuple(figures)

    def read(self, directories: Sequence[str]) -> list[DirectoryFigures]:
        """The figures of each directory, in order."""
        return [self._read(directory) for directory in directories]

    def _read(self, directory: str) -> DirectoryFigures:
        values, texts, there = [], [], 0
        path, content = "", None
        for index, figure in enumerate(self.figures):
            wanted = f"{figure.base}{directory}{figure.name}"
            if wanted != path:
                path, content = wanted, read_file(wanted)
            value = None if content is None else find_figure(figure, content)
            values.append(value or 0)
            if value is not None and content is not None:
                there |= 1 << index
                if figure.kind == TEXT:
                    texts.append(content)
                    content = None  # a text is the last figure of its file
        return DirectoryFigures(values, there, texts)
