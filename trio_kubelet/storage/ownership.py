"""Giving a volume's files to the pod's group (KEP-1682): all of them, or none if the root is right.

It is done in a thread, by `give_volume`, and told of when it takes long.

A container may exchange what is walked over for links while it is walked; nothing here follows one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator
from typing import Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.lanes import OWNERSHIP
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.volumes.local import fs_group_of

REASON: Final = "VolumePermissionChangeInProgress"
FIRST_NEWS: Final = 30.0
NEXT_NEWS: Final = 60.0
"""Seconds after which it is told that the work takes long, and between two reports of how far it is."""

_READ_WRITE: Final = 0o660
_READ_ONLY: Final = 0o440
_SEARCH: Final = 0o110
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST: Final = 500
"""Levels of directories in a volume that can be given away; each takes two descriptors meanwhile."""


class Progress:
    """How many files have been looked at; read from another thread."""

    def __init__(self) -> None:
        self.files = 0
        self.stop = False


def give_volume(
    directory: str, group: int, *, read_only: bool, on_mismatch: bool, progress: Progress
) -> None:
    """Gives a volume to a group. With `on_mismatch` only if its root is not the group's with the rights and
    the set-group-ID bit that the others would get. Blocking; raises OSError.
    """
    root = os.open(directory, _DIRECTORY)
    try:
        if on_mismatch and not _mismatches(os.fstat(root), group, read_only):
            return
        _walk(root, lambda name, parent: _give(name, parent, group, read_only, progress), progress)
        _give_open(root, os.fstat(root), group, read_only)
        progress.files += 1
    finally:
        os.close(root)


def long_message(directory: str, uid: str) -> str:
    """The event when the work takes long; the path begins with the pod's UID."""
    return (
        f"Setting volume ownership for {_shown(directory, uid)} is taking longer than expected, consider "
        "using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
        "#configure-volume-permission-and-ownership-change-policy-for-pods"
    )


def progress_message(directory: str, uid: str, files: int) -> str:
    """The event of how far the work is."""
    return f"Setting volume ownership for {_shown(directory, uid)}, processed {files} files."


def _shown(directory: str, uid: str) -> str:
    at = directory.find(uid)
    return directory if at < 0 else directory[at:]


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
        os.chown(name, -1, group, dir_fd=parent, follow_symlinks=False)
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            found = os.fstat(descriptor)
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


class VolumeOwnership:
    """`events` hears of what takes long."""

    def __init__(self, events: PodRecorderDoor) -> None:
        self._events = events

    async def give(self, volume: str, directory: str, pod: v1.Pod, *, read_only: bool) -> None:
        """Gives the files of a pod's volume to the pod's group, if it has one. Raises OperationError."""
        context, group, progress = pod.spec.security_context, fs_group_of(pod), Progress()
        if context is None or group is None:
            return
        on_mismatch = context.fs_group_change_policy == "OnRootMismatch"

        def work() -> None:
            give_volume(directory, group, read_only=read_only, on_mismatch=on_mismatch, progress=progress)

        failed: OperationError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report, pod, directory, progress)
            try:
                await in_thread(volume, work, lane=OWNERSHIP)
            except OperationError as error:
                failed = error
            finally:
                progress.stop = True  # a walk that was left behind ends by itself
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _report(self, pod: v1.Pod, directory: str, progress: Progress) -> None:
        uid = pod.metadata.uid
        await trio.sleep(FIRST_NEWS)
        self._events.record(pod, "Warning", REASON, long_message(directory, uid))
        while True:
            await trio.sleep(NEXT_NEWS)
            self._events.record(pod, "Warning", REASON, progress_message(directory, uid, progress.files))
