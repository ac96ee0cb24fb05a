"""Raw pass-through of an upgraded connection to a runtime's streaming server.

The request that asked for the upgrade goes to the runtime as it came, only to the runtime's own URL; from the
switch of protocols on nothing is interpreted, so SPDY and WebSocket are alike, and half-closed streams and
exit codes are whatever the two ends make of them. One buffer each way: who reads slowly slows the other end.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import h11
import trio

from trio_kubelet.common.go_words import connection_words, dial_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.tls import close_for_good
from trio_kubelet.server.http.messages import NOSNIFF, Hijack, Request, Response, text

log = get_logger(__name__)

BUFFER = 128 * 1024
V5 = "v5.channel.k8s.io"
TUNNEL = "SPDY/3.1+"
"""What runtimes do not speak, see `translation`: commands of version 5, and how names of tunnels begin."""
_DIAL_SECONDS = 30.0
_HEAD_BYTES = 64 * 1024
_ERROR_BODY_BYTES = 1024 * 1024
_GOODBYE_SECONDS = 5.0  # for what is still under way when one end has closed
_QUIET_SECONDS = 0.05

# The runtime knows nobody but the agent.
_NOT_FORWARDED = {"authorization", "cookie"}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade"}

Headers = Sequence[tuple[str, str]]


class UpgradeFailed(Exception):
    """The runtime did not switch protocols; `answer` says so to the client."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Upgraded(NamedTuple):
    """A connection to the runtime behind the switch: what it said so far, head first, and where that ends."""

    stream: trio.abc.Stream
    said: bytes
    head_size: int
    headers: tuple[tuple[str, str], ...]


def go_error(status: int, message: str) -> Response:
    """As Go's `http.Error`."""
    return text(status, message + "\n", NOSNIFF)


def is_upgrade(request: Request) -> bool:
    """Whether the client asks for another protocol."""
    return any(name == "connection" and "upgrade" in value.lower() for name, value in request.headers)


def is_websocket(request: Request) -> bool:
    """Whether that protocol is WebSocket."""
    return is_upgrade(request) and (request.header("upgrade") or "").lower() == "websocket"


def offered_protocols(request: Request) -> list[str]:
    """The protocols a WebSocket client offers; none when it is no WebSocket client."""
    if not is_websocket(request):
        return []
    offered = [value for name, value in request.headers if name == "sec-websocket-protocol"]
    return [part.strip() for value in offered for part in value.split(",")]


def tunnel_protocols(request: Request) -> list[str]:
    """The SPDY protocols a client would tunnel."""
    offered = offered_protocols(request)
    return [p.removeprefix(TUNNEL) for p in offered if p.startswith(TUNNEL) and p.endswith(".k8s.io")]


async def pass_to_runtime(request: Request, url: str, idle_seconds: float) -> Response | Hijack:
    """Hands the request over to the runtime's URL. `idle_seconds`: how long nothing may move, 0 for ever."""
    if not is_upgrade(request):
        return go_error(500, "Upgrade request required")
    try:
        runtime = await open_upgraded(url, request.method, forwarded_headers(request), request.body)
    except UpgradeFailed as exc:
        return exc.answer

    async def take(client: trio.abc.Stream, already_read: bytes) -> None:
        await pass_through(client, already_read, runtime.stream, runtime.said, idle_seconds)

    return Hijack(take)


def forwarded_headers(request: Request) -> list[tuple[str, str]]:
    """The client's headers as the runtime gets them."""
    headers = [(k, v) for k, v in request.headers if k not in _NOT_FORWARDED and k != "x-forwarded-for"]
    before = [v for k, v in request.headers if k == "x-forwarded-for"]
    host = request.peer.rpartition(":")[0].strip("[]")
    if host:
        headers.append(("x-forwarded-for", ", ".join([*before, host])))
    return headers


