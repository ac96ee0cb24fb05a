"""The API server over the network: requests by the shortest way, watches over WebSockets where they work;
through a proxy, and where a watch has to be plain HTTP, by httpx.

Imported only where there is an API server: the libraries cost memory that a node without one does not pay.
When certificates change, requests go on with new connections; the old ones are closed when their last request
is done. Watches end by themselves within minutes, or at once when `renew` says so.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from itertools import islice
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import httpx
import trio

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.token_bucket import TokenBucket
from trio_kubelet.kube.answer_bodies import ChunkedEvents, abandon, read_body
from trio_kubelet.kube.credentials import ClientIdentity, Credentials
from trio_kubelet.kube.direct import DirectRequests
from trio_kubelet.kube.doors import (
    JSON,
    APIAnswer,
    APIRequest,
    EventStream,
    HTTPRequests,
    RequestSpan,
    SpanOfRequest,
    WholeAnswer,
)
from trio_kubelet.kube.errors import APIError, APIUnavailable, WebSocketRefused, error_from
from trio_kubelet.kube.kubeconfig import ClientConfig
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.proxy import proxy_for
from trio_kubelet.kube.request_words import CONNECT_TIMEOUT, request_words, url_error
from trio_kubelet.kube.shared_watches import NotShared, SharedWatches
from trio_kubelet.kube.transport import ProxiedRequests, transport

log = get_logger(__name__)

USER_AGENT = "kubelet/v1.36 (linux) trio-kubelet"
WATCH_OPEN_TIMEOUT = 30.0
CLOSE_TIMEOUT = 2.0
LONGEST_LIST = 128 * 1024 * 1024
"""Bytes of an answer to a GET, unpacked: the pods of a node, each as large as a server keeps them."""
LONGEST_OBJECT = 8 * 1024 * 1024
"""Bytes of any other answer (the object that was written, a review) and of a refusal."""
QUIET_PING_PERIOD = 60.0
"""Watches that ask no more often than this whether the connection lives share one (see `shared_watches`)."""
WEBSOCKET_REST = 1800.0
"""Seconds for which plain HTTP is used after a server took a watch over it but refused the WebSocket."""
_NO_ANSWER = (trio.TooSlowError, httpx.HTTPError, httpx.InvalidURL, OSError)

_KEPT = 20
"""Idle connections that stay open, each for `_EXPIRY` seconds."""
_EXPIRY = 60.0
_AS_IT_IS = "/:@!$&'()*+,;=~-._%"
"""Of a path: what is escaped already stays as it is."""
_MOST_WARNINGS: Final = 16
"""Warnings of one answer that are logged. (An API server repeats none, and cuts long ones.)"""
_WARNING: Final = re.compile(r'\s*(?P<code>\d{3}) \S+ "(?P<text>(?:[^"\\]|\\.)*)"\s*(?:"[^"]*"\s*)?(?:,|$)')

# A peer that is gone without a word is noticed within a minute, on plain HTTP too.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class _Unseen:
    headers: Final[Mapping[str, str]] = {}

    def answered(self, status: int) -> None:
        pass


_UNSEEN: Final = nullcontext(_Unseen())


def unseen(method: str, url: str) -> AbstractContextManager[SpanOfRequest]:
    """The `RequestSpan` of who has no traces."""
    return _UNSEEN


class _Requests:
    """Requests with one TLS identity. Its connections are closed when it is retired and unused."""

    def __init__(self, tls: ssl.SSLContext | None, way: HTTPRequests) -> None:
        self.tls = tls
        self._way = way
        self._users = 0
        self._retired = False

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, longest: int
    ) -> WholeAnswer:
        """See `HTTPRequests`."""
        self._users += 1
        try:
            return await self._way.ask(method, target, headers, body, longest)
        finally:
            self._users -= 1
            await self._close_if_done()

    async def retire(self) -> None:
        self._retired = True
        await self._close_if_done()

    async def _close_if_done(self) -> None:
        if self._retired and not self._users:
            with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await self._way.aclose()


class _Renewable:
    """An EventStream that can be told to end, as if the server had ended it in good order."""

    def __init__(self, events: EventStream) -> None:
        self._events = events
        self._ended = False
        self._scope: trio.CancelScope | None = None

    async def next_event(self) -> bytes | None:
        if self._ended:
            return None
        with trio.CancelScope() as self._scope:
            return await self._events.next_event()
        return None

    def end(self) -> None:
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()


class NetworkDoor:
    """An `APIDoor` to a real server, with connections of its own. Safe for many tasks at once."""

    def __init__(
        self,
        credentials: Credentials,
        environment: Mapping[str, str],
        limiter: TokenBucket | None = None,
        metrics: KubeMetrics | None = None,
        span: RequestSpan = unseen,
    ) -> None:
        """`environment` is looked at for proxies only; without a limiter nothing waits for its turn."""
        config = credentials.config
        self._server = config.server
        self._prefix = quote(urlsplit(config.server).path.rstrip("/"), safe=_AS_IT_IS)
        self._origin = self._server.removesuffix(self._prefix)
        self._server_name = config.tls_server_name
        self._proxy = config.proxy_url or proxy_for(config.server, environment)
        # Only connecting has a deadline of its own; the callers' rule, and a watch may be silent for long.
        self._extensions: dict[str, object] = {"timeout": {"connect": CONNECT_TIMEOUT}}
        if self._server_name:
            self._extensions["sni_hostname"] = self._server_name
        self._credentials = credentials
        self._limiter = limiter
        self._metrics = metrics
        self._span = span
        self._host = urlsplit(config.server).netloc
        self._requests: _Requests | None = None
        self._watches: set[_Renewable] = set()
        self._no_websocket_until = float("inf") if self._proxy else float("-inf")
        self._no_sharing_until = self._no_websocket_until
        self._quiet = SharedWatches()

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        """See `APIDoor`. A 401 makes the credentials be looked at anew for the next request."""
        target = self._target(request.path, request.params)
        await self._turn(request.method)
        with self._span(request.method, self._origin + target) as span:
            answer = await self._ask(request, target, span.headers, timeout)
            span.answered(answer.status)
        return APIAnswer(answer.status, answer.body, _seconds(answer.headers.get("retry-after", "")))

    async def _ask(
        self, request: APIRequest, target: str, more: Mapping[str, str], timeout: float
    ) -> WholeAnswer:
        headers = {"Accept": JSON, "Accept-Encoding": "gzip", "User-Agent": USER_AGENT, **more}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        began = trio.current_time()
        try:
            with trio.fail_after(timeout):
                identity = await self._credentials.identity()
                requests = await self._requests_of(identity)
                headers |= identity.headers
                answer = await requests.ask(request.method, target, headers, request.body, _longest(request))
        except _NO_ANSWER as exc:
            self._count("<error>", request.method, again=request.again)
            raise APIUnavailable(
                url_error(request.method, self._url(request.path, request.params), exc)
            ) from exc
        self._judge(answer.status, identity)
        self._count(str(answer.status), request.method, again=request.again)
        self._measure(request, trio.current_time() - began, len(answer.body))
        for text in islice(dict.fromkeys(_warnings(answer.headers.get("warning", ""))), _MOST_WARNINGS):
            log.info(f"Warning: {text}")
        return answer

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AsyncIterator[EventStream]:
        """See `APIDoor`: over a WebSocket unless server or proxy want none, else over plain HTTP."""
        url = self._url(path, {"watch": "1", **params})
        await self._turn("GET")
        async with AsyncExitStack() as stack:
            events = await self._shared(stack, url, ping_period)
            shared, refused = events is not None, False
            if events is None and trio.current_time() >= self._no_websocket_until:
                try:
                    events = await stack.enter_async_context(self._websocket(url, ping_period))
                except WebSocketRefused as exc:
                    log.v(2).info("WebSocket refused, watching over plain HTTP", path=path, err=exc)
                    refused = True
            if events is None:
                events = await stack.enter_async_context(self._plain(url, path))
                if refused:
                    self._no_websocket_until = trio.current_time() + WEBSOCKET_REST
            elif not shared:
                self._count("101", "GET")
            renewable = _Renewable(events)
            self._watches.add(renewable)
            stack.callback(self._watches.discard, renewable)
            yield renewable

    def renew(self) -> None:
        """Another identity counts from now on: watches with the old one end, to be opened again."""
        self._credentials.changed()
        for watch in list(self._watches):
            watch.end()

    async def aclose(self) -> None:
        """Closes idle connections; requests under way are finished by their callers."""
        if self._requests is not None:
            await self._requests.retire()
            self._requests = None

    def _shares(self, ping_period: float) -> bool:
        """Whether a watch is so quiet that it shares its connection with others."""
        return ping_period >= QUIET_PING_PERIOD and trio.current_time() >= self._no_sharing_until

    async def _shared(self, stack: AsyncExitStack, url: str, ping_period: float) -> EventStream | None:
        """Opens a watch on a shared connection, for as long as `stack` is; None where that is not done."""
        if not self._shares(ping_period):
            return None
        try:
            identity = await self._credentials.identity()
        except OSError as exc:
            raise APIUnavailable(error_words(exc)) from exc
        if identity.tls is None:
            return None
        try:
            async with AsyncExitStack() as opening:
                span = opening.enter_context(self._span("GET", url))
                headers = {"User-Agent": USER_AGENT, **identity.headers, **span.headers}
                opened = self._quiet.open(url, headers, identity.tls, self._server_name, ping_period)
                events = await opening.enter_async_context(opened)
                span.answered(200)
                stack.push_async_exit(opening.pop_all())
        except NotShared:
            self._no_sharing_until = trio.current_time() + WEBSOCKET_REST
            return None
        except APIError as exc:
            self._judge(exc.code, identity)
            self._count(str(exc.code), "GET")
            raise
        self._count("200", "GET")
        return events

    @asynccontextmanager
    async def _websocket(self, url: str, ping_period: float) -> AsyncIterator[EventStream]:
        try:
            identity = await self._credentials.identity()
        except OSError as exc:
            raise APIUnavailable(error_words(exc)) from exc
        from trio_kubelet.kube.websocket import open_events

        with self._span("GET", url) as span:
            headers = {"User-Agent": USER_AGENT, **identity.headers, **span.headers}
            async with open_events(url, headers, identity.tls, self._server_name, ping_period) as events:
                span.answered(101)
                yield events

    @asynccontextmanager
    async def _plain(self, url: str, path: str) -> AsyncIterator[EventStream]:
        async with AsyncExitStack() as stack:
            span = stack.enter_context(self._span("GET", url))
            try:
                with trio.fail_after(WATCH_OPEN_TIMEOUT):
                    identity = await self._credentials.identity()
                    http = transport(identity.tls, self._proxy, socket_options=_KEEPALIVE)
                    stack.push_async_callback(_close, http)
                    headers = {
                        "Accept": JSON,
                        "User-Agent": USER_AGENT,
                        "Accept-Encoding": "identity",
                        **identity.headers,
                        **span.headers,
                    }
                    request = httpx.Request("GET", url, headers=headers, extensions=self._extensions)
                    answer = await http.handle_async_request(request)
                    span.answered(answer.status_code)
                    stack.push_async_callback(_close, answer)
                    self._judge(answer.status_code, identity)
                    self._count(str(answer.status_code), "GET")
                    if answer.status_code != 200:
                        body = await read_body(answer, LONGEST_OBJECT)
                        raise error_from(
                            answer.status_code, body, _seconds(answer.headers.get("Retry-After", ""))
                        )
            except _NO_ANSWER as exc:
                self._count("<error>", "GET")
                raise APIUnavailable(url_error("GET", url, exc)) from exc
            chunks = _chunks(answer, path, url)
            stack.push_async_callback(abandon, chunks)
            yield ChunkedEvents(chunks)

    async def _requests_of(self, identity: ClientIdentity) -> _Requests:
        old = self._requests
        if old is not None and old.tls is identity.tls:
            return old
        new = self._requests = _Requests(identity.tls, self._way(identity.tls))
        if old is not None:
            await old.retire()
        return new

    def _way(self, tls: ssl.SSLContext | None) -> HTTPRequests:
        if self._proxy:
            limits = httpx.Limits(
                max_connections=None, max_keepalive_connections=_KEPT, keepalive_expiry=_EXPIRY
            )
            proxied = transport(tls, self._proxy, limits, _KEEPALIVE)
            return ProxiedRequests(proxied, self._origin, self._extensions)
        return DirectRequests(
            httpx.URL(self._server),
            tls,
            self._server_name,
            kept=_KEPT,
            expiry=_EXPIRY,
            patience=CONNECT_TIMEOUT,
            socket_options=_KEEPALIVE,
        )

    async def _turn(self, verb: str) -> None:
        """Waits until the limit lets one more request through."""
        if self._limiter is not None:
            waited = self._limiter.reserve(trio.current_time())
            if waited > 0:
                await trio.sleep(waited)
            if self._metrics is not None:
                self._metrics.limiter_duration.labels(verb, self._host).observe(waited)

    def _count(self, code: str, method: str, *, again: bool = False) -> None:
        if self._metrics is not None:
            self._metrics.requests.labels(code, method, self._host).value += 1
            if again:
                self._metrics.retries.labels(code, method, self._host).inc()

    def _measure(self, request: APIRequest, seconds: float, answered: int) -> None:
        if self._metrics is not None:
            labels = (request.method, self._host)
            self._metrics.request_duration.labels(*labels).observe(seconds)
            self._metrics.request_size.labels(*labels).observe(len(request.body or b""))
            self._metrics.response_size.labels(*labels).observe(answered)

    def _judge(self, status: int, identity: ClientIdentity) -> None:
        if status == 401:
            self._credentials.rejected(identity)

    def _target(self, path: str, params: Mapping[str, str]) -> str:
        """What is asked for; a path may name what somebody wrote into an object."""
        target = self._prefix + quote(path, safe=_AS_IT_IS)
        return f"{target}?{urlencode(params)}" if params else target

    def _url(self, path: str, params: Mapping[str, str]) -> str:
        return self._server + path + ("?" + urlencode(params) if params else "")


def _longest(request: APIRequest) -> int:
    return LONGEST_LIST if request.method == "GET" else LONGEST_OBJECT


def _seconds(retry_after: str) -> float | None:
    return float(retry_after) if retry_after.isdecimal() else None


def _warnings(header: str) -> Iterator[str]:
    """What the server says about a request that it took all the same: of a field it does not know, a version
    that goes (RFC 7234 5.5, code 299). What is no warning ends the header, as for client-go.
    """
    end = 0
    while (found := _WARNING.match(header, end)) is not None:
        end = found.end()
        if found["code"] == "299" and found["text"]:
            yield re.sub(r"\\(.)", r"\1", found["text"])


async def _chunks(answer: httpx.Response, path: str, url: str) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except (httpx.HTTPError, OSError) as exc:
        raise APIUnavailable(f"watch {path}: {request_words(exc, url)}") from exc


async def _close(what: httpx.Response | httpx.AsyncBaseTransport) -> None:
    with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
        await what.aclose()


def connect(
    config: ClientConfig, clock: Clock, environment: Mapping[str, str] = os.environ
) -> AbstractAsyncContextManager[NetworkDoor]:
    """A door to the API server of `config`, closed at the end. Raises OSError for an unusable exec plugin."""
    return _connected(NetworkDoor(Credentials(config, clock), environment))


@asynccontextmanager
async def _connected(door: NetworkDoor) -> AsyncIterator[NetworkDoor]:
    try:
        yield door
    finally:
        await door.aclose()
