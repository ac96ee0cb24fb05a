"""Spans of requests over HTTP: those to the API server, and those to the agent's own ports.

Names and attributes are the kubelet's (of otelhttp and otelrestful 0.65: HTTP semantic conventions 1.39).
What it leaves without a name, endpoints that no service of go-restful answers such as `/metrics`, has its
path here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, use_span

from trio_kubelet.common.clock import Clock
from trio_kubelet.kube.doors import SpanOfRequest
from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, until_sent
from trio_kubelet.tracing.spans import joining

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SWITCHING_PROTOCOLS = 101
_LAST_PORT = 65535


class APISpans:
    """A `RequestSpan`: spans below that of the pod whose sync makes the request, else by themselves. One of a
    watch lasts as long as the watch.
    """

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock

    @contextmanager
    def __call__(self, method: str, url: str) -> Iterator[SpanOfRequest]:
        span = self._tracer.start_span(
            f"HTTP {method}",
            kind=SpanKind.CLIENT,
            start_time=self._clock.now_ns(),
            attributes=_asked(method, url),
        )
        try:
            yield _APISpan(span)
        except Exception as exc:  # a cancelled one is only over
            span.set_attribute("error.type", type(exc.__cause__ or exc).__name__)
            span.set_status(StatusCode.ERROR, str(exc))
            raise
        finally:
            span.end(self._clock.now_ns())


class _APISpan:
    """A request under way."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers = joining(span)

    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(StatusCode.ERROR)


class ServerSpans:
    """An `Around`: a span for each request that was let through, from its handler's start until its answer is
    sent or its connection handed back. It begins a trace of its own, whatever the client says, as on the
    kubelet's ports; calls of the runtime that the handler makes are below it.
    """

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock

    def __call__(self, route: str, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response | Hijack:
            span = self._tracer.start_span(
                route,
                Context(),
                kind=SpanKind.SERVER,
                start_time=self._clock.now_ns(),
                attributes={"http.route": route, **_served(request)},
            )

            def end() -> None:
                span.end(self._clock.now_ns())

            try:
                with use_span(span, record_exception=False, set_status_on_exception=False):
                    answer = await handler(request)
            except BaseException as exc:
                if isinstance(exc, Exception):
                    span.set_status(StatusCode.ERROR, str(exc))
                end()
                raise
            status = _SWITCHING_PROTOCOLS if isinstance(answer, Hijack) else answer.status
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            return until_sent(answer, end)

        return handle


def _asked(method: str, url: str) -> Mapping[str, str | int]:
    parts = urlsplit(url)
    found: dict[str, str | int] = {
        "http.request.method": method,
        "url.full": parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(),
        "server.address": parts.hostname or "",
        "network.protocol.version": "1.1",
    }
    if parts.port and parts.port != _DEFAULT_PORTS.get(parts.scheme):
        found["server.port"] = parts.port
    return found


def _served(request: Request) -> Mapping[str, str | int]:
    found: dict[str, str | int] = {
        "server.address": "kubelet",
        "http.request.method": request.method,
        "url.path": request.path,
        "network.protocol.version": "1.1",
    }
    host, _, port = request.peer.rpartition(":")
    if host:
        found |= {"network.peer.address": host, "network.peer.port": int(port), "client.address": host}
    _, _, served = (request.header("host") or "").rpartition(":")
    if served.isascii() and served.isdecimal() and int(served[:6]) <= _LAST_PORT:
        found["server.port"] = int(served[:6])
    if agent := request.header("user-agent"):
        found["user_agent.original"] = agent
    return found
