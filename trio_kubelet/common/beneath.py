"""Opening what is below a directory, by a name that somebody else chose, among files that somebody else made.

The rules are those of Go's `os.Root`: links are followed as long as they stay below the directory, and every
step is taken from a descriptor, so that nothing can be exchanged between a check and its use. What is found
is only looked at: a FIFO, a device or a socket is never opened by it. (`container_files` is for what stands
in a container's own file system, where links mean what they mean in there.) Blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from typing import Final

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS: Final = 8  # as Go


class OutsideRoot(OSError):
    """The path leads out of the directory."""

    def __init__(self) -> None:
        super().__init__(errno.EXDEV, "path escapes from parent")


def look_beneath(root: str, name: str) -> int:
    """A descriptor (`O_PATH`) of `name` below `root`; the caller's to close.

    Raises OutsideRoot, also for a link with an absolute target, and other OSError.
    """
    if "\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if name.startswith("/"):
        raise OutsideRoot
    way = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    links = 0
    left = deque(name.split("/"))
    try:
        while left:
            part = left.popleft()
            _check_directory(way[-1])
            if part in ("", "."):
                continue
            if part == "..":
                os.close(way.pop())
                if not way:
                    raise OutsideRoot
                continue
            found = os.open(part, _LOOK, dir_fd=way[-1])
            way.append(found)
            if stat.S_ISLNK(os.fstat(found).st_mode):
                links += 1
                target = os.readlink("", dir_fd=found)
                os.close(way.pop())
                if target.startswith("/"):
                    raise OutsideRoot
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                left.extendleft(reversed(target.split("/")))
        return way.pop()
    finally:
        for descriptor in way:
            os.close(descriptor)


def open_beneath(root: str, name: str) -> int:
    """As `look_beneath`, but a regular file or a directory can be read; the caller's to close."""
    looked = look_beneath(root, name)
    kind = os.fstat(looked).st_mode
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        return looked
    try:
        return os.open(f"/proc/self/fd/{looked}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(looked)


def _check_directory(descriptor: int) -> None:
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
