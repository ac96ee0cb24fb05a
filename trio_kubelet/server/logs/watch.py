"""Tells followers that a log has grown or was rotated: one look at all followed files, ten times a second.

One shared look rather than inotify: two hundred followers cost one call into a worker thread per round, a
busy log wakes its followers no more often than it is read, and no limit of watches can run out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from trio_kubelet.common.lanes import CONTAINER_FILES
from trio_kubelet.server.logs.file import Position, position_of

PERIOD: Final = 0.1
"""Seconds between two looks."""


class LogWatch:
    """Shared by all followers; `run` has to be running for any of them to learn anything."""

    def __init__(self, period: float = PERIOD) -> None:
        self._period = period
        self._waiting: dict[str, dict[trio.Event, Position]] = {}
        self._wanted = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Looks for ever, while somebody waits."""
        task_status.started()
        while True:
            if not self._waiting:
                self._wanted = trio.Event()
                await self._wanted.wait()
            found = await CONTAINER_FILES.run(_look, tuple(self._waiting))
            for path, position in found.items():
                for event, seen in self._waiting.get(path, {}).items():
                    if position is not None and position != seen:
                        event.set()
            await trio.sleep(self._period)

    async def changed(self, path: str, seen: Position) -> None:
        """Returns when another file than `seen` bears the name, or its size is another."""
        event = trio.Event()
        self._waiting.setdefault(path, {})[event] = seen
        self._wanted.set()
        try:
            await event.wait()
        finally:
            waiting = self._waiting[path]
            del waiting[event]
            if not waiting:
                del self._waiting[path]


def _look(paths: Iterable[str]) -> dict[str, Position | None]:
    return {path: position_of(path) for path in paths}