async def open_upgraded(url: str, method: str, headers: Headers, body: bytes = b"") -> Upgraded:
    """Connects to the runtime and has it switch protocols. Raises UpgradeFailed."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    host = parts.hostname or ""
    try:
        with trio.fail_after(_DIAL_SECONDS):
            stream = await _dial(parts.scheme, host, parts.port)
    except (OSError, ValueError, trio.TooSlowError, trio.BrokenResourceError) as exc:
        if isinstance(exc, OSError | trio.TooSlowError):
            why = dial_words(exc, host, parts.netloc)
        else:
            why = connection_words(exc) if isinstance(exc, trio.BrokenResourceError) else str(exc)
        log.error("Error while proxying request", err=f"error dialing backend: {why}")
        raise UpgradeFailed(go_error(500, f"error dialing backend: {why}")) from exc
    try:
        with trio.fail_after(_DIAL_SECONDS):
            return await _ask(stream, method, target, headers, body)
    except (trio.TooSlowError, trio.BrokenResourceError, h11.ProtocolError) as exc:
        await trio.aclose_forcefully(stream)
        why = str(exc) if isinstance(exc, h11.ProtocolError) else connection_words(exc)
        log.error("Error while proxying request", err=why)
        raise UpgradeFailed(go_error(500, why)) from exc
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def _dial(scheme: str, host: str, port: int | None) -> trio.abc.Stream:
    if scheme == "http":
        return await trio.open_tcp_stream(host, port or 80)
    if scheme != "https":
        raise ValueError(f"unknown scheme: {scheme}")
    encrypted = await trio.open_ssl_over_tcp_stream(
        host, port or 443, ssl_context=ssl.create_default_context(), https_compatible=True
    )
    try:
        await encrypted.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(encrypted)
        raise
    return encrypted


async def _ask(stream: trio.abc.Stream, method: str, target: str, headers: Headers, body: bytes) -> Upgraded:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
    out = http.send(h11.Request(method=method, target=target or "/", headers=list(headers))) or b""
    if body:
        out += http.send(h11.Data(data=body)) or b""
    await stream.send_all(out + (http.send(h11.EndOfMessage()) or b""))
    said = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            if len(said) > _HEAD_BYTES:  # one informational answer after the other
                raise UpgradeFailed(go_error(500, "net/http: server response headers exceeded limit"))
            data = bytes(await stream.receive_some(BUFFER))
            if not data:
                raise UpgradeFailed(go_error(500, "unexpected EOF"))
            said += data
            http.receive_data(data)
        elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            found = tuple((k.decode("ascii"), v.decode("latin-1")) for k, v in event.headers)
            return Upgraded(stream, bytes(said), len(said) - len(http.trailing_data[0]), found)
        elif isinstance(event, h11.Response):
            raise UpgradeFailed(await _refusal(http, stream, event))


async def _refusal(http: h11.Connection, stream: trio.abc.Stream, head: h11.Response) -> Response:
    """What the runtime answered instead; only errors are handed on."""
    if head.status_code < 400:
        return go_error(500, f"invalid upgrade response: status code {head.status_code}")
    body = bytearray()
    while len(body) < _ERROR_BODY_BYTES:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(BUFFER)))
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            break
    headers = [(k.decode("ascii"), v.decode("latin-1")) for k, v in head.headers.raw_items()]
    kept = tuple((k, v) for k, v in headers if k.lower() not in _HOP_BY_HOP)
    return Response(status=head.status_code, headers=kept, body=bytes(body))


async def pass_through(
    client: trio.abc.Stream,
    from_client: bytes,
    runtime: trio.abc.Stream,
    from_runtime: bytes,
    idle_seconds: float,
) -> None:
    """Copies both ways, beginning with what was read already, until one end closes or nothing moves for
    `idle_seconds` (0: for ever); then closes both.

    A client that closed only its sending side still gets what the runtime sends within seconds.
    """
    try:
        await _Exchange(client, runtime, idle_seconds or float("inf")).run(from_client, from_runtime)
        await say_goodbye(client)
    finally:
        await close_for_good(runtime)


class _Exchange:
    """Two streams and the moment until which nothing may move."""

    def __init__(self, client: trio.abc.Stream, runtime: trio.abc.Stream, idle_seconds: float) -> None:
        self._client = client
        self._runtime = runtime
        self._limit = idle_seconds
        self._scope = trio.CancelScope()

    async def run(self, from_client: bytes, from_runtime: bytes) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._upwards, from_client)
                try:
                    await self._copy(self._runtime, self._client, from_runtime)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                    log.v(4).info("Streaming connection ended", err=exc)
                nursery.cancel_scope.cancel()

    async def _upwards(self, first: bytes) -> None:
        try:
            await self._copy(self._client, self._runtime, first)
            self._limit = min(self._limit, _GOODBYE_SECONDS)
            self._moved()
            if isinstance(self._runtime, trio.SocketStream):
                await self._runtime.send_eof()
        except _SinkBroken:
            pass  # the runtime takes no more, but what it said before is still to be read
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._scope.cancel()

    async def _copy(self, source: trio.abc.Stream, sink: trio.abc.Stream, first: bytes) -> None:
        data: bytes | bytearray = first
        while True:
            if data:
                try:
                    await sink.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
                    raise _SinkBroken from exc
            self._moved()
            data = await source.receive_some(BUFFER)
            if not data:
                return

    def _moved(self) -> None:
        self._scope.deadline = trio.current_time() + self._limit


class _SinkBroken(trio.BrokenResourceError):
    """The stream that was written to, not the one that was read."""


async def say_goodbye(client: trio.abc.Stream) -> None:
    """Closes the client's connection so that it gets all that was sent to it.

    A socket that is closed while something lies unread in it is reset, and what the client had not read yet
    is lost: so first its last words are read.
    """
    with trio.move_on_after(_GOODBYE_SECONDS):
        try:
            if isinstance(client, trio.SocketStream):
                await client.send_eof()
                while await client.receive_some(BUFFER):
                    pass
            else:
                with trio.move_on_after(_QUIET_SECONDS):
                    while await client.receive_some(BUFFER):
                        pass
            await client.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
