"""A container's log as a stream of pieces, to its end or for as long as the container runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

import trio

from trio_kubelet.common.lanes import CONTAINER_FILES
from trio_kubelet.server.logs.file import LogFile, position_of
from trio_kubelet.server.logs.watch import LogWatch

IsRunning = Callable[[], Awaitable[bool]]
"""Whether the container still runs and may write."""

_ASK_PERIOD: Final = 0.25
"""Seconds between two questions whether the container of a silent log runs."""
_REOPEN_GRACE: Final = 0.2
"""Seconds in which a runtime may write to the old file after it has created the new one."""


async def read_log(file: LogFile, owner: str) -> AsyncGenerator[bytes, None]:
    """What is there now. `owner`: the pod's UID. Raises LogError."""
    while True:
        piece = await CONTAINER_FILES.run(file.read, owner=owner)
        if piece.output:
            yield piece.output
        if piece.done:
            return
        if piece.at_end:
            break
    if last := await CONTAINER_FILES.run(file.finish, owner=owner):
        yield last


async def follow_log(
    file: LogFile, owner: str, watch: LogWatch, is_running: IsRunning
) -> AsyncGenerator[bytes, None]:
    """What is there and what comes, until the container has ended and everything was read.

    `owner`: the pod's UID. Raises LogError.
    """
    ended = rotated = False
    while True:
        piece = await CONTAINER_FILES.run(file.read, owner=owner)
        if piece.output:
            yield piece.output
        if piece.done:
            return
        if not piece.at_end:
            continue
        if rotated:
            last = await CONTAINER_FILES.run(file.move_on, owner=owner, discard=lambda _: file.close())
            if last:
                yield last
            rotated = False
            continue
        rotated = await _is_rotated(file, owner)
        if rotated:
            if not ended:
                await trio.sleep(_REOPEN_GRACE)
        elif ended:
            break
        else:
            ended = not await _news(file, watch, is_running)
    if last := await CONTAINER_FILES.run(file.finish, owner=owner):
        yield last


async def _is_rotated(file: LogFile, owner: str) -> bool:
    """Whether another file bears the log's name."""
    found = await CONTAINER_FILES.run(position_of, file.path, owner=owner)
    return found is not None and found[:2] != file.position[:2]


async def _news(file: LogFile, watch: LogWatch, is_running: IsRunning) -> bool:
    """Waits for the file to change; False when the container has ended instead."""
    while True:
        with trio.move_on_after(_ASK_PERIOD):
            await watch.changed(file.path, file.position)
            return True
        if not await is_running():
            return False
