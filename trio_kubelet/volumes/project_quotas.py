"""Project quotas: the filesystem itself counts what is in a directory, instead of a walk over all its files.

XFS and ext4 can, where they are mounted with `prjquota`. A directory gets a project of its own while it is
empty; the project's number stays with the directory, so nothing has to be known after a restart. The numbers
given away stand in `/etc/projects` and `/etc/projid`, for administrators and a kubelet on the same machine
(kubelet: `fsquota`). Only pods in a user namespace are counted so: others could give their files to another
project. Nothing is limited, only counted. Blocking.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

FIRST: Final = 1_048_577
"""The lowest number of a volume's project (kubelet: `FirstQuota`)."""
_MOST_IN_USE: Final = 128
"""Numbers that turn out to be in use although no file says so, before the search is given up."""
ETC = "/etc"

_QUOTACTL_FD: Final = 443  # the system call's number on every architecture
_PROJECTS: Final = 2
_GET_INFO: Final = (0x800005 << 8) | _PROJECTS
_GET_QUOTA: Final = (0x800007 << 8) | _PROJECTS
_QUOTA: Final = struct.Struct("=8QI4x")  # if_dqblk: what is in use stands third (bytes) and sixth (inodes)
_GET_ATTRIBUTES: Final = 0x801C581F  # FS_IOC_FSGETXATTR
_SET_ATTRIBUTES: Final = 0x401C5820
_ATTRIBUTES: Final = struct.Struct("=5I8x")  # fsxattr: flags, extent size, extents, project, CoW extent size
_INHERIT: Final = 0x200
_PLAIN: Final = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class Counted(msgspec.Struct, frozen=True):
    """What a project has: bytes and inodes."""

    used: int
    inodes: int


def assign(path: str) -> bool:
    """Gives an empty directory a project of its own; False where its filesystem counts none. May be repeated.
    Raises OSError and ValueError.
    """
    with _opened(path) as directory:
        if not _counts(directory):
            return False
        if _project(directory) >= FIRST:
            return True
        with _Register() as register:
            number = register.number_for(path, lambda each: _in_use(directory, each))
        flags, extent, _, _, cow_extent = _attributes(directory)
        wanted = _ATTRIBUTES.pack(flags | _INHERIT, extent, 0, number, cow_extent)
        fcntl.ioctl(directory, _SET_ATTRIBUTES, wanted)
        return True


def counted(path: str) -> Counted | None:
    """What is in a directory that has a project of its own; None for any other."""
    try:
        with _opened(path) as directory:
            number = _project(directory)
            return _quota(directory, number) if number >= FIRST else None
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTTY, errno.EOPNOTSUPP):
            log.warning("A project quota cannot be read, the files are looked at", path=path, err=error)
        return None


def forget_below(path: str) -> None:
    """Directories below have no projects any more. Where that cannot be written down, their numbers stay
    taken, which is no reason for a pod not to end (kubelet: `teardownDefault`).
    """
    try:
        with _Register() as register:
            register.forget_below(path)
    except OSError as error:
        log.warning("Numbers of project quotas cannot be given back", path=path, err=error)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    directory = os.open(path, _DIRECTORY)
    try:
        yield directory
    finally:
        os.close(directory)


def _attributes(directory: int) -> tuple[int, ...]:
    found = bytearray(_ATTRIBUTES.size)
    fcntl.ioctl(directory, _GET_ATTRIBUTES, found)
    return _ATTRIBUTES.unpack(found)


def _project(directory: int) -> int:
    return _attributes(directory)[3]


def _quotactl(directory: int, command: int, number: int) -> bytes:
    answer = ctypes.create_string_buffer(256)
    if _libc.syscall(_QUOTACTL_FD, directory, ctypes.c_uint(command), ctypes.c_uint(number), answer):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer.raw


def _counts(directory: int) -> bool:
    """Whether the filesystem counts what projects have."""
    try:
        _quotactl(directory, _GET_INFO, 0)
    except OSError:
        return False
    return True


def _quota(directory: int, number: int) -> Counted:
    try:
        found = _QUOTA.unpack_from(_quotactl(directory, _GET_QUOTA, number))
    except FileNotFoundError:  # XFS knows none that has nothing
        return Counted(0, 0)
    return Counted(found[2], found[5])


def _in_use(directory: int, number: int) -> bool:
    return _quota(directory, number) != Counted(0, 0)


class _Register:
    """`projects` (number:path) and `projid` (name:number), locked. Lines that are not understood stay."""

    def __init__(self) -> None:
        self._projects_path, self._names_path = os.path.join(ETC, "projects"), os.path.join(ETC, "projid")

    def __enter__(self) -> _Register:
        self._locks: list[int] = []
        try:
            self._projects = self._read(self._projects_path)
            self._names = self._read(self._names_path)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._locks:
            os.close(each)

    def number_for(self, path: str, in_use: Callable[[int], bool]) -> int:
        """The number of a directory, a new one unless it has one. Raises OSError and ValueError."""
        taken = set()
        for line in self._projects:
            if (found := re.fullmatch(r"(\d+):(.*)", line)) is not None:
                if found[2] == path:
                    return int(found[1])
                taken.add(int(found[1]))
        taken |= {int(found[1]) for line in self._names if (found := re.fullmatch(r"[^#:]+:(\d+)", line))}
        number, busy = FIRST, 0
        while number in taken or in_use(number):
            busy += number not in taken
            if busy > _MOST_IN_USE:
                raise ValueError("cannot find available quota ID")
            number += 1
        self._write(self._names_path, [*self._names, f"volume{number}:{number}"])
        self._write(self._projects_path, [*self._projects, f"{number}:{path}"])
        return number

    def forget_below(self, path: str) -> None:
        """Drops the numbers of all directories below."""
        below = re.compile(rf"(\d+):{re.escape(path.rstrip('/'))}/.*")
        gone = {found[1] for line in self._projects if (found := below.fullmatch(line)) is not None}
        if not gone:
            return
        kept = [line for line in self._projects if below.fullmatch(line) is None]
        gone -= {line.partition(":")[0] for line in kept}
        self._write(self._projects_path, kept)
        names = [line for line in self._names if line.rpartition(":")[2] not in gone or line.startswith("#")]
        self._write(self._names_path, names)

    def _read(self, path: str) -> list[str]:
        """The lines of a file, which is locked and made if need be; never anything but a plain file."""
        while True:
            file = os.open(path, _PLAIN, 0o644)
            self._locks.append(file)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "exists but is not a plain file, cannot continue", path)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), os.stat(path)):  # nobody replaced it meanwhile
                with open(file, encoding="utf-8", errors="surrogateescape", closefd=False) as text:
                    return text.read().splitlines()

    def _write(self, path: str, lines: list[str]) -> None:
        fresh = f"{path}.trio-kubelet"
        with open(fresh, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{line}\n" for line in lines)
            os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
