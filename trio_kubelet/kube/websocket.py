"""A watch over a WebSocket: one JSON event a text frame; pings tell a dead connection from a quiet one.

What the API server and trio-websocket need of each other: an `Origin` header (else a bare 403 that never
surfaces, hence a deadline of its own for the handshake), messages larger than the library's default, and
somebody who keeps reading, or pongs are not seen.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, wrap_client_stream

from trio_kubelet.common.tls import close_for_good
from trio_kubelet.kube.answer_bodies import MAX_EVENT_BYTES
from trio_kubelet.kube.errors import APIUnavailable, WebSocketRefused
from trio_kubelet.kube.request_words import connecting

HANDSHAKE_TIMEOUT = 5.0
PONG_TIMEOUT = 15.0
ORDERLY = (1000, 1001, 1005)


class _Events:
    """The EventStream of a WebSocket."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self.dead = False

    async def next_event(self) -> bytes | None:
        try:
            message = await self._connection.get_message()
        except ConnectionClosed as exc:
            if self.dead:
                raise APIUnavailable(
                    f"the watch's connection is dead: no pong within {PONG_TIMEOUT:g}s"
                ) from None
            code = exc.reason.code if exc.reason is not None else None
            if code in ORDERLY:
                return None
            raise APIUnavailable(f"the watch's connection broke (WebSocket code {code})") from None
        return message.encode() if isinstance(message, str) else bytes(message)

    async def keep_alive(self, stream: trio.abc.Stream, period: float) -> None:
        """Pings until the connection ends; closes it when nobody answers."""
        while True:
            await trio.sleep(period)
            with trio.move_on_after(PONG_TIMEOUT) as scope:
                try:
                    await self._connection.ping()
                except ConnectionClosed:
                    return
            if scope.cancelled_caught:
                self.dead = True
                await trio.aclose_forcefully(stream)
                return


@asynccontextmanager
async def open_events(
    url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, server_name: str, ping_period: float
) -> AsyncIterator[_Events]:
    """Opens a WebSocket at an http(s) URL. Raises WebSocketRefused, APIUnavailable.

    `server_name` is the name the certificate has to carry, "" for the URL's.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    with connecting(url):
        plain = await trio.open_tcp_stream(host, parts.port or (443 if tls else 80))
        stream = plain if tls is None else await _secured(plain, tls, server_name or host)
    opened = False
    try:
        with _unwrapped():
            async with trio.open_nursery() as nursery:
                resource = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
                connection = await _handshake(
                    nursery,
                    stream,
                    parts.netloc.rpartition("@")[2],
                    resource,
                    {
                        "Origin": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
                        **headers,
                    },
                )
                events = _Events(connection)
                nursery.start_soon(events.keep_alive, stream, ping_period)
                opened = True
                yield events
                nursery.cancel_scope.cancel()
    except (APIUnavailable, WebSocketRefused):
        raise
    except Exception as exc:  # of a handshake, the libraries' own errors for what is no HTTP, too
        if opened and not isinstance(exc, HandshakeError):
            raise
        raise WebSocketRefused(f"{host}: the WebSocket handshake failed: {type(exc).__name__}") from exc
    finally:
        await close_for_good(stream)


async def _secured(
    plain: trio.SocketStream, tls: ssl.SSLContext, server_name: str
) -> trio.SSLStream[trio.SocketStream]:
    secure = trio.SSLStream(plain, tls, server_hostname=server_name, https_compatible=True)
    try:
        await secure.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(plain)
        raise
    return secure


async def _handshake(
    nursery: trio.Nursery,
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
    host: str,
    resource: str,
    headers: Mapping[str, str],
) -> WebSocketConnection:
    with trio.move_on_after(HANDSHAKE_TIMEOUT):
        return await wrap_client_stream(
            nursery,
            stream,
            host,
            resource,
            extra_headers=[(key.encode(), value.encode()) for key, value in headers.items()],
            message_queue_size=64,
            max_message_size=MAX_EVENT_BYTES,
            receive_buffer_size=64 * 1024,
        )
    raise WebSocketRefused(f"{host}: no WebSocket within {HANDSHAKE_TIMEOUT:g}s")


@contextmanager
def _unwrapped() -> Iterator[None]:
    """A nursery's only error as itself: the nursery here is nobody's business outside."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors = group
        while len(errors.exceptions) == 1:
            (error,) = errors.exceptions
            if not isinstance(error, BaseExceptionGroup):
                raise error from error.__cause__
            errors = error
        raise
