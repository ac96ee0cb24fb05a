"""The files of a certificate and its key: their paths, their versions, and writing them whole.

Blocking: for a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import msgspec


class PairFiles(msgspec.Struct, frozen=True):
    """Where a certificate chain and its key are; the same path twice for a file that holds both."""

    certificate: str
    key: str


def file_versions(paths: Iterable[str]) -> tuple[object, ...]:
    """What changes when one of the files is replaced, links followed. Raises OSError. Blocking."""
    stats = [os.stat(path) for path in paths]
    return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


def write_whole(path: str, data: bytes, mode: int) -> None:
    """Writes a file so that nobody ever sees half of it, power cuts included. Raises OSError. Blocking."""
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):  # moved to its place, if all went well
            os.unlink(temporary)
