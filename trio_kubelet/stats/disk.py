"""How much space files take: a walk over a directory, in a thread and bounded. Nothing is executed.

The rules are the kubelet's (`volume/util/fs`): allocated blocks count, a file with several names counts
once, and a walk stays on the filesystem it began on.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Generator
from contextlib import closing, suppress

from trio_kubelet.common.clock import Clock
from trio_kubelet.machine.values import DiskUse
from trio_kubelet.volumes.files import OpenDirectory
from trio_kubelet.volumes.mount_points import enter

_BLOCK = 512
_PAUSE_EVERY = 5_000
_PAUSE_SECONDS = 0.01
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DEEPEST = 500
"""Levels of directories that a walk goes down; each takes two descriptors meanwhile."""
_MOST_LINKED = 1_000_000
"""Files of several names that are remembered, some 100 MB; later ones count with each name."""


class TooManyFiles(Exception):
    """A walk was given up: the directory has more entries, or more levels, than it may look at."""


def files_use(directory: str, clock: Clock) -> DiskUse | None:
    """What the files right in a directory take; None if there is no such directory."""
    used = inodes = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):  # known without asking for its status
                        continue
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                used += status.st_blocks * _BLOCK
                inodes += 1
    except (OSError, ValueError):
        return None
    return DiskUse(clock.now_ns(), used, inodes)


def file_use(path: str, clock: Clock) -> DiskUse | None:
    """What one file takes; None if it is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return DiskUse(clock.now_ns(), status.st_blocks * _BLOCK, 1)


def tree_use(directory: str, clock: Clock, most: int, pause: bool = False) -> DiskUse | None:
    """What a directory takes with all below it; None if it is not there. Raises TooManyFiles after `most`
    names, be they of one file, and where directories are nested too deeply.

    With `pause` a long walk leaves the machine some time now and then. It tells the moment of its beginning:
    what was written meanwhile it may not have seen.
    """
    at_ns = clock.now_ns()
    try:
        top = os.stat(directory)
    except (OSError, ValueError):
        return None
    used, inodes = top.st_blocks * _BLOCK, 1
    seen: set[int] = set()
    with closing(_walk(directory, top.st_dev)) as found:
        for names, status in enumerate(found, 2):
            if names > most:
                raise TooManyFiles(f"it has more than {most} files")
            if pause and not names % _PAUSE_EVERY:
                time.sleep(_PAUSE_SECONDS)
            if status is None:
                continue
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                if status.st_ino in seen:
                    continue
                if len(seen) < _MOST_LINKED:
                    seen.add(status.st_ino)
            used += status.st_blocks * _BLOCK
            inodes += 1
    return DiskUse(at_ns, used, inodes)


def _walk(directory: str, device: int) -> Generator[os.stat_result | None, None, None]:
    """Every name below, in no order; None for what vanishes meanwhile or is on another filesystem.

    Each directory is opened in the one above it and left before the next: no path is too long for that,
    none is kept, and no link is followed that took a directory's place. Of what is mounted at one nothing is
    asked: its server may be away.
    """
    levels: list[_Level] = []
    try:
        with suppress(OSError):
            levels.append(_Level(os.open(directory, _DIRECTORY)))
        while levels:
            above = levels[-1]
            entry = above.next()
            if entry is None:
                levels.pop().close()
                continue
            try:
                if not entry.is_dir(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield status if status.st_dev == device else None
                    continue
                below = _Level(enter(entry.name, _DIRECTORY | os.O_NOFOLLOW, above.descriptor))
            except OSError:
                yield None
                continue
            if len(levels) == _DEEPEST:
                below.close()
                raise TooManyFiles(f"its directories are nested deeper than {_DEEPEST} levels")
            levels.append(below)
            status = os.fstat(below.descriptor)
            if status.st_dev != device:
                levels.pop().close()
            yield status if status.st_dev == device else None
    finally:
        for level in levels:
            level.close()


class _Level(OpenDirectory):
    """A directory that is looked through."""

    def next(self) -> os.DirEntry[str] | None:
        """The next name as far as the directory can be read; None at the end."""
        with suppress(OSError):
            return next(self.found, None)
        return None
