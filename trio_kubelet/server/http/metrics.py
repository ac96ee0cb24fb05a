"""Requests counted and timed, by the kubelet's names and labels.

The path label is the first part of the path (two parts below `/metrics`) if it is one the server has, so
that strangers cannot make the number of series grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, until_sent

_log = get_logger(__name__)

LABELS = ("method", "path", "server_type", "long_running")
METHODS = {"OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"}
LONG_RUNNING = {"exec", "attach", "portforward", "debug"}
READ_ONLY_BUCKETS = frozenset(
    {"healthz", "pods", "stats", "metrics", "metrics/cadvisor", "metrics/probes", "metrics/resource"}
    | {"run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs"}
)
NODE_BUCKETS = READ_ONLY_BUCKETS | frozenset({"configz", "checkpoint", "debug", "flagz", "statusz"})


class HealthCounts:
    """How the checks of health went when all of them were asked for (`/healthz`), whichever port was asked.

    As in the kubelet, a check that is asked by its own name, or is left out, does not count.
    """

    def __init__(self) -> None:
        self.last: dict[str, bool] = {}
        self.totals: dict[tuple[str, bool], int] = {}

    def count(self, name: str, well: bool) -> None:
        """A check was asked."""
        self.last[name] = well
        self.totals[name, well] = self.totals.get((name, well), 0) + 1


class HTTPMetrics:
    """The metrics; one object for all servers of an agent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.health = HealthCounts()
        make = MetricMaker(registry)
        self.requests = make.counter(
            "kubelet_http_requests", "Number of the http requests received since the server started", LABELS
        )
        self.duration = make.histogram(
            "kubelet_http_requests_duration_seconds", "Duration in seconds to serve http requests", LABELS
        )
        self.inflight = make.gauge(
            "kubelet_http_inflight_requests", "Number of the inflight http requests", LABELS
        )

        self.failed = make.counter(
            "trio_kubelet_http_failed_connections",
            "Number of requests and connections of the servers that ended with an error nobody expected",
            ("server_type",),
        )

    def count_failed(self, server_type: str) -> None:
        """A request or connection ended with an error nobody expected."""
        self.failed.labels(server_type).inc()


class Labels(NamedTuple):
    """The values of one request's labels."""

    method: str
    path: str
    server_type: str
    long_running: str


def labels_of(method: str, path: str, server_type: str, buckets: Iterable[str]) -> Labels:
    """The labels a request is counted under."""
    parts = path.removeprefix("/").split("/", 2)
    root = "/".join(parts[:2]) if parts[0] == "metrics" and len(parts) > 1 else parts[0]
    bucket = root if root in buckets else "other"
    long_running = "true" if bucket in LONG_RUNNING else "false"
    return Labels(method if method in METHODS else "other", bucket, server_type, long_running)


def measured(handler: Handler, metrics: HTTPMetrics, server_type: str, buckets: frozenset[str]) -> Handler:
    """`handler`, counted, and told of in the log; a request lasts until its answer is sent or its connection
    handed back.
    """

    async def handle(request: Request) -> Response | Hijack:
        timer = _Timer(metrics, labels_of(request.method, request.path, server_type, buckets), request)
        try:
            answer = await handler(request)
        except BaseException:
            timer.stop(None)
            raise
        return until_sent(answer, partial(timer.stop, answer))

    return handle


class _Timer:
    def __init__(self, metrics: HTTPMetrics, labels: Labels, request: Request) -> None:
        self._metrics = metrics
        self._request = request
        self._labels = labels
        self._began = trio.current_time()
        metrics.requests.labels(*labels).inc()
        metrics.inflight.labels(*labels).inc()

    def stop(self, answer: Response | Hijack | None) -> None:
        took = trio.current_time() - self._began
        self._metrics.inflight.labels(*self._labels).dec()
        self._metrics.duration.labels(*self._labels).observe(took)
        if (log := _log.v(3)).enabled:
            request = self._request
            log.info(
                "HTTP",
                verb=request.method,
                URI=request.target,
                latency=format_duration(took),
                userAgent=request.header("user-agent") or "",
                srcIP=request.peer,
                **_ending(answer),
            )


def _ending(answer: Response | Hijack | None) -> dict[str, object]:
    """How a request ended, in the words of the kubelet's log (apiserver: httplog)."""
    if isinstance(answer, Hijack):
        return {"hijacked": True}
    return {"resp": answer.status if answer is not None else HTTPStatus.INTERNAL_SERVER_ERROR.value}
