"""Mounting and unmounting: three system calls, and what the kernel's list of mounts says. Blocking."""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from trio_kubelet.common.mountinfo import Mount, mount_holding, mount_point, mounts_from

MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MOUNT_FLAGS = {
    "ro": MS_RDONLY,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
}
"""Options of mounts that are about one mount, not about the filesystem."""
_MS_REC = 16384
_MS_SHARED = 1 << 20
_MNT_FORCE = 1
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, fs_type: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2). Raises OSError."""
    arguments = [os.fsencode(text) if text else None for text in (source, target, fs_type)]
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options) if options else None)
    _check(result, target)


def unmount(path: str, *, force: bool = False) -> None:
    """umount2(2), never following a symbolic link at `path`. With `force` what waits for a server that is
    away is given up. Raises OSError.
    """
    flags = _UMOUNT_NOFOLLOW | (_MNT_FORCE if force else 0)
    _check(_libc.umount2(os.fsencode(path), flags), path)


def mount_tmpfs(target: str, size: int) -> None:
    """A filesystem in memory; `size` in bytes, 0 for the kernel's default. Raises OSError.

    It is never swapped out where the kernel knows how (6.4 and later), for secrets are kept in it.
    """
    limit = f"size={size}" if size else ""
    try:
        mount("tmpfs", target, "tmpfs", options=",".join(filter(None, (limit, "noswap"))))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        mount("tmpfs", target, "tmpfs", options=limit)


def mount_huge_pages(target: str, page_size: str) -> None:
    """A filesystem of huge pages of this size (`2Mi`). Raises OSError."""
    mount("nodev", target, "hugetlbfs", options=f"pagesize={page_size}")


def make_rshared(path: str) -> None:
    """What is mounted below the directory is seen by its peers, and what they mount there is seen here.

    A directory on a mount that is shared already is left alone, any other becomes a mount of its own
    (kubelet: `DoMakeRShared`). What was mounted below before moves along. In a chroot whose root is no mount
    point it may be on none that this process sees: then it becomes one, too, where the kubelet ends with
    "cannot find mount point". Raises OSError.
    """
    real = os.path.realpath(path)
    holding = mount_holding(real)
    if holding is not None and holding.shared:
        return
    if holding is None or holding.path != real:
        below = [os.open(found.path, os.O_PATH | os.O_CLOEXEC) for found in mounts_below(real)]
        try:
            mount(real, real, flags=MS_BIND | _MS_REC)
            for covered in below:  # each was copied; the original would keep its directory from being removed
                _check(_libc.umount2(f"/proc/self/fd/{covered}".encode(), _MNT_DETACH), real)
        finally:
            for covered in below:
                os.close(covered)
    mount("", real, flags=_MS_SHARED | _MS_REC)


def mount_at(path: str) -> Mount | None:
    """The topmost mount exactly at `path` (not followed if it is a link), None if there is none."""
    return mount_point(real_path(path))


def real_path(path: str) -> str:
    """A path as the list of mounts has it. What is mounted there is not asked anything: its server may be
    away.
    """
    parent, name = os.path.split(path)
    return os.path.join(os.path.realpath(parent), name)


def has_own_filesystem(path: str) -> bool:
    """Whether a directory (not followed if it is a link) is where another filesystem begins.

    What a list of mounts says too; but that list is long on a node of many pods, and this is asked for each
    volume in memory each time its pod is looked after. Raises OSError other than for what is not there.
    """
    try:
        own, above = os.lstat(path), os.stat(os.path.dirname(path))
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(own.st_mode) and own.st_dev != above.st_dev


def mounts_below(directory: str) -> list[Mount]:
    """Mounts at or below a directory, the last made first: the order to unmount them in."""
    real = real_path(directory.rstrip("/"))
    return mounts_from(real)[::-1]


def _check(result: int, path: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
