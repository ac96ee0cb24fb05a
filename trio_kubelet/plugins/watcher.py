"""Watches the registration directory and tells which sockets are there, whenever that changes.

inotify says when to look, the look says what there is: an event that was lost costs `PERIOD` seconds, not a
plugin.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import trio

from trio_kubelet.common.inotify import DirectoryWatch, WatchError
from trio_kubelet.common.lanes import MANIFESTS, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.plugins.sockets import Found, list_sockets
from trio_kubelet.plugins.states import SocketIdentity

log = get_logger(__name__)

PERIOD: Final = 10.0
"""Seconds between looks when nothing happens."""
GATHER: Final = 0.01
"""Seconds to wait after an event for those that belong to it."""
_MODE: Final = 0o750


class _Look(NamedTuple):
    found: Found
    watches: dict[str, DirectoryWatch]


class SocketWatcher:
    """Calls `on_change` with all sockets of the tree, at first and whenever they differ."""

    def __init__(self, directory: str, on_change: Callable[[Mapping[str, SocketIdentity]], None]) -> None:
        self._directory = directory
        self._on_change = on_change
        self._watches: dict[str, DirectoryWatch] = {}
        self._known: dict[str, SocketIdentity] | None = None
        self._problem = ""

    async def run(self) -> None:
        """Watches until cancelled; may be started again after an error."""
        try:
            while True:
                await self._look()
                await self._wait()
        finally:
            _close_others(self._watches, {})
            self._watches = {}

    async def _look(self) -> None:
        look = None
        with contextlib.suppress(WorkHangs):
            before = dict(self._watches)
            look = await MANIFESTS.run(
                look_and_watch,
                self._directory,
                before,
                owner=self._directory,
                discard=lambda late: _close_others(late.watches, before),
            )
        if look is None:
            self._tell(f"{self._directory} does not answer")
            return
        _close_others(self._watches, look.watches)
        self._watches = look.watches
        self._tell(look.found.problem)
        if look.found.sockets != self._known:
            self._known = look.found.sockets
            self._on_change(look.found.sockets)

    async def _wait(self) -> None:
        with trio.move_on_after(PERIOD):
            async with trio.open_nursery() as nursery:
                for watch in self._watches.values():
                    nursery.start_soon(_first, watch, nursery.cancel_scope)
                if not self._watches:
                    await trio.sleep_forever()
            await trio.sleep(GATHER)
        for watch in self._watches.values():
            watch.take()

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("Cannot see all plugins", err=problem)
        self._problem = problem


def _close_others(watches: Mapping[str, DirectoryWatch], kept: Mapping[str, DirectoryWatch]) -> None:
    """Closes those that are not kept."""
    for path, watch in watches.items():
        if kept.get(path) is not watch:
            watch.close()


async def _first(watch: DirectoryWatch, scope: trio.CancelScope) -> None:
    await watch.wait()
    scope.cancel()


def look_and_watch(directory: str, watches: Mapping[str, DirectoryWatch]) -> _Look:
    """What there is, with a watch on each directory that was there before it was listed. Blocking.

    Watches that still hold are kept; the others are the caller's to close.
    """
    os.makedirs(directory, _MODE, exist_ok=True)
    kept = {path: watch for path, watch in watches.items() if watch.is_current()}
    found = list_sockets(directory)
    for _ in range(3):  # a directory may come while its parent's watch is made
        missing = [path for path in found.directories if path not in kept]
        if not missing:
            break
        for path in missing:
            try:
                kept[path] = DirectoryWatch(path)
            except (WatchError, OSError) as exc:
                log.v(4).info("Cannot watch a directory of plugins, looking now and then", path=path, err=exc)
        found = list_sockets(directory)
    here = {path: kept[path] for path in found.directories if path in kept}
    _close_others(kept, {**watches, **here})  # a directory may go while its watch is made
    return _Look(found, here)
