"""HTTP transports over httpcore, whose connections are closed when their opening is cancelled.

Left alone, the library forgets a connection whose TLS handshake is cancelled (by the deadline of a request,
by the end of the agent) without closing it: it stays open until the collector finds it. And one that stands
when its request is cancelled before a byte was sent stays in the pool for ever, neither busy nor idle.

Its pool also looks at every connection, idle ones by a system call, at the beginning and at the end of each
request: with sixteen requests at a time that is half of what a request costs. So requests to one server have
a plain stack of connections instead, and head and body of each go out together.

httpx's own transport lets nobody choose pool or sockets, so this is one beside it: httpx's requests, answers
and errors outside, httpcore's public pools and streams inside.

Imported only where httpx is needed (see `network`).
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

import httpcore
import httpx
import trio

DEFAULT_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)
CLOSE_TIMEOUT = 2.0

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
    return Transport(
        httpcore.AsyncConnectionPool(
            ssl_context=tls,
            proxy=_proxy(proxy) if proxy else None,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            socket_options=socket_options,
            network_backend=_Backend(),
        )
    )


def _proxy(url: str) -> httpcore.Proxy:
    """A proxy, with the user and password that its URL names."""
    proxy = httpx.Proxy(url)
    return httpcore.Proxy(_url(proxy.url), proxy.raw_auth, proxy.headers.raw)


def transport_to_one_server(
    tls: ssl.SSLContext | None, kept: int, expiry: float, socket_options: Iterable[httpcore.SOCKET_OPTION]
) -> Transport:
    """A transport for any number of requests at a time to one server, without a proxy in between.

    `kept` connections stay when they are idle, each for `expiry` seconds.
    """
    return Transport(
        OneServer(
            ssl_context=tls,
            max_keepalive_connections=kept,
            keepalive_expiry=expiry,
            socket_options=socket_options,
            network_backend=_Backend(),
        )
    )


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


class OneServer(httpcore.AsyncConnectionPool):
    """A stack of idle connections: the one that was used last is used next."""

    def __init__(self, *, max_keepalive_connections: int, **options: Any) -> None:
        super().__init__(**options)
        self._kept = max_keepalive_connections
        self._idle: list[httpcore.AsyncConnectionInterface] = []  # the longest idle one first

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        connection = await self._usable(request.url.origin)
        try:
            answer = await connection.handle_async_request(request)
        except BaseException:
            await _abandon(connection.aclose)
            raise
        answer.stream = _Body(answer.stream, self, connection)
        return answer

    async def give_back(self, connection: httpcore.AsyncConnectionInterface) -> None:
        """A request is done with this one: it is idle now, or closed because of what became of the answer."""
        if connection.is_idle():
            self._idle.append(connection)
        while self._idle and (len(self._idle) > self._kept or self._idle[0].has_expired()):
            await _abandon(self._idle.pop(0).aclose)

    async def aclose(self) -> None:
        while self._idle:
            await _abandon(self._idle.pop().aclose)

    async def _usable(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await _abandon(connection.aclose)
        return self.create_connection(origin)


class _Body:
    """The body of an answer; closing it frees the connection."""

    def __init__(self, parts: Any, pool: OneServer, connection: httpcore.AsyncConnectionInterface) -> None:
        self._parts = parts
        self._pool = pool
        self._connection: httpcore.AsyncConnectionInterface | None = connection

    def __aiter__(self) -> AsyncIterator[bytes]:
        parts: AsyncIterator[bytes] = self._parts.__aiter__()
        return parts

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await self._parts.aclose()
            await self._pool.give_back(connection)


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


class _Stream(httpcore.AsyncNetworkStream):
    """Sends what was written when an answer is read: head and body of a request in one piece, where each
    write of its own would be a TLS record and a system call.
    """

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._written = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._written:
            written, self._written = self._written, b""
            # Who closes early may have answered all the same; httpcore goes on to read then, too.
            with contextlib.suppress(httpcore.WriteError):
                await self._inner.write(written, timeout)
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._written += buffer

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
