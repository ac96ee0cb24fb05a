"""Loop devices: a file or device opened by the kernel itself, so that nobody can exchange it. Blocking."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Final

_CONTROL: Final = "/dev/loop-control"
_SYS: Final = "/sys/block"
_GET_FREE: Final = 0x4C82
_SET_FD: Final = 0x4C00
_CLEAR_FD: Final = 0x4C01
_TRIES: Final = 16


def attach(path: str) -> str:
    """The loop device of a file; there is one afterwards. Raises OSError."""
    if (found := devices_of(path)) != []:
        return found[0]
    try:
        backing = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        backing = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # as is the loop device then
    try:
        return attach_descriptor(backing)
    finally:
        os.close(backing)


def attach_descriptor(backing: int) -> str:
    """A free loop device, given what an open file refers to. Raises OSError."""
    for _ in range(_TRIES):
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            number = fcntl.ioctl(control, _GET_FREE)
        finally:
            os.close(control)
        device = f"/dev/loop{number}"
        _make_node(device, number)
        loop = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(loop, _SET_FD, backing)
        except OSError as error:
            if error.errno != errno.EBUSY:  # somebody else took it meanwhile
                raise
        else:
            return device
        finally:
            os.close(loop)
    raise OSError(errno.EBUSY, "no free loop device")


def detach(path: str) -> None:
    """No loop device shows the file any more. Raises OSError."""
    for device in devices_of(path):
        loop = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(loop, _CLEAR_FD)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        finally:
            os.close(loop)


def devices_of(path: str) -> list[str]:
    """The loop devices that show a file, by the path they were given."""
    real = os.path.realpath(path)
    found = []
    for name in sorted(os.listdir(_SYS)) if os.path.isdir(_SYS) else []:
        if not name.startswith("loop"):
            continue
        with contextlib.suppress(OSError), open(f"{_SYS}/{name}/loop/backing_file", "rb") as file:
            backing = os.fsdecode(file.read()).rstrip("\n")  # of others too, whose names may be no text
            if backing in (path, real):
                found.append(f"/dev/{name}")
    return found


def _make_node(device: str, number: int) -> None:
    """Where nobody makes device nodes, such as in a container, the kernel's new device has none yet."""
    with contextlib.suppress(FileExistsError):
        os.mknod(device, 0o660 | 0o060000, os.makedev(7, number))
