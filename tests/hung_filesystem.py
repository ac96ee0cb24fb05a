"""A filesystem whose server stops answering, as that of a dead NFS server. It is one over FUSE: a directory
in which there is nothing but `part`, which is the like of it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_DETACH: Final = 2
_ENOENT, _ENOSYS = 2, 38
_GETATTR, _STATFS, _INIT, _OPENDIR, _READDIR, _ACCESS = 3, 17, 26, 27, 28, 34
_RELEASE: Final = (25, 29)
_LOOKUP: Final = 1
_SILENT: Final = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET have no answer


class HungFilesystem:
    """Mounted at a directory. While it hangs, whoever asks anything of it waits until it is killed."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self._answers = threading.Event()
        self._answers.set()
        self._ended = False
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _LIBC.mount(b"hung", os.fsencode(at), b"fuse", 0, options.encode()):
            error = ctypes.get_errno()
            os.close(self._device)
            raise OSError(error, os.strerror(error))
        os.set_blocking(self._device, False)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def hang(self) -> None:
        """Nothing is answered any more."""
        self._answers.clear()

    def go_on(self) -> None:
        """What was asked meanwhile is answered, and all that follows."""
        self._answers.set()

    def end(self) -> None:
        """Whoever waits has an error."""
        self._ended = True
        self._answers.set()
        self._thread.join()
        os.close(self._device)
        _LIBC.umount2(os.fsencode(self.at), _DETACH)

    def _serve(self) -> None:
        while not self._ended:
            self._answers.wait()
            try:
                request = os.read(self._device, 1 << 17)
            except BlockingIOError:
                time.sleep(0.002)
                continue
            except OSError:
                return  # unmounted
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            if opcode in _SILENT:
                continue
            error, body = self._answer(opcode, node, request[_IN.size :].rstrip(b"\0"))
            answer = _OUT.pack(_OUT.size + len(body), -error, unique) + body
            try:
                os.write(self._device, answer)
            except OSError:
                continue  # who asked has been killed

    def _answer(self, opcode: int, node: int, name: bytes) -> tuple[int, bytes]:
        if opcode == _INIT:
            return 0, struct.pack("<IIIIHHII", 7, 31, 0, 0, 12, 9, 4096, 1) + bytes(32)
        if opcode == _GETATTR:
            return 0, bytes(16) + _directory(node)
        if opcode == _LOOKUP and name == b"part":
            return 0, struct.pack("<2Q", node + 1, 0) + bytes(24) + _directory(node + 1)
        if opcode == _OPENDIR:
            return 0, bytes(16)
        if opcode in (_READDIR, _ACCESS, *_RELEASE):
            return 0, b""
        if opcode == _STATFS:
            return 0, bytes(80)
        return (_ENOENT if opcode == _LOOKUP else _ENOSYS), b""


def _directory(node: int) -> bytes:
    """Its attributes."""
    return struct.pack("<6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)


def must_end(work: Callable[[], T], filesystem: HungFilesystem, seconds: float = 20) -> T:
    """What comes of blocking work that is not to ask the filesystem, which hangs, anything."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    filesystem.hang()
    thread.start()
    thread.join(seconds)
    hangs = thread.is_alive()
    filesystem.go_on()
    thread.join()
    assert not hangs, "it waits for the filesystem"
    return results[0]


@contextmanager
def hung_filesystem(at: Path) -> Iterator[HungFilesystem]:
    """A filesystem mounted there, which answers until it is told otherwise."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("the kernel has no FUSE")
    at.mkdir(parents=True, exist_ok=True)
    filesystem = HungFilesystem(at)
    try:
        yield filesystem
    finally:
        filesystem.end()
