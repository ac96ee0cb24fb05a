"""One agent at a time: a file that is locked while an agent runs (`--lock-file`), and an agent that makes way
for the next one that opens it (`--exit-on-lock-contention`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from trio_kubelet.common.inotify import OpenWatch
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.load import ConfigurationError

log = get_logger(__name__)

_POLL: Final = 0.2
"""Seconds between tries to get the lock."""


@asynccontextmanager
async def locked(path: str, *, exit_on_contention: bool) -> AsyncIterator[None]:
    """Waits for the lock and holds it; with no path there is none. With `exit_on_contention` what is inside
    is cancelled when somebody else opens the file or removes it. Raises ConfigurationError and OSError.
    """
    if exit_on_contention and not path:
        raise ConfigurationError("cannot exit on lock file contention: no lock file specified")
    if not path:
        yield
        return
    log.info("Acquiring file lock", path=path)
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        await _lock(file)
        if not exit_on_contention:
            yield
            return
        async with trio.open_nursery() as nursery:
            watch = OpenWatch(path)
            nursery.start_soon(_make_way, watch, path, nursery.cancel_scope)
            yield
            nursery.cancel_scope.cancel()
    finally:
        os.close(file)


async def _lock(file: int) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await trio.sleep(_POLL)
        else:
            return


async def _make_way(watch: OpenWatch, path: str, scope: trio.CancelScope) -> None:
    log.info("Watching for inotify events", path=path)
    with watch:
        await watch.wait()
    log.info("Another process wants the lock file; making way", path=path)
    scope.cancel()
