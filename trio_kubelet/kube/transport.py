"""The transport of httpx's clients, with connections that are closed when their opening is cancelled.

Left alone, the library forgets a connection whose TLS handshake is cancelled (by the deadline of a request,
by the end of the agent) without closing it: it stays open until the collector finds it. And one that stands
when its request is cancelled before a byte was sent stays in the pool for ever, neither busy nor idle.

Imported only where httpx is needed (see `network`).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx
import trio

DEFAULT_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)


def transport(
    tls: ssl.SSLContext | None,
    proxy: str | None,
    limits: httpx.Limits = DEFAULT_LIMITS,
    socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
) -> httpx.AsyncHTTPTransport:
    """A transport of its own pool; without `tls` it is for plain HTTP."""
    made = httpx.AsyncHTTPTransport(
        verify=tls if tls is not None else False,
        trust_env=False,
        proxy=proxy,
        limits=limits,
        socket_options=socket_options,
    )
    # httpx has no parameter for what httpcore's pools call by this name.
    made._pool._network_backend = _Backend()
    return made


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
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            secure = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await _abandon(self._inner)
            raise
        return await _kept(secure)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


async def _kept(stream: httpcore.AsyncNetworkStream) -> httpcore.AsyncNetworkStream:
    """The stream, unless its user was cancelled meanwhile: between here and sending nothing looks again."""
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except BaseException:
        await _abandon(stream)
        raise
    return _Stream(stream)


async def _abandon(stream: httpcore.AsyncNetworkStream) -> None:
    """Closes at once: what is already cancelled has no time for another word."""
    with trio.CancelScope(shield=True) as scope:
        scope.cancel()
        await stream.aclose()
