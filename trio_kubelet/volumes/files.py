"""Directories of volumes and their removal. Blocking; nothing here follows a symbolic link that a
container may have put there.
"""

from __future__ import annotations

import contextlib
import errno
import os

from trio_kubelet.volumes.linux import mounts_below, unmount
from trio_kubelet.volumes.mount_points import can_tell, enter, mounted_volumes

POD_DIR_MODE = 0o750
_PLUGIN_DIR_MODE = 0o755
_MOST_PENDING = 10_000  # names that are remembered while a directory is removed, which may have millions
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_dirs(path: str, mode: int = POD_DIR_MODE) -> None:
    """Makes a directory and what is missing above it, all with this mode whatever the umask. Raises
    OSError.
    """
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(path, mode)
        except (FileNotFoundError, NotADirectoryError):
            make_dirs(os.path.dirname(path), mode)
            os.mkdir(path, mode)
        os.chmod(path, mode)


def make_volume_dir(path: str) -> None:
    """A volume's directory, open to all (the container's user is not known); its parent is 0755."""
    make_dirs(os.path.dirname(os.path.dirname(path)))
    make_dirs(os.path.dirname(path), _PLUGIN_DIR_MODE)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    os.chmod(path, 0o777)


def entries(directory: str) -> list[str]:
    """Names in a directory in order; none where there is no directory. Raises OSError."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def unmount_all(directory: str) -> None:
    """Unmounts everything at or below a directory. Raises OSError for what cannot be unmounted."""
    for found in mounts_below(directory):
        unmount(found.path)


def unmount_volumes(pod_directory: str) -> None:
    """Unmounts a pod's volumes; with what containers mounted in them only where that is in the way. Raises
    OSError for what cannot be unmounted.
    """
    if not can_tell():
        unmount_all(pod_directory)
        return
    try:
        while found := mounted_volumes(pod_directory):
            for path in found:
                unmount(path)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        unmount_all(pod_directory)


def take_away(path: str) -> None:
    """Unmounts everything at or below a directory and removes it; nothing there is fine. Raises OSError.

    What is mounted is found on the way and keeps its files.
    """
    try:
        (_remove if can_tell() else remove_tree)(path)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EBUSY):
            raise
        unmount_all(path)
        remove_tree(path)


def remove_tree(path: str) -> None:
    """Removes a file or directory with everything in it; nothing there is fine.

    Refuses with OSError while anything is mounted at or below it, and then removes nothing: what a hostPath
    volume shows must survive its pod.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if mounted := mounts_below(path):
        raise OSError(errno.EBUSY, f"still mounted: {', '.join(mount.path for mount in mounted)}", path)
    _remove(path)


def _remove(path: str) -> None:
    """Directories are moved up into `path` one after the other and emptied there: however deep a container
    nested them, nothing recurses. No mount is entered (EXDEV), and none can be moved or removed (EBUSY).
    """
    parent, name = os.path.split(path.rstrip("/"))
    try:
        above = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _remove_in(above, name)
    finally:
        os.close(above)


def _remove_in(above: int, name: str) -> None:
    try:
        top = enter(name, _OPEN_DIRECTORY, above)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=above)
        return
    try:
        while not _empty(top):
            pass
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _empty(top: int) -> bool:
    """Removes what is in a directory; whether that was all: False if some came up meanwhile."""
    all_gone = True
    with os.scandir(top) as found:
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=top)
            elif not _remove_below(entry.name, top):
                all_gone = False
    return all_gone


def _remove_below(name: str, top: int) -> bool:
    """Removes a directory in `top` with all that is in it, of which no more names are kept than is set. False
    if there were more directories in it: they are in `top` now.
    """
    pending, all_gone = [name], True
    while pending:
        below = pending.pop()
        directory = enter(below, _OPEN_DIRECTORY, top)
        try:
            with os.scandir(directory) as found:
                for entry in found:
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=directory)
                        continue
                    moved = os.urandom(16).hex()
                    os.rename(entry.name, moved, src_dir_fd=directory, dst_dir_fd=top)
                    if len(pending) < _MOST_PENDING:
                        pending.append(moved)
                    else:
                        all_gone = False
        finally:
            os.close(directory)
        os.rmdir(below, dir_fd=top)
    return all_gone
