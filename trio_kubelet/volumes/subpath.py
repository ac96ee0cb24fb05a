"""Parts of volumes, bound where a container cannot exchange them.

A container may put a symbolic link into its volume while the part is being mounted. So the part is opened
step by step without following links, starting at the volume, and what was opened is what gets mounted
(kubelet: `pkg/volume/util/subpath`, CVE-2017-1002101, CVE-2021-25741). Blocking.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import msgspec

from trio_kubelet.common.beneath import Links, look_beneath
from trio_kubelet.common.go_words import error_words
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import make_dirs
from trio_kubelet.volumes.linux import MS_BIND, mount, unmount
from trio_kubelet.volumes.mount_points import is_mount_point

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TARGET_FILE_MODE = 0o640
_TARGET_DIR_MODE = 0o750


class SubPath(msgspec.Struct, frozen=True):
    """A part of a volume that is to be bound to `target`; `path` is relative to the volume."""

    volume: str
    volume_path: str
    path: str
    target: str


class SubPathNotMade(VolumeError):
    """A part of a volume was not there, and no directory could be made in its place."""


def bind_sub_path(part: SubPath) -> None:
    """Makes the part if it is missing and binds it to its target; once bound it stays. Raises OSError,
    VolumeError if it is outside the volume, and SubPathNotMade.
    """
    volume = os.path.realpath(part.volume_path)
    wanted = os.path.normpath(os.path.join(volume, part.path))
    if _is_missing(wanted):
        try:
            _make_inside(volume, wanted)
        except (OSError, VolumeError) as error:
            raise SubPathNotMade(error_words(error)) from error
    descriptor = _open_inside(volume, os.path.realpath(wanted))
    try:
        _bind(descriptor, part.target)
    finally:
        os.close(descriptor)


def _is_missing(path: str) -> bool:
    """Whether there is nothing; what cannot be reached is not missing."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _open_inside(volume: str, path: str) -> int:
    """Opens a path (no links in it) below the volume, one step after the other."""
    relative = os.path.relpath(path, volume)
    if relative.split("/")[0] == "..":
        raise VolumeError("subPath is not within the volume")
    if relative == ".":  # the volume may be a file
        return os.open(volume, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return look_beneath(volume, relative, Links.REFUSED)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise VolumeError(f"unexpected symbolic link in volume: {relative}") from exc
        raise


def _make_inside(volume: str, wanted: str) -> None:
    """Makes the missing directories with the volume's own mode, so that its users can write there."""
    mode = stat.S_IMODE(os.stat(volume).st_mode)
    existing, missing = wanted, list[str]()
    while not os.path.lexists(existing):
        existing, name = os.path.split(existing)
        missing.append(name)
    current = _open_inside(volume, os.path.realpath(existing))
    try:
        for name in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=current)
            following = os.open(name, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = following
            os.fchmod(current, mode)
    finally:
        os.close(current)


def _shows(target: str, source: os.stat_result) -> bool:
    """Whether a mount shows just that. One that shows nothing any more (ESTALE: the directory was made anew
    on its server) does not; with a kubelet its containers never start again (kubernetes/kubernetes 138856).
    """
    try:
        there = os.stat(target)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino)


def _bind(descriptor: int, target: str) -> None:
    source = os.fstat(descriptor)
    if is_mount_point(target):  # a container may have thousands: the list of mounts is not read for each
        if _shows(target, source):
            return
        unmount(target)
    make_dirs(os.path.dirname(target))
    is_directory = stat.S_ISDIR(source.st_mode)
    if os.path.lexists(target) and os.path.isdir(target) != is_directory:  # what it showed was something else
        os.unlink(target) if is_directory else os.rmdir(target)
    if is_directory:
        with contextlib.suppress(FileExistsError):
            os.mkdir(target, _TARGET_DIR_MODE)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, _TARGET_FILE_MODE))
    mount(f"/proc/self/fd/{descriptor}", target, flags=MS_BIND)
