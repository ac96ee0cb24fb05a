"""HTTP transports over httpcore, whose connections are closed when their opening is cancelled.

Left alone, the library forgets a connection whose TLS handshake is cancelled (by the deadline of a request,
by the end of the agent) without closing it: it stays open until the collector finds it. And one that stands
when its request is cancelled before a byte was sent stays in the pool for ever, neither busy nor idle.

httpx's own transport lets nobody choose pool or sockets, so this is one beside it: httpx's requests, answers
and errors outside, httpcore's public pools and streams inside.

Imported only where httpx is needed (see `network`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import httpcore
import httpx
import trio

from trio_kubelet.common.http_syntax import MAX_INFORMATIONAL
from trio_kubelet.kube.answer_bodies import read_body
from trio_kubelet.kube.doors import WholeAnswer

DEFAULT_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)
CLOSE_TIMEOUT = 2.0
_STATUS_AT: Final = len("HTTP/1.1 ")
_HEAD_END: Final = re.compile(rb"\n\r?\n")

_ERRORS: Final[dict[type[BaseException], type[httpx.TransportError]]] = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.PoolTimeout: httpx.PoolTimeout,
    httpcore.TimeoutException: httpx.TimeoutException,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.NetworkError: httpx.NetworkError,
    httpcore.ProxyError: httpx.ProxyError,
    httpcore.UnsupportedProtocol: httpx.UnsupportedProtocol,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
    httpcore.ProtocolError: httpx.ProtocolError,
}
_SOCKS_REFUSALS: Final = {
    1: "general SOCKS server failure",
    2: "connection not allowed by ruleset",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "TTL expired",
    7: "command not supported",
    8: "address type not supported",
}


@contextlib.contextmanager
def errors_of_httpx() -> Iterator[None]:
    """What httpcore raises within comes out as httpx's error of the same name."""
    try:
        yield
    except Exception as exc:
        for kind in type(exc).__mro__:
            if kind in _ERRORS:
                raise _ERRORS[kind](str(exc)) from exc
        raise


def transport(
    tls: ssl.SSLContext | None,
    proxy: str | None,
    limits: httpx.Limits = DEFAULT_LIMITS,
    socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
) -> Transport:
    """A transport of its own pool; without `tls` it is for plain HTTP."""
    between = _proxy(proxy) if proxy else None
    backend: httpcore.AsyncNetworkBackend = _Backend()
    if between is not None and between.url.scheme.startswith(b"socks"):
        backend = _SocksBackend(backend, between)
        between = None
    return Transport(
        httpcore.AsyncConnectionPool(
            ssl_context=tls,
            proxy=between,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            socket_options=socket_options,
            network_backend=backend,
        )
    )


def _proxy(url: str) -> httpcore.Proxy:
    """A proxy, with the user and password that its URL names. Raises httpx.ProxyError if it is none."""
    try:
        proxy = httpx.Proxy(url)
    except (httpx.InvalidURL, ValueError):
        raise httpx.ProxyError("the proxy's address is no URL") from None  # it may hold a password
    return httpcore.Proxy(_url(proxy.url), proxy.raw_auth, proxy.headers.raw)


