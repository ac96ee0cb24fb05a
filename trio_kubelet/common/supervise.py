"""One small supervisor: a task that may fail is started again with back-off, in its own nursery.

For tasks whose failure leaves the agent right but less (a source, the event stream, a server). A task
without which the agent is wrong is started in the agent's nursery directly, and its failure ends the
agent with that error.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

PAUSES = Pauses(0.5, 30.0, jitter=0.2)
GOOD_RUN = 60.0  # seconds after which a failure counts as the first one again


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
        await trio.sleep(PAUSES.after(failures, random.random()))
