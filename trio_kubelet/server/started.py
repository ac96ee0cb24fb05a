"""Since when this process runs: `/statusz` shows it, and every page of metrics has it as a header.

A scraper that sees the header change knows that counters began anew, before it reads the page.
"""

from __future__ import annotations

import os
import time

import msgspec

from trio_kubelet.clock import NANOSECONDS
from trio_kubelet.server.http import Handler, Hijack, Request, Response

HEADER = "Process-Start-Time-Unix"
_STARTTIME = 19  # of the fields behind the process's name in /proc/self/stat: ticks since the machine booted


def process_start_ns(now_ns: int) -> int:
    """The moment this process began. `now_ns` is now; a change of the clock since then does not count."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    began_ns = int(fields[_STARTTIME]) * NANOSECONDS // os.sysconf("SC_CLK_TCK")
    return now_ns - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns)


def with_start_time(page: Handler, began_ns: int) -> Handler:
    """The page with the header."""
    header = (HEADER, str(began_ns // NANOSECONDS))

    async def told(request: Request) -> Response | Hijack:
        answer = await page(request)
        if isinstance(answer, Response):
            return msgspec.structs.replace(answer, headers=(*answer.headers, header))
        return answer

    return told
