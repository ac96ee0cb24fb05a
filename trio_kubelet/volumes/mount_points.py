"""Where a mount begins, as the kernel tells it for one name at a time (openat2, Linux 5.6). Blocking.

Its list of all mounts tells that too. But a node of many pods has thousands, and a removal of many pods
asks again and again, while the runtime that mounts and unmounts waits for who reads the list.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Iterator
from typing import Final

from trio_kubelet.volumes.linux import mount_at

_OPENAT2: Final = 437  # the system call's number on every architecture
_HOW: Final = struct.Struct("=3Q")  # open_how: flags, mode, how names are resolved
_NO_XDEV: Final = 1
_MISSING: Final = (errno.ENOSYS, errno.EPERM)  # the kernel's answer, and that of an old seccomp profile
_AT_FDCWD: Final = -100
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

_VOLUMES: Final = {"volumes": 2, "volumeDevices": 2, "volume-subpaths": 3}
"""Where volumes are in a pod's directory, and how many names below they are mounted: names that the agent
gave, for what containers make is below them.
"""

_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def can_tell() -> bool:
    """Whether the kernel tells it. Without that `enter` crosses mounts, and only the list says where."""
    try:
        os.close(_openat2(".", _LOOK, _AT_FDCWD))
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return False
    return True


def enter(name: str, flags: int, directory: int) -> int:
    """A descriptor of a name in an open directory, as `os.open` makes it. Raises OSError; EXDEV where
    something is mounted there, of which nothing is touched.
    """
    if not can_tell():
        return os.open(name, flags, dir_fd=directory)
    return _openat2(name, flags, directory)


def is_mount_point(path: str) -> bool:
    """Whether something is mounted at a path, which is not followed if it is a link; nothing there is fine.
    Raises OSError.
    """
    if not can_tell():
        return mount_at(path) is not None
    parent, name = os.path.split(path)
    try:
        directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    try:
        os.close(enter(name, _LOOK, directory))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
        if error.errno not in _NOT_THERE:
            raise
    finally:
        os.close(directory)
    return False


def mounted_volumes(pod_directory: str) -> list[str]:
    """Paths of a pod's volumes at which something is mounted; what containers mounted in them is not looked
    for. Raises OSError.
    """
    found: list[str] = []
    for part, levels in _VOLUMES.items():
        path = f"{pod_directory}/{part}"
        try:
            directory = os.open(path, _DIRECTORY)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            continue
        try:
            found += [f"{path}/{below}" for below in _mounted_in(directory, levels)]
        finally:
            os.close(directory)
    return found


def _mounted_in(directory: int, levels: int) -> Iterator[str]:
    for name in os.listdir(directory):
        try:
            below = enter(name, _DIRECTORY if levels > 1 else _LOOK, directory)
        except OSError as error:
            if error.errno == errno.EXDEV:
                yield name
            elif error.errno not in _NOT_THERE:
                raise
            continue
        try:
            if levels > 1:
                yield from (f"{name}/{deeper}" for deeper in _mounted_in(below, levels - 1))
        finally:
            os.close(below)


def _openat2(name: str, flags: int, directory: int) -> int:
    how = _HOW.pack(flags, 0, _NO_XDEV)
    descriptor = _libc.syscall(_OPENAT2, directory, os.fsencode(name), how, ctypes.c_size_t(len(how)))
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return int(descriptor)
