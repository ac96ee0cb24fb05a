"""Changes of a directory as they happen: pyinotify behind one small door.

pyinotify brings loops, threads and a logger of its own; only its watch manager is used, Trio waits for the
file descriptor, and the events are read here. An event only says "look again": what changed is found by
looking. Three things are taken from events because a look cannot see them: that a file was moved into place
in one step, that somebody is in the middle of writing one, and that one was deleted, even if another has its
name again.
"""

from __future__ import annotations

import os
import struct
import threading
import warnings
from typing import Any, Final, NamedTuple, Self

import trio

_HEADER: Final = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_AT_ONCE: Final = 64 * 1024
_importing: Final = threading.Lock()


class Changes(NamedTuple):
    """What a batch of events says.

    any: there were events. moved_in: paths moved into place. unfinished: paths somebody has written to and
    not closed yet. deleted: paths that were unlinked, not moved away. lost: the watch is gone and has to
    be made again.
    """

    any: bool
    moved_in: frozenset[str]
    unfinished: frozenset[str]
    deleted: frozenset[str]
    lost: bool


class WatchError(Exception):
    """The path cannot be watched now."""


def _library() -> Any:
    """pyinotify, imported when a watch is made: in several threads, but the filters of warnings that its own
    import needs (asyncore is deprecated) are the whole process's, and it must leave them as they were.
    """
    with _importing, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import pyinotify
    return pyinotify


class DirectoryWatch:
    """Watches a directory, or one file through its directory, from construction to `close`."""

    def __init__(self, path: str) -> None:
        self._codes = pyinotify = _library()
        self._path = path
        self._directory = _directory_of(path)
        self._unfinished: set[str] = set()
        self._manager = pyinotify.WatchManager()
        mask = (
            pyinotify.IN_CREATE
            | pyinotify.IN_DELETE
            | pyinotify.IN_MODIFY
            | pyinotify.IN_ATTRIB
            | pyinotify.IN_CLOSE_WRITE
            | pyinotify.IN_MOVED_FROM
            | pyinotify.IN_MOVED_TO
            | pyinotify.IN_DELETE_SELF
            | pyinotify.IN_MOVE_SELF
        )
        try:
            found = os.stat(self._directory)
            added = self._manager.add_watch(self._directory, mask, quiet=True)
            os.set_blocking(self._manager.get_fd(), False)
        except OSError:
            self.close()
            raise
        self._identity = found.st_dev, found.st_ino
        if added.get(self._directory, -1) < 0 or not self.is_current():
            self.close()
            raise WatchError(f"cannot watch {self._directory}")

    def is_current(self) -> bool:
        """Whether what is watched still is what the path stands for.

        A renamed parent, another link target, or a directory that has come where there was none changes that.
        """
        try:
            found = os.stat(self._directory)
        except OSError:
            return False
        return self._directory == _directory_of(self._path) and (found.st_dev, found.st_ino) == self._identity

    async def wait(self) -> None:
        """Returns when there are events to take."""
        await trio.lowlevel.wait_readable(self._manager.get_fd())

    def take(self) -> Changes:
        """All events that are there; never waits."""
        codes = self._codes
        done = codes.IN_CLOSE_WRITE | codes.IN_MOVED_TO | codes.IN_MOVED_FROM | codes.IN_DELETE
        gone = codes.IN_DELETE_SELF | codes.IN_MOVE_SELF | codes.IN_IGNORED | codes.IN_UNMOUNT
        moved_in: set[str] = set()
        deleted: set[str] = set()
        seen = lost = False
        for mask, path in self._read():
            seen = True
            lost = lost or bool(mask & gone)
            if mask & codes.IN_Q_OVERFLOW:
                self._unfinished.clear()  # the event that a file was closed may be among the lost ones
            if mask & codes.IN_MODIFY:
                self._unfinished.add(path)
            if mask & done:
                self._unfinished.discard(path)
            if mask & codes.IN_MOVED_TO:
                moved_in.add(path)
            if mask & codes.IN_DELETE:
                deleted.add(path)
        return Changes(seen, frozenset(moved_in), frozenset(self._unfinished), frozenset(deleted), lost)

    def close(self) -> None:
        """Gives the descriptor back."""
        self._manager.close()

    def _read(self) -> list[tuple[int, str]]:
        """The events waiting, as mask and path."""
        events: list[tuple[int, str]] = []
        while True:
            try:
                data = os.read(self._manager.get_fd(), _READ_AT_ONCE)
            except BlockingIOError:
                return events
            offset = 0
            while offset < len(data):
                _, mask, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length
                events.append((mask, os.path.join(self._directory, name) if name else self._directory))


class OpenWatch:
    """Tells when somebody opens a file or removes it; to be used as a context manager. Raises WatchError."""

    def __init__(self, path: str) -> None:
        pyinotify = _library()
        self._manager = pyinotify.WatchManager()
        added = self._manager.add_watch(path, pyinotify.IN_OPEN | pyinotify.IN_DELETE_SELF, quiet=True)
        if added.get(path, -1) < 0:
            self._manager.close()
            raise WatchError(f"cannot watch {path}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    async def wait(self) -> None:
        """Returns at the first such event."""
        await trio.lowlevel.wait_readable(self._manager.get_fd())


def _directory_of(path: str) -> str:
    """The directory to watch for a path: itself, or the one that a file, or what may come there, lies in."""
    return path if os.path.isdir(path) else os.path.dirname(path) or "."
