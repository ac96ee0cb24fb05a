"""Opens files that containers may have written: reading them neither waits nor leads anywhere else.

A container that shares a directory with the agent can put a link, a FIFO, a device or a file of terabytes
where a small file is expected, and exchange it while the agent looks. So a path is opened one step after the
other (`beneath`) below a directory the container cannot exchange, never through a link that leads out of it;
only a regular file is opened; and what is read of it has a limit (`small_files`). Blocking, but not for a
FIFO's writer.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from trio_kubelet.common.beneath import Links, look_beneath, open_looked

_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: str) -> int:
    """Opens a file whose directory no container can exchange. Raises OSError, ELOOP if it is a link."""
    return _open(os.open(path, _LOOK), path)


def open_below(directory: str, path: str, *, links: bool = False) -> int:
    """Opens `path` below a directory. Raises OSError, ELOOP if there is a link on the way.

    With `links` they are followed as if the directory were the root, so that none leads out of it.
    """
    return _open(look_beneath(directory, path, Links.AS_ROOT if links else Links.REFUSED), path)


def _open(looked: int, path: str) -> int:
    """Opens what was looked at, if it is a regular file."""
    mode = os.fstat(looked).st_mode
    if stat.S_ISREG(mode):
        return open_looked(looked)
    os.close(looked)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    raise OSError(errno.EINVAL, "not a regular file", path)
