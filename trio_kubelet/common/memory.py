"""Memory that is free goes back to the system.

After a burst of work (streams, a page of megabytes, pods that start together) the C library keeps what lies
free between pieces in use: some fifteen megabytes after thousands of streams, which look like growth. It
gives all of that back when it is asked to.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from trio_kubelet.common.clock import sleep_with_others
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

PERIOD: Final = 10.0
"""Seconds between two looks."""
GROWTH: Final = 4 << 20
"""Bytes by which the agent has to have grown since the last time."""


async def give_back_memory() -> None:
    """Looks now and then whether the agent has grown, until cancelled."""
    kept = 0
    while True:
        await sleep_with_others(PERIOD)
        if (before := resident()) > kept + GROWTH:
            await NODE_FILES.run(trim)
            kept = resident()
            log.v(5).info("Gave free memory back", before=before, after=kept)


def resident() -> int:
    """Bytes of memory this process has."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Where the C library is glibc; others keep little. Blocking, for some milliseconds."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found(ctypes.c_size_t(0))