class Transport(httpx.AsyncBaseTransport):
    """Requests of httpx over a pool of httpcore."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self.pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with errors_of_httpx():
            answer = await self.pool.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=_url(request.url),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_AnswerStream(answer.stream),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        await self.pool.aclose()


class _AnswerStream(httpx.AsyncByteStream):
    def __init__(self, parts: Any) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with errors_of_httpx():
            async for part in self._parts:
                yield part

    async def aclose(self) -> None:
        await self._parts.aclose()


def _url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


class ProxiedRequests:
    """Implements `HTTPRequests` by way of httpx."""

    def __init__(self, http: Transport, origin: str, extensions: Mapping[str, object]) -> None:
        """`origin`: scheme, host and port of the server."""
        self._http = http
        self._origin = origin
        self._extensions = dict(extensions)

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, longest: int
    ) -> WholeAnswer:
        """See `HTTPRequests`."""
        asked = httpx.Request(
            method, self._origin + target, content=body, headers=headers, extensions=self._extensions
        )
        answer = await self._http.handle_async_request(asked)
        try:
            whole = await read_body(answer, longest, gzip=True)
        finally:
            await answer.aclose()
        return WholeAnswer(answer.status_code, answer.headers, whole)

    async def aclose(self) -> None:
        await self._http.aclose()


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self) -> None:
        self._inner = httpcore.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return await _kept(stream)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _SocksBackend(httpcore.AsyncNetworkBackend):
    """Connects by way of a SOCKS5 proxy (RFC 1928, RFC 1929), which looks names up itself, as Go's client has
    it for `socks5` and `socks5h`.
    """

    def __init__(self, inner: httpcore.AsyncNetworkBackend, proxy: httpcore.Proxy) -> None:
        self._inner = inner
        self._host = proxy.url.host.decode("ascii")
        self._port = proxy.url.port or 1080
        self._auth = proxy.auth

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(self._host, self._port, timeout, local_address, socket_options)
        try:
            with trio.fail_after(math.inf if timeout is None else timeout):
                await self._ask(stream, host, port)
        except trio.TooSlowError as exc:
            await _abandon(stream.aclose)
            raise httpcore.ConnectTimeout from exc
        except httpcore.ProxyError as exc:
            await _abandon(stream.aclose)
            way = f"{self._host}:{self._port}->{host}:{port}"
            raise httpcore.ProxyError(f"socks connect tcp {way}: {exc}") from exc
        except BaseException:
            await _abandon(stream.aclose)
            raise
        return stream

    async def _ask(self, stream: httpcore.AsyncNetworkStream, host: str, port: int) -> None:
        """Has the proxy connect. Raises httpcore.ProxyError."""
        user, password = self._auth or (b"", b"")
        await stream.write(b"\5\2\0\2" if user else b"\5\1\0")
        version, method = await _taken(stream, 2)
        if version != 5:
            raise httpcore.ProxyError(f"unexpected protocol version {version}")
        if method == 2 and 0 < len(user) < 256 and len(password) < 256:
            await stream.write(b"\1%c%b%c%b" % (len(user), user, len(password), password))
            if (await _taken(stream, 2))[1]:
                raise httpcore.ProxyError("username/password authentication failed")
        elif method:
            raise httpcore.ProxyError("no acceptable authentication methods")
        await stream.write(b"\5\1\0" + _socks_address(host) + port.to_bytes(2))
        _, refused, _, kind = await _taken(stream, 4)
        if refused:
            why = _SOCKS_REFUSALS.get(refused, f"unknown code: {refused}")
            raise httpcore.ProxyError(f"unknown error {why}")
        length = (await _taken(stream, 1))[0] if kind == 3 else 16 if kind == 4 else 4
        await _taken(stream, length + 2)  # where the proxy connected from

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def _socks_address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode("ascii")
        if len(name) > 255:
            raise httpcore.ProxyError("FQDN too long") from None
        return b"\3%c%b" % (len(name), name)
    return (b"\1" if address.version == 4 else b"\4") + address.packed


async def _taken(stream: httpcore.AsyncNetworkStream, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        if not (more := await stream.read(count - len(taken))):
            raise httpcore.ProxyError("EOF")
        taken += more
    return taken


class _Heads:
    """What comes before an answer: httpcore passes over informational answers, however many they are."""

    def __init__(self) -> None:
        self._said: bytearray | None = bytearray()
        self._looked = 0
        self._informational = 0

    def see(self, data: bytes) -> None:
        """Raises httpcore.RemoteProtocolError when there are too many."""
        if self._said is None:
            return
        self._said += data
        while len(self._said) >= _STATUS_AT + 3:
            if not self._said.startswith(b"1", _STATUS_AT) or self._said.startswith(b"101", _STATUS_AT):
                self._said = None
                return
            end = _HEAD_END.search(self._said, self._looked)
            if end is None:
                self._looked = max(0, len(self._said) - 2)
                return
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise httpcore.RemoteProtocolError("too many 1xx informational responses")
            del self._said[: end.end()]
            self._looked = 0


class _Stream(httpcore.AsyncNetworkStream):
    """A stream that is closed when it cannot be made one of TLS. After it wrote it reads an answer."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._heads = _Heads()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        self._heads.see(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._heads = _Heads()
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            secure = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await _abandon(self._inner.aclose)
            raise
        return await _kept(secure)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


async def _kept(stream: httpcore.AsyncNetworkStream) -> httpcore.AsyncNetworkStream:
    """The stream, unless its user was cancelled meanwhile: between here and sending nothing looks again."""
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except BaseException:
        await _abandon(stream.aclose)
        raise
    return _Stream(stream)


async def _abandon(close: Callable[[], Awaitable[None]]) -> None:
    """Closes at once: what is already cancelled has no time for another word."""
    with trio.CancelScope(shield=True) as scope:
        scope.cancel()
        await close()
