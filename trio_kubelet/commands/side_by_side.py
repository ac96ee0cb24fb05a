"""Several answers of the agent that are followed at once, their pieces written as they come."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import trio

from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.lanes import Lane

Write = Callable[[bytes], object]


def run_side_by_side(jobs: Sequence[Callable[[Write], object]], write: Write) -> None:
    """Runs the jobs, each in a thread of its own, until all have ended; what they write does not mix.

    Raises what the first that fails raises; the others are then left to themselves, as on Ctrl-C: the
    process ends, and they with it.
    """

    async def run() -> None:
        lane = Lane("side by side", threads=len(jobs), deadline=math.inf, interruptible=True)
        token = trio.lowlevel.current_trio_token()

        def written(piece: bytes) -> object:
            return trio.from_thread.run_sync(write, piece, trio_token=token)

        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(lane.run, job, written)

    try:
        trio.run(run, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise next(iter(leaves(group))) from None
