"""The pods' directories under the agent's root."""

from __future__ import annotations

import os
from collections.abc import Collection

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.lanes import DIRECTORIES
from trio_kubelet.podinfo.paths import pod_dir, pods_dir
from trio_kubelet.volumes.files import make_dirs, remove_tree

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
            await trio.lowlevel.checkpoint()
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
        """The pod's directory is gone; refused while something is mounted in it. Raises OSError."""
        self._made.discard(uid)
        try:
            await DIRECTORIES.run(remove_tree, pod_dir(self._root_dir, uid), owner=uid)
        finally:
            self._made.discard(uid)
