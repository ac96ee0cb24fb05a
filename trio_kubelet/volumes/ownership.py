"""Giving the files of a volume to a group, which may read and, unless it is read-only, write them (kubelet:
`VolumeOwnership`). New files take the group over. Blocking.

A container may exchange what is walked over for links while it is walked; nothing here follows one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

_READ_WRITE: Final = 0o660
_READ_ONLY: Final = 0o440
_SEARCH: Final = 0o110
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST: Final = 500
"""Levels of directories in a volume that can be given away; each takes two descriptors meanwhile."""


Timed: TypeAlias = Callable[[str], AbstractContextManager[object]]
"""Measures giving volumes of a plugin, of which it is told the name."""


class Progress:
    """How many files have been looked at; read from another thread."""

    def __init__(self) -> None:
        self.files = 0
        self.stop = False


def give_volume(
    directory: str,
    group: int,
    *,
    read_only: bool,
    on_mismatch: bool = False,
    progress: Progress | None = None,
    timed: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Gives a volume to a group. With `on_mismatch` only if its root is not the group's with the rights and
    the set-group-ID bit that the others would get. `timed` measures what is done then. Blocking; raises
    OSError.
    """
    progress = progress or Progress()
    root = os.open(directory, _DIRECTORY)
    try:
        if on_mismatch and not _mismatches(os.fstat(root), group, read_only):
            return
        with timed():
            _walk(root, lambda name, parent: _give(name, parent, group, read_only, progress), progress)
            _give_open(root, os.fstat(root), group, read_only)
            progress.files += 1
    finally:
        os.close(root)


def _mismatches(root: os.stat_result, group: int, read_only: bool) -> bool:
    wanted = (_READ_ONLY if read_only else _READ_WRITE) | _SEARCH
    return root.st_gid != group or root.st_mode & wanted != wanted or not root.st_mode & stat.S_ISGID


def _walk(root: int, give: Callable[[str, int], None], progress: Progress) -> None:
    """Calls `give` with each name below an open directory and the directory's descriptor, children before
    their parents. Raises OSError where directories are nested too deeply.
    """
    levels = [(root, _names(root), "")]
    try:
        while not progress.stop:
            directory, names, own = levels[-1]
            name = next(names, None)
            if name is None:
                if len(levels) == 1:
                    return
                levels.pop()
                os.close(directory)
                give(own, levels[-1][0])
                continue
            try:
                child = os.open(name, _DIRECTORY, dir_fd=directory)
            except OSError:  # no directory, a link, or gone
                give(name, directory)
            else:
                levels.append((child, _names(child), name))
                if len(levels) > _DEEPEST:
                    raise OSError(errno.EMLINK, f"directories are nested deeper than {_DEEPEST} levels")
    finally:
        for level, (descriptor, names, _) in enumerate(levels):
            names.close()
            if level:
                os.close(descriptor)


def _names(directory: int) -> Generator[str, None, None]:
    """Some at a time: a directory may have millions."""
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


def _give(name: str, parent: int, group: int, read_only: bool, progress: Progress) -> None:
    """One file. What cannot be changed is left as it is, like the kubelet does."""
    progress.files += 1
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            # Before the group is another one: then the kernel takes set-user-ID and set-group-ID bits away.
            found = os.fstat(descriptor)
            with contextlib.suppress(OSError):
                os.chown(name, -1, group, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                os.chmod(f"/proc/self/fd/{descriptor}", _mode(found, read_only))
        finally:
            os.close(descriptor)


def _give_open(descriptor: int, found: os.stat_result, group: int, read_only: bool) -> None:
    with contextlib.suppress(OSError):
        os.fchown(descriptor, -1, group)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, _mode(found, read_only))


def _mode(found: os.stat_result, read_only: bool) -> int:
    extra = _READ_ONLY if read_only else _READ_WRITE
    if stat.S_ISDIR(found.st_mode):
        extra |= stat.S_ISGID | _SEARCH
    return stat.S_IMODE(found.st_mode) | extra
