"""Directories of volumes and their removal. Blocking; nothing here follows a symbolic link that a
container may have put there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections import deque

from trio_kubelet.volumes.linux import mounts_below, unmount
from trio_kubelet.volumes.mount_points import can_tell, enter, mounted_volumes

POD_DIR_MODE = 0o750
_PLUGIN_DIR_MODE = 0o755
_MOST_OPEN = 32  # levels of a directory that is removed; each takes two descriptors meanwhile
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
    """Removes what is there, which takes neither room on the disk nor, however deep a container nested its
    directories, much memory. No mount is entered (EXDEV), and none can be removed (EBUSY). What somebody else
    removes meanwhile is gone, too.
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


def _fine_if_gone() -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(FileNotFoundError)


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
    _empty(_Level(top))
    with _fine_if_gone():
        os.rmdir(name, dir_fd=above)


class OpenDirectory:
    """An open directory whose names are gone through. Raises OSError; the descriptor is closed then."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        try:
            self.found = os.scandir(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        self.found.close()
        os.close(self.descriptor)


class _Level(OpenDirectory):
    """One that is being emptied; `name` is "" if it was opened from one in it."""

    def __init__(self, descriptor: int, name: str = "") -> None:
        super().__init__(descriptor)
        self.name = name

    def next_directory(self) -> str | None:
        """Removes what is no directory as far as the next one; None at the end."""
        for entry in self.found:
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            with _fine_if_gone():
                os.unlink(entry.name, dir_fd=self.descriptor)
        return None

    def inode(self) -> int:
        return os.fstat(self.descriptor).st_ino


def _empty(top: _Level) -> None:
    """Removes what is in a directory, which is closed then. Of more levels than are open at a time the upper
    ones are closed, and looked through again when those below are empty.
    """
    levels, closed = deque([top]), array("Q")  # inodes of those that are closed
    try:
        while True:
            level = levels[-1]
            if (name := level.next_directory()) is not None:
                with _fine_if_gone():
                    levels.append(_Level(enter(name, _OPEN_DIRECTORY, level.descriptor), name))
                if len(levels) > _MOST_OPEN:
                    closed.append(levels[0].inode())
                    levels.popleft().close()
                continue
            if closed and len(levels) == 1:
                levels.appendleft(_Level(enter("..", _OPEN_DIRECTORY, level.descriptor)))
                if levels[0].inode() != closed.pop():
                    raise OSError(errno.ESTALE, "a directory was moved while it was removed")
            if len(levels) == 1:
                return
            levels.pop().close()
            if level.name:  # else it is found again
                with _fine_if_gone():
                    os.rmdir(level.name, dir_fd=levels[-1].descriptor)
    finally:
        for level in levels:
            level.close()
