"""One small supervisor: a task that may fail is started again with back-off, in its own nursery.

For tasks whose failure leaves the agent right but less (a source, the event stream, a server). A task
without which the agent is wrong is started in the agent's nursery directly, and its failure ends the
agent with that error.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
GOOD_RUN = 60.0  # seconds after which a failure counts as the first one again


def pause_after(failures: int, jitter: float) -> float:
    """Seconds to wait after that many failures in a row; `jitter` in [0, 1)."""
    doubled: float = FIRST_PAUSE * 2.0 ** min(failures - 1, 16)
    return min(LONGEST_PAUSE, doubled) * (1 + 0.2 * jitter)


async def keep_running(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Runs `task` until it returns by itself; after an Exception again, with back-off."""
    failures = 0
    while True:
        began = trio.current_time()
        try:
            await task()
        except Exception as exc:  # whatever a task fails with, its supervisor is where it ends
            failures = 1 if trio.current_time() - began >= GOOD_RUN else failures + 1
            log.error("Task failed, starting it again", task=name, failures=failures, err=exc)
        else:
            return
        await trio.sleep(pause_after(failures, random.random()))
