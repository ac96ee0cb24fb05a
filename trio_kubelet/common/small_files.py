"""Small files, read and written whole with as few calls of the kernel as that takes.

`open()` asks besides what kind of file it has, whether that is a terminal and where in it one stands. In a
worker thread each call gives the interpreter away and has to get it back, which takes up to a tenth of a
millisecond while the event loop computes (`common/interpreter.py`). Blocking.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final

SMALL: Final = 64 << 10
"""Bytes: more than the kernel says in any file that holds one value, or one list of names."""


class TooLarge(OSError):
    """A file is larger than the reader takes."""


def read_small(path: str, limit: int = SMALL) -> bytes:
    """The whole file. Raises TooLarge if that is more than `limit` bytes, OSError."""
    return read_capped(os.open(path, os.O_RDONLY | os.O_CLOEXEC), limit)


def read_capped(descriptor: int, limit: int) -> bytes:
    """The whole file, which is closed. Raises TooLarge if that is more than `limit` bytes, OSError."""
    parts, left = [], limit + 1
    try:
        while left and (part := os.read(descriptor, min(left, SMALL))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    if not left:
        raise TooLarge(errno.EFBIG, f"larger than {limit} bytes")
    return b"".join(parts)


def write_small(path: str, content: bytes, *, mode: int, sync: bool = False) -> None:
    """The file, made if it is not there, has this content and mode, whatever the umask; with `sync` on disk.

    In place: who has it open sees it change. Raises OSError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        while content:
            content = content[os.write(descriptor, content) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_small(path: str, content: bytes, *, mode: int, sync: bool = True) -> None:
    """The file has this content and mode or, whatever happens, stays as it was; with `sync` also when the
    power goes.

    Nobody sees half of it: who has it open goes on with the old one. Raises OSError.
    """
    fresh = unfinished(path)
    try:
        write_small(fresh, content, mode=mode, sync=sync)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):
            os.unlink(fresh)
        raise


def unfinished(path: str) -> str:
    """What `replace_small` leaves beside it if it is killed: who removes the directory removes that."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.new")
