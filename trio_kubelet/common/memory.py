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
import os
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import trio

from trio_kubelet.common.clock import sleep_with_others
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger

log = get_logger(__name__)

PERIOD: Final = 5.0
"""Seconds between two looks."""
PAUSE: Final = 0.1
"""Seconds between two huge pages that are made: whoever needs what is being moved waits, the event loop too.
It was five milliseconds each in a virtual machine whose host had to find the memory.
"""
GROWTH: Final = 4 << 20
"""Bytes by which the agent has to have grown since the last time."""
STILL: Final = 1 << 20
"""Bytes between two looks that are no growth."""
CROWD: Final = 2
"""Threads that want a CPU, for each CPU there is, up to which memory is looked after. With more the kernel
takes long for it, and whoever needs other memory meanwhile waits: 3.7 seconds at a load of 150.
"""
HUGE_PAGE: Final = 2 << 20
"""Bytes."""
_MLOCK_ONFAULT: Final = 1
_MADE: Final = 0.0003  # seconds; less only for a page that was huge already
_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25
_HUGE_PAGES: Final = "/sys/kernel/mm/transparent_hugepage/enabled"
_LOAD: Final = "/proc/loadavg"


async def look_after_memory() -> None:
    """Looks now and then whether the agent has grown, by code that was not needed before perhaps, until
    cancelled. While it goes on growing it is left alone, for what a burst of work has freed it takes again,
    and while the machine is crowded.
    """
    kept, before = 0, resident()
    while True:
        await sleep_with_others(PERIOD)
        last, before = before, resident()
        grown, goes_on = before > kept + GROWTH, kept and before >= last + STILL
        if grown and not goes_on and not is_crowded():
            await NODE_FILES.run(trim)
            after = resident()
            held = await NODE_FILES.run(hold_code)
            log.v(5).info("Gave free memory back", before=before, after=after, heldCode=held)
            await gather()
            kept = before = resident()


def resident() -> int:
    """Bytes of memory this process has."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_crowded() -> bool:
    """Whether more threads of this machine want a CPU at this moment than it can do with at once."""
    with open(_LOAD, "rb") as file:
        wanting, _, _ = file.read().split()[3].partition(b"/")
    return int(wanting) > CROWD * (os.cpu_count() or 1)


def trim() -> None:
    """Where the C library is glibc; others keep little. Blocking, for some milliseconds."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found(ctypes.c_size_t(0))


async def gather() -> None:
    """Has the kernel make huge pages of what is half in use of them, one after the other."""
    pages = await NODE_FILES.run(huge_pages)
    while pages:
        if is_crowded():
            await sleep_with_others(PERIOD)
        else:
            await NODE_FILES.run(_make_one, pages)
            await trio.sleep(PAUSE)


def huge_pages() -> list[int]:
    """Where this process uses half a huge page or more for its data; nowhere if the machine is not to have
    huge pages. Blocking.
    """
    try:
        with open(_HUGE_PAGES, "rb") as file:
            wanted = b"[never]" not in file.read()
    except FileNotFoundError:
        wanted = False
    if not wanted:
        return []
    library, pages = ctypes.CDLL(None), list[int]()
    for each in list(_mappings()):  # all of them, before anything changes
        begin, end = -(-each.begin // HUGE_PAGE) * HUGE_PAGE, each.end // HUGE_PAGE * HUGE_PAGE
        if each.permissions == b"rw-p" and not each.is_of_a_file and begin < end:
            pages += _used(library, begin, end)
    return pages


def _make_one(pages: list[int]) -> None:
    """Makes huge pages of these, of which many may be some already, until one took as long as it takes.

    Before Linux 6.1 the kernel is only told that it may, and does so by itself within minutes.
    """
    library, size = ctypes.CDLL(None, use_errno=True), ctypes.c_size_t(HUGE_PAGE)
    while pages:
        began, where = time.perf_counter(), ctypes.c_void_p(pages.pop())
        if library.madvise(where, size, _MADV_COLLAPSE) and ctypes.get_errno() == errno.EINVAL:
            library.madvise(where, size, _MADV_HUGEPAGE)
        if time.perf_counter() - began > _MADE:
            return


def _used(library: ctypes.CDLL, begin: int, end: int) -> Iterator[int]:
    """Where in a span there are huge pages at least half of which has memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    there = ctypes.create_string_buffer((end - begin) // page)
    if library.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), there):
        return  # the span is there no more
    each, pages = HUGE_PAGE // page, there.raw
    for number in range((end - begin) // HUGE_PAGE):
        if pages.count(1, number * each, (number + 1) * each) * 2 >= each:
            yield begin + number * HUGE_PAGE


def hold_code() -> int:
    """Keeps what is mapped from files and only read in memory from when it is first used on: some sixteen
    megabytes. Bytes of these files; 0 where that may not be, or the C library does not know how. Blocking.

    All else is left as it is: without swap it stays anyway, and locked memory could not be given back.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mlock2"):
        return 0
    held = 0
    for each in _mappings():
        if each.is_of_a_file and b"w" not in each.permissions:
            size = each.end - each.begin
            if library.mlock2(ctypes.c_void_p(each.begin), ctypes.c_size_t(size), _MLOCK_ONFAULT):
                return held
            held += size
    return held


class _Mapping(NamedTuple):
    """A part of this process's memory, from address to address."""

    begin: int
    end: int
    permissions: bytes
    is_of_a_file: bool


def _mappings() -> Iterator[_Mapping]:
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            span, permissions, _, _, _, *name = line.split(None, 5)
            begin, end = (int(address, 16) for address in span.split(b"-"))
            yield _Mapping(begin, end, permissions, bool(name) and name[0].startswith(b"/"))
