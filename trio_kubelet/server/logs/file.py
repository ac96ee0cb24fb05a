"""One container log file being read: opened, wound forward, read piece by piece, followed into its successor.

Everything here blocks and runs in a worker thread, for one caller at a time. A file is read by offset, so a
reader that waits holds an open file and no buffer.

As with the kubelet a reader begins in the file the container writes to now, not in rotated ones. A follower
reads on in whatever the log is rotated into: the file it has open to its end, then the next younger one,
then the current one. (The kubelet's may miss lines that were written just before a rotation.)
"""

from __future__ import annotations

import os
import threading
from typing import Final, NamedTuple

from trio_kubelet.common.container_files import open_regular
from trio_kubelet.common.go_words import os_words
from trio_kubelet.native.crilog import LogFilter
from trio_kubelet.native.pure_crilog import LogOptions, UnsupportedLog

PIECE: Final = 512 * 1024
"""Bytes read at once."""
_TAIL_BLOCK: Final = 64 * 1024
_LONGEST_LINE: Final = 16 * 1024 * 1024
_NOT_ROTATED: Final = (".gz", ".tmp")


class LogError(Exception):
    """The log cannot be read (any further)."""


class Position(NamedTuple):
    """How far into which file: device, inode, bytes."""

    device: int
    inode: int
    offset: int


class Piece(NamedTuple):
    """Output of one step. `at_end`: there is no more now. `done`: the reader has all it wanted."""

    output: bytes
    at_end: bool
    done: bool


def position_of(path: str) -> Position | None:
    """The file of that name and its size, None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return Position(found.st_dev, found.st_ino, found.st_size)


def tail_start(descriptor: int, lines: int) -> int:
    """Where the last `lines` lines of a file begin; a last line without newline is not counted.

    A line that is too long to be read is not gone over either: the file may be one of terabytes, with nothing
    in it. Raises LogError, OSError.
    """
    right, wanted = os.fstat(descriptor).st_size, lines + 1
    line_end = right
    while right > 0:
        left = max(0, right - _TAIL_BLOCK)
        block = os.pread(descriptor, right - left, left)
        found = block.count(b"\n")
        if found >= wanted:
            at = len(block)
            for _ in range(wanted):
                at = block.rindex(b"\n", 0, at)
            return left + at + 1
        wanted -= found
        right = left
        if found:
            line_end = left + block.index(b"\n")
        elif line_end - left > _LONGEST_LINE + _TAIL_BLOCK:
            raise LogError("line too long")
    return 0


class LogFile:
    """A log being read. Close it."""

    def __init__(self, path: str, options: LogOptions, tail_lines: int | None = None) -> None:
        """Opens the log; a link is followed. Raises LogError."""
        try:
            self.path = os.path.realpath(path, strict=True)
        except OSError as exc:
            raise LogError(
                f'failed to try resolving symlinks in path "{path}": lstat {exc.filename}: {os_words(exc)}'
            ) from exc
        self._filter = LogFilter(options)
        self._rest = b""  # the beginning of a line whose end was not there yet
        self._offset = 0
        self._descriptor = -1
        self._closing = threading.Lock()
        self._open(self.path)
        if tail_lines is not None:
            try:
                self._offset = tail_start(self._descriptor, tail_lines)
            except OSError as exc:
                self.close()
                raise LogError(f'failed to read log file "{self.path}": {os_words(exc)}') from exc
            except LogError as exc:
                self.close()
                raise LogError(f'{exc} in log file "{self.path}"') from exc

    def close(self) -> None:
        """Gives the descriptor back, once, although work that hangs may end meanwhile in its own thread."""
        with self._closing:
            opened, self._descriptor = self._descriptor, -1
        if opened >= 0:
            os.close(opened)

    @property
    def position(self) -> Position:
        """What was read up to where."""
        return Position(self._device, self._inode, self._offset)

    def read(self) -> Piece:
        """The next piece. Raises LogError."""
        if self._filter.done:
            return Piece(b"", True, True)
        try:
            data = os.pread(self._descriptor, PIECE, self._offset)
            if not data and os.fstat(self._descriptor).st_size < self._offset:
                self._offset, self._rest = 0, b""  # emptied in place: what comes now is new
        except OSError as exc:
            raise LogError(f'failed to read log file "{self.path}": {os_words(exc)}') from exc
        self._offset += len(data)
        return Piece(self._copy(data, final=False), len(data) < PIECE, self._filter.done)

    def finish(self) -> bytes:
        """What is to be said of a last line without newline, when nothing will follow. Raises LogError."""
        return b"" if self._filter.done else self._copy(b"", final=True)

    def move_on(self) -> bytes:
        """Goes over to the file the log was rotated into. Raises LogError."""
        output = self.finish()
        self._open(self._successor())
        self._offset = 0
        return output

    def _copy(self, data: bytes, final: bool) -> bytes:
        block = self._rest + data if self._rest else data
        if not block:
            return b""
        try:
            copied = self._filter.copy(block, final)
        except UnsupportedLog as exc:
            raise LogError(str(exc)) from exc
        self._rest = block[copied.consumed :]
        if len(self._rest) > _LONGEST_LINE:
            raise LogError(f'line too long in log file "{self.path}"')
        return copied.output

    def _open(self, path: str) -> None:
        try:
            opened = open_regular(path)
        except OSError as exc:
            raise LogError(f'failed to open log file "{path}": open {path}: {os_words(exc)}') from exc
        self.close()
        self._descriptor = opened
        found = os.fstat(opened)
        self._device, self._inode = found.st_dev, found.st_ino

    def _successor(self) -> str:
        """The next younger file of this log. One that was archived since is not looked for: archives are
        older than any file beside them.
        """
        directory, name = os.path.split(self.path)
        try:
            rotated = sorted(
                os.path.join(directory, other)
                for other in os.listdir(directory)
                if other.startswith(name + ".") and not other.endswith(_NOT_ROTATED)
            )
        except OSError as exc:
            raise LogError(f'failed to open log file "{self.path}": {os_words(exc)}') from exc
        own = (self._device, self._inode)
        for index, path in enumerate(rotated):
            found = position_of(path)
            if found is not None and found[:2] == own:
                rotated = rotated[index + 1 :]
                break
        return rotated[0] if rotated else self.path


LINES: Final = 300
BYTES: Final = 64 * 1024
_PIECES: Final = 16
"""Lines are at most so many pieces long that their end is still found."""


def log_tail(path: str, lines: int = LINES, limit: int = BYTES) -> str:
    """The last lines, at most `limit` bytes of them, with times; why there are none if that is so."""
    try:
        file = LogFile(path, LogOptions(timestamps=True), lines)
    except LogError as exc:
        return str(exc)
    text = b""
    try:
        for _ in range(_PIECES):
            piece = file.read()
            text = (text + piece.output)[-limit:]
            if piece.at_end or piece.done:
                break
        text = (text + file.finish())[-limit:]
    except LogError as exc:
        return str(exc)
    finally:
        file.close()
    return text.decode("utf-8", "replace")
