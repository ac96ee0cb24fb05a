"""Memory that is free goes back to the system, and code that is in use stays in memory.

After a burst of work (streams, a page of megabytes, pods that start together) the C library keeps what lies
free between pieces in use: some fifteen megabytes after thousands of streams, which look like growth. It
gives all of that back when it is asked to.

Code is mapped from files. Where memory runs short the kernel takes such pages before all others, since it can
read them again, and the event loop waits for the disk at each of them: just when pods are to be evicted.
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
_MLOCK_ONFAULT: Final = 1


async def look_after_memory() -> None:
    """Looks now and then whether the agent has grown, by code that was not needed before perhaps, until
    cancelled.
    """
    kept = 0
    while True:
        await sleep_with_others(PERIOD)
        if (before := resident()) > kept + GROWTH:
            await NODE_FILES.run(trim)
            kept = resident()
            held = await NODE_FILES.run(hold_code)
            log.v(5).info("Gave free memory back", before=before, after=kept, heldCode=held)


def resident() -> int:
    """Bytes of memory this process has."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Where the C library is glibc; others keep little. Blocking, for some milliseconds."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found(ctypes.c_size_t(0))


def hold_code() -> int:
    """Keeps what is mapped from files and only read in memory from when it is first used on: some sixteen
    megabytes. Bytes of these files; 0 where that may not be, or the C library does not know how. Blocking.

    All else is left as it is: without swap it stays anyway, and locked memory could not be given back.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mlock2"):
        return 0
    held = 0
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            span, permissions, *_, name = line.split(None, 5)
            if name.startswith(b"/") and b"w" not in permissions:
                begin, end = (int(address, 16) for address in span.split(b"-"))
                if library.mlock2(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MLOCK_ONFAULT):
                    return held
                held += end - begin
    return held
