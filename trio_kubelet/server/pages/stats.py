"""The stats pages as handlers: what a request may ask of them and how the answer is typed."""

from __future__ import annotations

from typing import NamedTuple

from trio_kubelet.server.http.exposition import CONTENT_TYPE
from trio_kubelet.server.http.serve import Handler, Hijack, Request, Response
from trio_kubelet.stats.pages import StatsPages


class StatsHandlers(NamedTuple):
    """The three endpoints."""

    summary: Handler
    resource: Handler
    cadvisor: Handler


def stats_handlers(pages: StatsPages) -> StatsHandlers:
    """Handlers over `pages`."""

    async def summary(request: Request) -> Response | Hijack:
        only = request.query.get("only_cpu_and_memory") == ["true"]
        return Response(headers=(("Content-Type", "application/json"),), body=pages.summary_page(only))

    async def resource(request: Request) -> Response | Hijack:
        return Response(headers=(("Content-Type", CONTENT_TYPE),), body=pages.resource_metrics_page())

    async def cadvisor(request: Request) -> Response | Hijack:
        return Response(headers=(("Content-Type", CONTENT_TYPE),), body=pages.cadvisor_page())

    return StatsHandlers(summary, resource, cadvisor)
