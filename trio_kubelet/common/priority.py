"""The event loop's thread comes before other processes where these take every CPU.

A weight divides the time of CPUs. The loop needs little of it, but many times a second and then at once: each
time it wakes up it waits for who is there. On two cores on which a hundred pods started, turns of eight
milliseconds took up to forty-five by the clock. So its thread asks for the lowest real-time priority, below
that of anything else that has one; worker threads and programs the agent runs stay like all others.

Such a thread could take a CPU from everybody. One that has computed for `AT_A_TIME` without waiting for
anything is like any other until `REST` has passed (`RLIMIT_RTTIME`, see setrlimit(2), counts exactly that).
"""

from __future__ import annotations

import os
import resource
import signal
from typing import Final

import trio

from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

AT_A_TIME: Final = 0.25
"""Seconds of computing."""
REST: Final = 1.0
"""Seconds as one of all."""


async def come_first() -> None:
    """Has the thread it is called in, the event loop's, come first until cancelled.

    Returns at once, and leaves everything as it is, where the agent may not (the capability CAP_SYS_NICE, a
    unit with `RestrictRealtime=`, cgroup v1 with real-time groups, a C library without such calls) or where
    whoever started it has chosen how it is scheduled.
    """
    try:
        if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER:
            await _stay_first()
    except OSError as exc:
        log.v(2).info("The event loop may not come before other processes", err=exc)


async def _stay_first() -> None:
    """Raises OSError where the agent may not; all is as it was then."""
    token = trio.lowlevel.current_trio_token()

    def step_back(*_: object) -> None:
        """Between two instructions of the loop."""
        _schedule(os.SCHED_OTHER)
        token.run_sync_soon(tired.set)

    limits = resource.getrlimit(resource.RLIMIT_RTTIME)
    handler = signal.signal(signal.SIGXCPU, step_back)
    try:
        while True:
            tired = trio.Event()
            _limit(limits[1])  # the kernel raises it with each signal
            _schedule(os.SCHED_RR)
            await tired.wait()
            log.v(4).info("The event loop computed for long and comes first no more for a while")
            await trio.sleep(REST)
    finally:
        _schedule(os.SCHED_OTHER)
        resource.setrlimit(resource.RLIMIT_RTTIME, limits)
        signal.signal(signal.SIGXCPU, handler)


def _schedule(policy: int) -> None:
    """At the policy's lowest priority, and of this thread alone: threads and processes it starts begin like
    all others. Raises OSError.
    """
    lowest = os.sched_param(os.sched_get_priority_min(policy))
    os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, lowest)


def _limit(most: int) -> None:
    """The signal comes after `AT_A_TIME`, or well before `most`, where the kernel would end the agent."""
    microseconds = int(AT_A_TIME * 1e6)
    if most != resource.RLIM_INFINITY:
        microseconds = min(microseconds, most // 2)
    resource.setrlimit(resource.RLIMIT_RTTIME, (microseconds, most))
