"""The directories of the agent: those a kubelet has, with its modes and its words when one cannot be made
(`setupDataDirs`), and the pods' below its root.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from functools import partial

import trio

from trio_kubelet.api import v1
from trio_kubelet.common import log as logging
from trio_kubelet.common.go_words import error_words, os_words
from trio_kubelet.common.lanes import DIRECTORIES
from trio_kubelet.podinfo.paths import pod_dir, pods_dir
from trio_kubelet.volumes.files import make_dirs, take_away
from trio_kubelet.volumes.linux import make_rshared

log = logging.get_logger(__name__)

_CHECKPOINTS = "error creating checkpoint directory"


def make_data_dirs(root_dir: str, pod_logs_dir: str, container_logs_dir: str, *, checkpoints: bool) -> None:
    """Makes them; the root directory is shared, so that mounts below it reach containers and come back.

    checkpoints: that of containers' checkpoints, too. Raises OSError, whose text says which step failed.
    Blocking.
    """

    def under_root(name: str) -> Callable[[], None]:
        return partial(_make, os.path.join(root_dir, name), 0o750)

    steps: tuple[tuple[str, Callable[[], None]], ...] = (
        ("error creating root directory", under_root("")),
        (f'error creating pod logs root directory "{pod_logs_dir}"', partial(_make, pod_logs_dir, 0o750)),
        ("error configuring root directory", partial(_share, root_dir)),
        ("error creating pods directory", under_root("pods")),
        ("error creating plugins directory", under_root("plugins")),
        ("error creating plugins registry directory", under_root("plugins_registry")),
        ("error creating podresources directory", under_root("pod-resources")),
        *([(_CHECKPOINTS, partial(_make, f"{root_dir}/checkpoints", 0o700))] if checkpoints else ()),
        (f'failed to create directory "{container_logs_dir}"', partial(_make, container_logs_dir, 0o755)),
    )
    for failure, step in steps:
        try:
            step()
        except OSError as exc:
            raise OSError(f"{failure}: {error_words(exc)}") from exc


def _make(path: str, mode: int) -> None:
    """Raises OSError, in the words of Go's `os.MkdirAll`."""
    try:
        os.makedirs(path, mode, exist_ok=True)
    except OSError as exc:
        raise OSError(f"mkdir {exc.filename or path}: {os_words(exc)}") from exc


def _share(path: str) -> None:
    """A process that may not mount has no mounts to share: a simulated node's, of a user who is not root."""
    try:
        make_rshared(path)
    except OSError as exc:
        if exc.errno == errno.EPERM:
            log.warning(
                "The root directory is not shared with containers: mounting is not permitted", path=path
            )
            return
        raise OSError(f"failed to bind-mount {path}: {os_words(exc)}") from exc


_PARTS = ("volumes", "plugins")


class PodDirectories:
    """Makes, lists and removes the directories of pods; 0750 as the kubelet makes them.

    Work that hangs is left behind after a minute; the error is then an OSError as any other.

    Each round of each pod asks for its directories. Those that were made are not looked at each time: with a
    thousand pods the way to a thread and back would be most of what the agent does. One that somebody else
    removed is missed by the next list of all of them, which housekeeping asks for, and made again then.
    """

    def __init__(self, root_dir: str) -> None:
        self._root_dir = root_dir
        self._made: set[str] = set()  # UIDs

    async def make(self, pod: v1.Pod) -> None:
        """The pod's directories are there. Raises OSError."""
        uid = pod.metadata.uid
        if uid in self._made:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        directory = pod_dir(self._root_dir, uid)

        def work() -> None:
            for part in _PARTS:
                make_dirs(f"{directory}/{part}")

        await DIRECTORIES.run(work, owner=uid)
        self._made.add(uid)

    async def pods(self) -> Collection[str]:
        """UIDs of all pods that have a directory. Raises OSError."""

        def work() -> list[str]:
            try:
                with os.scandir(pods_dir(self._root_dir)) as entries:
                    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return []

        found = await DIRECTORIES.run(work)
        self._made.intersection_update(found)
        return found

    async def remove(self, uid: str) -> None:
        """The pod's directory is gone; what was mounted in it keeps its files. Raises OSError."""
        self._made.discard(uid)
        try:
            await DIRECTORIES.run(take_away, pod_dir(self._root_dir, uid), owner=uid)
        finally:
            self._made.discard(uid)
