"""How much space files take: a walk over a directory, in a thread and bounded. Nothing is executed.

The rules are the kubelet's (`volume/util/fs`): allocated blocks count, a file with several names counts
once, and a walk stays on the filesystem it began on.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from trio_kubelet.common.clock import Clock
from trio_kubelet.machine.values import DiskUse

_BLOCK = 512
_PAUSE_EVERY = 5_000
_PAUSE_SECONDS = 0.01


class TooManyFiles(Exception):
    """A walk was given up: the directory has more entries than it may look at."""


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
    """What a directory takes with all below it; None if it is not there. Raises TooManyFiles after `most`.

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
    for status in _walk(directory, top.st_dev):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in seen:
                continue
            seen.add(status.st_ino)
        used += status.st_blocks * _BLOCK
        inodes += 1
        if inodes > most:
            raise TooManyFiles(directory)
        if pause and not inodes % _PAUSE_EVERY:
            time.sleep(_PAUSE_SECONDS)
    return DiskUse(at_ns, used, inodes)


def _walk(directory: str, device: int) -> Iterator[os.stat_result]:
    """Everything below, in no order; what vanishes meanwhile is left out."""
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if status.st_dev != device:
                        continue
                    yield status
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
        except OSError:
            continue
