"""Makes the links for log collectors (`log_links`) beside the starts of containers.

A container runs with or without its link, so its start waits for none, and links that wait at the same time
are made in one turn in a thread. What is not made when the agent is killed is not made later, either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from trio_kubelet.common.lanes import LOGS
from trio_kubelet.common.log import get_logger
from trio_kubelet.runtime.log_links import LogLink, make_links

log = get_logger(__name__)

MOST_WAITING: Final = 256
PAUSE: Final = 0.5
"""Seconds between two turns: where many containers start, each turn has links of several. A turn in a thread
costs a fiftieth of a start, and a log collector looks about less often.
"""
_LAST_TURN: Final = 5.0
"""Seconds for what still waits when the agent stops."""


class LogLinker:
    """Links that are wanted; `run` is the task that makes them in `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._waiting: list[LogLink] = []
        self._some = trio.Event()
        self._is_running = False

    async def add(self, link: LogLink) -> None:
        """Has a link made soon. Makes it at once where the task does not run or too many wait for it."""
        if self._is_running and len(self._waiting) < MOST_WAITING:
            self._waiting.append(link)
            self._some.set()
        else:
            await self._make([link])

    async def run(self) -> None:
        """Makes links until cancelled, then those that still wait."""
        self._is_running = True
        try:
            while True:
                await self._some.wait()
                await self._make_waiting()
                await trio.sleep(PAUSE)
        finally:
            self._is_running = False
            with trio.move_on_after(_LAST_TURN, shield=True):
                await self._make_waiting()

    async def _make_waiting(self) -> None:
        self._some = trio.Event()
        if links := tuple(self._waiting):
            await self._make(links)
            del self._waiting[: len(links)]

    async def _make(self, links: Sequence[LogLink]) -> None:
        try:
            failed = await LOGS.run(make_links, self._directory, links)
        except OSError as hangs:
            failed = [(link, hangs) for link in links]
        for link, error in failed:
            log.error(
                "Failed to create symbolic link to container log", containerID=link.container_id, err=error
            )
