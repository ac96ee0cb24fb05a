"""Changes of a directory as they happen: pyinotify behind one small door.

pyinotify brings loops and threads of its own; only its watch manager and its reader are used, and Trio waits
for the file descriptor. An event only says "look again": what changed is found by looking. The one thing
taken from an event is that a file was moved into place in one step, which a look cannot see.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import trio


class Changes(NamedTuple):
    """What a batch of events says: paths moved into place, and whether the watch is gone."""

    moved_in: frozenset[str]
    lost: bool


class WatchError(Exception):
    """The path cannot be watched now."""


class DirectoryWatch:
    """Watches a directory, or one file through its directory, from construction to `close`."""

    def __init__(self, path: str) -> None:
        with warnings.catch_warnings():  # asyncore, which pyinotify wants, is deprecated
            warnings.simplefilter("ignore", DeprecationWarning)
            import pyinotify
        directory = path if os.path.isdir(path) else os.path.dirname(path) or "."
        self._flags = pyinotify
        self._events: list[Any] = []
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
        self._notifier = pyinotify.Notifier(self._manager, self._events.append, timeout=0)
        added = self._manager.add_watch(directory, mask, quiet=True)
        if added.get(directory, -1) < 0:
            self.close()
            raise WatchError(f"cannot watch {directory}")

    async def wait(self) -> None:
        """Returns when there are events to take."""
        await trio.lowlevel.wait_readable(self._manager.get_fd())

    def take(self) -> Changes:
        """All events that are there; never waits. An overflow is only one more reason to look."""
        if self._notifier.check_events(timeout=0):
            self._notifier.read_events()
            self._notifier.process_events()
        events, self._events[:] = list(self._events), []
        gone = self._flags.IN_DELETE_SELF | self._flags.IN_MOVE_SELF | self._flags.IN_IGNORED
        gone |= self._flags.IN_UNMOUNT
        return Changes(
            moved_in=frozenset(e.pathname for e in events if e.mask & self._flags.IN_MOVED_TO),
            lost=any(e.mask & gone for e in events),
        )

    def close(self) -> None:
        """Gives the descriptors back."""
        self._notifier.stop()
