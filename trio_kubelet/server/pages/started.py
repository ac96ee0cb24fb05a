"""Since when this process runs: `/statusz` shows it, and every page of metrics has it as a header.

A scraper that sees the header change knows that counters began anew, before it reads the page.
"""

from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.server.http.serve import Handler, Hijack, Request, Response

HEADER = "Process-Start-Time-Unix"
METRIC = "process_start_time_seconds"


def process_start_ns(now_ns: int) -> int:
    """The moment this process began, as `ProcessCollector` tells it; `now_ns` if it cannot."""
    for family in ProcessCollector(registry=None).collect():
        if family.name == METRIC:
            return round(family.samples[0].value * NANOSECONDS)
    return now_ns


def add_start_time(registry: CollectorRegistry, began_ns: int) -> None:
    """The start among the metrics of a registry that tells nothing else of the process."""
    gauge = Gauge(METRIC, "Start time of the process since unix epoch in seconds.", registry=registry)
    gauge.set(began_ns / NANOSECONDS)


def with_start_time(page: Handler, began_ns: int) -> Handler:
    """The page with the header."""
    header = (HEADER, str(began_ns // NANOSECONDS))

    async def told(request: Request) -> Response | Hijack:
        answer = await page(request)
        if isinstance(answer, Response):
            return msgspec.structs.replace(answer, headers=(*answer.headers, header))
        return answer

    return told
