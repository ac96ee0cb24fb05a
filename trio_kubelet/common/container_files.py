"""Opens files that containers may have written: reading them neither waits nor leads anywhere else.

A container that shares a directory with the agent can put a link, a FIFO, a device or a file of terabytes
where a small file is expected, and exchange it while the agent looks. So a path is opened one step after the
other below a directory the container cannot exchange, never through a link that leads out of it; what was
opened must be a regular file; and what is read of it has a limit. Blocking, but not for a FIFO's writer.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

MOST_LINKS: Final = 255
"""Links that are followed on one way before it counts as a loop."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


class TooLarge(OSError):
    """A file is larger than the reader takes."""


def open_regular(path: str) -> int:
    """Opens a file whose directory no container can exchange. Raises OSError, ELOOP if it is a link."""
    return _regular(os.open(path, _FILE), path)


def open_below(directory: str, path: str, *, links: bool = False) -> int:
    """Opens `path` below a directory. Raises OSError, ELOOP if there is a link on the way.

    With `links` they are followed as if the directory were the root, so that none leads out of it.
    """
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    way = [os.open(directory, _DIRECTORY)]  # the directories walked through, each in the one before
    left = MOST_LINKS if links else 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":
                if len(way) > 1:
                    os.close(way.pop())
                continue
            target = _link(part, way[-1])
            if target is None and todo:
                way.append(os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=way[-1]))
            elif target is None:
                return _regular(os.open(part, _FILE, dir_fd=way[-1]), path)
            elif not left:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            else:
                left -= 1
                todo += [step for step in reversed(target.split("/")) if step not in ("", ".")]
                while target.startswith("/") and len(way) > 1:
                    os.close(way.pop())
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    finally:
        for descriptor in way:
            os.close(descriptor)


def read_capped(descriptor: int, limit: int) -> bytes:
    """The whole file, which is closed. Raises TooLarge if that is more than `limit` bytes, OSError."""
    with open(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(errno.EFBIG, f"larger than {limit} bytes")
    return data


def _link(name: str, directory: int) -> str | None:
    """Where a link leads, None if there is no link of that name."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _regular(descriptor: int, path: str) -> int:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "not a regular file", path)
