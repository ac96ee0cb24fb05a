"""Several answers of the agent that are followed at once, their pieces written as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from trio_kubelet.common.error_groups import leaves

Write = Callable[[bytes], object]


def run_side_by_side(jobs: Sequence[Callable[[Write], object]], write: Write) -> None:
    """Runs the jobs, each in a thread of its own, until all have ended; what they write does not mix.

    Raises what the first that fails raises; the others are then left to themselves, as on Ctrl-C: the
    process ends, and they with it.
    """

    async def run() -> None:
        limiter = trio.CapacityLimiter(len(jobs))
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(_in_thread, job, write, limiter)

    try:
        trio.run(run, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise next(iter(leaves(group))) from None


async def _in_thread(job: Callable[[Write], object], write: Write, limiter: trio.CapacityLimiter) -> None:
    def work() -> None:
        job(lambda piece: trio.from_thread.run_sync(write, piece))

    await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=True)
