"""The table of what the node's server answers, and which switches of the configuration take parts of it away.

Every endpoint is one handler; the rooms that know the answers bring theirs in `NodeHandlers`. The path
parameters of a handler are in `Request.params`: `podNamespace`, `podID`, `uid` and `containerName`, the last
two where the path has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.server.http.messages import NOSNIFF, Handler, Hijack, Request, Response, text
from trio_kubelet.server.http.metrics import HealthCounts
from trio_kubelet.server.http.router import JSON, Route, Router, WebService
from trio_kubelet.server.pages.health import Check, add_health

POD = "/{podNamespace}/{podID}"
CONTAINER = POD + "/{containerName}"
CONTAINER_OF_UID = POD + "/{uid}/{containerName}"
POD_OF_UID = POD + "/{uid}"
BOTH = ("GET", "POST")


class ReadOnlyHandlers(msgspec.Struct, frozen=True, kw_only=True):
    """What the read-only port shows as well."""

    pods: Handler
    stats_summary: Handler
    metrics: Handler
    metrics_cadvisor: Handler
    metrics_resource: Handler
    metrics_probes: Handler
    metrics_slis: Handler


class NodeHandlers(msgspec.Struct, frozen=True, kw_only=True):
    """What only authorized clients get; None for what is switched off for good (a feature gate)."""

    run: Handler
    exec: Handler
    attach: Handler
    port_forward: Handler
    container_logs: Handler
    running_pods: Handler
    configz: Handler
    system_logs: Handler
    profiling: Handler
    debug_flags: Handler
    checkpoint: Handler | None
    flagz: Handler | None = None
    statusz: Callable[[Sequence[str]], Handler] | None = None  # made of the paths it has to name
    page: Handler | None = None  # of our own, and in no list of the kubelet's paths


def add_read_only_pages(
    router: Router, pages: ReadOnlyHandlers, checks: Mapping[str, Check], counts: HealthCounts
) -> None:
    """Health, pods, stats and metrics."""
    add_health(router, checks, counts)
    router.add(WebService("/pods", [Route("GET", "", pages.pods)], JSON))
    router.add(WebService("/stats/", _routes(BOTH, ["/summary"], pages.stats_summary), JSON))
    router.handle("/metrics", pages.metrics)
    router.handle("/metrics/cadvisor", pages.metrics_cadvisor)
    router.handle("/metrics/resource", pages.metrics_resource)
    router.handle("/metrics/probes", pages.metrics_probes)
    router.handle("/metrics/slis", pages.metrics_slis)


def add_disabled_pages(router: Router) -> None:
    """What tells that pages for debugging are switched off, as they always are on the read-only port."""
    off = disabled("Debug endpoints are disabled.")
    for root in ("run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs"):
        router.handle(f"/{root}/", off)
    router.handle("/debug/pprof/", off)


def add_node_pages(router: Router, pages: NodeHandlers, config: KubeletConfiguration) -> None:
    """Everything else, or what tells that it is switched off."""
    if not config.enable_debugging_handlers:
        add_disabled_pages(router)
        return
    _add_debug_pages(router, pages, config)
    router.add(WebService("/run", _routes(["POST"], [CONTAINER, CONTAINER_OF_UID], pages.run)))
    router.add(WebService("/exec", _routes(BOTH, [CONTAINER, CONTAINER_OF_UID], pages.exec)))
    router.add(WebService("/attach", _routes(BOTH, [CONTAINER, CONTAINER_OF_UID], pages.attach)))
    router.add(WebService("/portForward", _routes(BOTH, [POD, POD_OF_UID], pages.port_forward)))
    router.add(WebService("/containerLogs", [Route("GET", CONTAINER, pages.container_logs)]))
    router.handle("/configz", pages.configz)
    router.add(WebService("/runningpods/", [Route("GET", "", pages.running_pods)], JSON))
    if pages.checkpoint is not None:
        router.add(WebService("/checkpoint/", [Route("POST", CONTAINER, pages.checkpoint)], JSON))
    if pages.flagz is not None:
        router.handle("/flagz", pages.flagz)
    if pages.statusz is not None:  # last, so that it knows the others
        router.handle("/statusz", pages.statusz(router.handled()))
    if pages.page is not None:
        router.handle("/page/", pages.page)


def _add_debug_pages(router: Router, pages: NodeHandlers, config: KubeletConfiguration) -> None:
    if config.enable_system_log_handler:
        router.add(WebService("/logs/", _routes(["GET"], ["", "/{logpath:*}"], pages.system_logs)))
    else:
        router.handle("/logs/", disabled("logs endpoint is disabled."))
    if config.enable_profiling_handler:
        router.add(WebService("/debug/pprof/", _routes(["GET"], ["/{subpath:*}"], pages.profiling)))
    else:
        router.handle("/debug/pprof/", disabled("profiling endpoint is disabled."))
    if config.enable_debug_flags_handler:
        router.handle("/debug/flags/v", pages.debug_flags)
    else:
        router.handle("/debug/flags/v", disabled("flags endpoint is disabled."))


def _routes(methods: Iterable[str], paths: Iterable[str], handler: Handler) -> list[Route]:
    return [Route(method, path, handler) for path in paths for method in methods]


def disabled(reason: str) -> Handler:
    """Tells, whatever is asked, that an endpoint is switched off."""

    async def page(request: Request) -> Response | Hijack:
        return text(405, reason + "\n", NOSNIFF)

    return page
