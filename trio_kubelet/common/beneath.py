"""Opening what is below a directory, by a name that somebody else chose, among files that somebody else made.

Every step is taken from a descriptor, so that nothing can be exchanged between a check and its use. What is
found is only looked at: a FIFO, a device or a socket is never opened by it. What a link means is the caller's
to say, see `Links`. Blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from enum import Enum
from typing import Final

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSOLUTE: Final = "/"


class Links(Enum):
    """What a link on the way means; the value: how many are followed before they count as a loop."""

    REFUSED = 0
    """None is followed: ELOOP."""
    INSIDE = 8
    """As with Go's `os.Root`: followed as long as they stay below the directory, and so is `..`."""
    AS_ROOT = 255
    """As in a container's own file system: as if the directory were the root, so that none leads out."""


class OutsideRoot(OSError):
    """The path leads out of the directory."""

    def __init__(self) -> None:
        super().__init__(errno.EXDEV, "path escapes from parent")


def look_beneath(root: str, name: str, links: Links = Links.INSIDE) -> int:
    """A descriptor (`O_PATH`) of `name` below `root`; the caller's to close.

    Raises OutsideRoot with `Links.INSIDE`, also for a link with an absolute target, and other OSError.
    """
    if "\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    way = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    followed = 0
    left = deque(_steps(name))
    try:
        while left:
            part = left.popleft()
            _check_directory(way[-1])
            if part == _ABSOLUTE or (part == ".." and len(way) == 1):
                if links is Links.INSIDE:
                    raise OutsideRoot
                while len(way) > 1:
                    os.close(way.pop())
            elif part == "..":
                os.close(way.pop())
            elif part not in ("", "."):
                found = os.open(part, _LOOK, dir_fd=way[-1])
                way.append(found)
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    followed += 1
                    target = os.readlink("", dir_fd=found)
                    os.close(way.pop())
                    if target.startswith("/") and links is Links.INSIDE:
                        raise OutsideRoot
                    if followed > links.value:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    left.extendleft(reversed(_steps(target)))
        return way.pop()
    finally:
        for descriptor in way:
            os.close(descriptor)


def open_beneath(root: str, name: str) -> int:
    """As `look_beneath`, but a regular file or a directory can be read; the caller's to close."""
    looked = look_beneath(root, name)
    kind = os.fstat(looked).st_mode
    return open_looked(looked) if stat.S_ISREG(kind) or stat.S_ISDIR(kind) else looked


def open_looked(looked: int) -> int:
    """Opens for reading what was looked at, whose descriptor is closed. Raises OSError."""
    try:
        return os.open(f"/proc/self/fd/{looked}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(looked)


def _steps(path: str) -> list[str]:
    return [_ABSOLUTE, *path.split("/")] if path.startswith("/") else path.split("/")


def _check_directory(descriptor: int) -> None:
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
