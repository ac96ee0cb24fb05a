"""Memory that is in use lies together in huge pages, what is free goes back to the system, and code stays in
memory.

An agent at rest is woken some ten times a second, with caches that others have emptied in between. Then each
page that it touches costs a walk through the page tables, in a virtual machine through the host's as well:
two microseconds were measured, twenty times what they are with huge pages, for each of a thousand pages.

After a burst of work (streams, a page of megabytes, pods that start together) the C library keeps what lies
free between pieces in use: some fifteen megabytes after thousands of streams, which look like growth. It
gives all of that back when it is asked to.

Code is mapped from files. Where memory runs short the kernel takes such pages before all others, since it can
read them again, and the event loop waits for the disk at each of them: just when pods are to be evicted.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from collections.abc import Iterator
from typing import Final

from trio_kubelet.common.clock import sleep_with_others
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

PERIOD: Final = 5.0
"""Seconds between two looks."""
GROWTH: Final = 4 << 20
"""Bytes by which the agent has to have grown since the last time."""
HUGE_PAGE: Final = 2 << 20
"""Bytes."""
_MLOCK_ONFAULT: Final = 1
_M_ARENA_MAX: Final = -8
_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25
_HUGE_PAGES: Final = "/sys/kernel/mm/transparent_hugepage/enabled"


async def look_after_memory() -> None:
    """Looks now and then whether the agent has grown, by code that was not needed before perhaps, until
    cancelled.
    """
    kept = 0
    while True:
        await sleep_with_others(PERIOD)
        if (before := resident()) > kept + GROWTH:
            await NODE_FILES.run(trim)
            gathered = await NODE_FILES.run(gather)
            kept = resident()
            held = await NODE_FILES.run(hold_code)
            log.v(5).info(
                "Gave free memory back", before=before, after=kept, hugePages=gathered, heldCode=held
            )


def resident() -> int:
    """Bytes of memory this process has."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim() -> None:
    """Where the C library is glibc; others keep little. Blocking, for some milliseconds."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found(ctypes.c_size_t(0))


def share_one_heap() -> None:
    """Threads that are started from now on take what they need from the heap of all, where the C library is
    glibc: one of their own each lies scattered, mostly empty. They hardly ever want memory at once, for they
    share the interpreter.
    """
    found = getattr(ctypes.CDLL(None), "mallopt", None)
    if found is not None:
        found(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(1))


def gather() -> int:
    """Has the kernel make huge pages of what is half in use of them; how many were asked for. Blocking, for
    some tenths of a millisecond each that is new.

    Before Linux 6.1 the kernel is only told that it may, and does so by itself within minutes. 0 where there
    are to be no huge pages.
    """
    try:
        with open(_HUGE_PAGES, "rb") as file:
            wanted = b"[never]" not in file.read()
    except FileNotFoundError:
        wanted = False
    if not wanted:
        return 0
    library, gathered = ctypes.CDLL(None, use_errno=True), 0
    for begin, end in _spans():
        for first, last in _used(library, begin, end):
            where, size = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
            gathered += (last - first) // HUGE_PAGE
            if library.madvise(where, size, _MADV_COLLAPSE) and ctypes.get_errno() == errno.EINVAL:
                library.madvise(where, size, _MADV_HUGEPAGE)
    return gathered


def _spans() -> list[tuple[int, int]]:
    """Where there may be huge pages of this process's own data: from address to address, whole ones."""
    found = []
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            span, permissions, _, _, inode, *_ = line.split(None, 5)
            if permissions == b"rw-p" and inode == b"0":
                begin, end = (int(address, 16) for address in span.split(b"-"))
                begin, end = -(-begin // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
                if begin < end:
                    found.append((begin, end))
    return found


def _used(library: ctypes.CDLL, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a span of which at least half of each huge page has memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    there = ctypes.create_string_buffer((end - begin) // page)
    if library.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), there):
        return  # it is there no more
    each = HUGE_PAGE // page
    used = [there.raw[at : at + each].count(1) * 2 >= each for at in range(0, len(there), each)]
    for is_used, run in itertools.groupby(range(len(used)), key=used.__getitem__):
        numbers = list(run)
        if is_used:
            yield begin + numbers[0] * HUGE_PAGE, begin + (numbers[-1] + 1) * HUGE_PAGE


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
