"""A small HTTP/1.1 server: h11 on Trio, bounded in everything a peer can stretch.

h11 rather than an ASGI server, because `exec`, `attach` and `port-forward` need the raw connection
after an Upgrade: a handler may answer with a `Hijack` and gets the stream with the bytes that came
behind the request. A connection is one task; its deadlines keep a slow peer from holding anything but
itself, and which of too many connections has to go is decided in `connections`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from ipaddress import ip_address
from typing import NamedTuple

import h11
import msgspec
import trio

from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.http_syntax import HOST, NOT_IN_VALUES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.tls import close_for_good
from trio_kubelet.server.doors import ClosableBody
from trio_kubelet.server.http.connections import Crowd, Place
from trio_kubelet.server.http.handshakes import HandshakePace, Pacemaker, shake_hands
from trio_kubelet.server.http.messages import (
    REASONS,
    Handler,
    Hijack,
    Request,
    Response,
    parse_target,
    text,
)

log = get_logger(__name__)

# How connections end that have nothing wrong but their peer.
_ENDS = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)

_TARGET = re.compile(rb"\*|/.*|https?://.*", re.DOTALL)
_NO_VALUE = re.compile(NOT_IN_VALUES.encode())
_HOST = re.compile(HOST.encode())

PIECE = 64 * 1024  # what is received or sent at once
LINGER_SECONDS = 2.0  # for an answer whose client has stopped sending, and for a refused client to read why


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a server: bytes, seconds, connections."""

    header_bytes: int = 64 * 1024
    headers: int = 128  # a parsed one takes a hundred bytes, however few it has
    body_bytes: int = 1024 * 1024
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0  # for each piece that is sent
    idle_seconds: float = 90.0  # between two requests of one connection
    connections: int = 256
    connections_per_peer: int = 1 << 30
    handshakes: HandshakePace = HandshakePace()


Failed = Callable[[], None]
"""Told of each request or connection that ended with an error nobody expected."""


def nobody() -> None:
    """Nobody is told."""


class _BadRequest(NamedTuple):
    status: int
    reason: str


async def listen(host: str, port: int, backlog: int | None = None) -> list[trio.SocketListener]:
    """Listens on an address. One that stands for all (0.0.0.0 or ::) does so for both families, as in Go: a
    node whose `address` is the default one is reached by its IPv6 address, too. Raises OSError.
    """
    everywhere = ip_address(host).is_unspecified
    return await trio.open_tcp_listeners(port, host=None if everywhere else host, backlog=backlog)


async def serve(
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    handler: Handler,
    limits: ServerLimits = ServerLimits(),  # noqa: B008 - frozen
    crowd: Crowd | None = None,
    failed: Failed = nobody,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; closes the listeners. `crowd` is for those who want to see the connections.

    The wall of a connection stands here: whatever its handler or stream raises ends that connection alone.
    """
    if crowd is None:
        crowd = Crowd(limits.connections, limits.connections_per_peer)
    pacemaker = Pacemaker(limits.handshakes)

    async def accept(listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as exc:  # out of file descriptors: wait rather than die
                    log.error("Cannot accept a connection", err=exc)
                    await trio.sleep(0.1)
                    continue
                try:
                    place = await crowd.enter(_host_of(_peer_of(stream)))
                except trio.Cancelled:
                    await trio.aclose_forcefully(stream)
                    raise
                if place is None:
                    await trio.aclose_forcefully(stream)
                    continue
                nursery.start_soon(one, stream, place)

    async def one(stream: trio.abc.Stream, place: Place) -> None:
        try:
            with place.scope:
                if await shake_hands(stream, place, pacemaker, limits.header_seconds):
                    await _Connection(stream, handler, limits, place, failed).run()
        except* Exception as group:  # also out of nurseries; a Cancelled beside it goes on
            wrong = next((exc for exc in leaves(group) if not isinstance(exc, _ENDS)), None)
            if wrong is None:
                log.v(4).info("Connection ended", peer=place.peer, err=group)
            else:
                log.error("Connection failed", peer=place.peer, err=wrong)
                failed()
            del wrong  # it refers to this frame
        finally:
            await close_for_good(stream)
            crowd.leave(place)

    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(accept, listener)
        task_status.started()


class _Connection:
    """One connection: request after request, until one side wants no more."""

    def __init__(
        self, stream: trio.abc.Stream, handler: Handler, limits: ServerLimits, place: Place, failed: Failed
    ) -> None:
        self._failed = failed
        self._stream = stream
        self._handler = handler
        self._limits = limits
        self._place = place
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._peer = _peer_of(stream)
        self._ahead = bytearray()  # received while a request was being answered

    async def run(self) -> None:
        """Raises what an answer or a stream raises."""
        wait = self._limits.header_seconds
        while await self._one_request(wait):
            self._http.start_next_cycle()
            wait = self._limits.idle_seconds

    async def _one_request(self, wait: float) -> bool:
        """Serves one request; whether another one may follow on this connection."""
        try:
            with self._place.waiting():
                request = await self._read_request(wait)
        except h11.RemoteProtocolError as exc:
            request = _BadRequest(exc.error_status_hint, str(exc))
        if request is None:
            return False
        if isinstance(request, _BadRequest):
            await self._refuse(request)
            return False
        answer = await self._exchange(request)
        if isinstance(answer, Hijack):
            already = self._http.trailing_data[0] + bytes(self._ahead)
            await answer.take(self._stream, already)
            return False
        return answer and self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _exchange(self, request: Request) -> Hijack | bool:
        """Answers a request and ends early when its client leaves; whether it was answered."""
        hijack: list[Hijack] = []
        failure: list[Exception] = []
        done = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_client, nursery.cancel_scope)
                try:
                    answer = await self._handle(request)
                    if isinstance(answer, Hijack):
                        hijack.append(answer)
                    else:
                        await self._send(answer, request.method == "HEAD", request.http_version)
                    done = True
                except Exception as exc:  # carried out of the nursery, which would wrap it
                    failure.append(exc)
                nursery.cancel_scope.cancel()
        except BaseException:
            with trio.CancelScope() as scope:
                scope.cancel()
                for given_up in hijack:  # it only lets go of what it holds
                    await given_up.take(self._stream, b"")
            raise
        if failure:
            try:
                raise failure[0]
            finally:
                failure.clear()  # it refers to this frame, and so to the connection
        return hijack[0] if hijack else done

    async def _handle(self, request: Request) -> Response | Hijack:
        try:
            return await self._handler(request)
        except Exception as exc:  # one request's failure must not end the server
            log.error("Request failed", method=request.method, path=request.path, err=exc)
            self._failed()
            return text(500, "Internal Server Error\n")

    async def _watch_client(self, scope: trio.CancelScope) -> None:
        """Cancels the answer when the client has left; keeps what it sends ahead of time."""
        try:
            while len(self._ahead) < PIECE:
                data = await self._stream.receive_some(PIECE)
                if not data:  # it may have closed just its own direction
                    await trio.sleep(LINGER_SECONDS)
                    break
                self._ahead += data
            else:
                return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    async def _refuse(self, error: _BadRequest) -> None:
        """Tells what was wrong and closes, as Go's server does."""
        log.v(4).info("Malformed request", peer=self._peer, reason=error.reason)
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        said = f"{error.status} {REASONS.get(error.status, 'Bad Request')}"
        await self._send(text(error.status, said, (("Connection", "close"),)), False)
        # Closing with bytes unread would reset the connection and take the answer away from the client.
        with trio.move_on_after(LINGER_SECONDS), self._place.waiting():
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            dropped = 0
            while dropped < 16 * PIECE and (data := await self._stream.receive_some(PIECE)):
                dropped += len(data)

    async def _read_request(self, wait: float) -> Request | _BadRequest | None:
        with trio.move_on_after(wait) as scope:
            head = await self._next_event()
        if scope.cancelled_caught or not isinstance(head, h11.Request):
            return None
        if len(head.headers) > self._limits.headers:  # before a body, for which they would be kept
            return _BadRequest(431, "too many headers")
        if (refusal := _refusal(head)) is not None:
            return refusal
        body = bytearray()
        with trio.fail_after(self._limits.body_seconds):
            while True:
                event = await self._next_event()
                if isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > self._limits.body_bytes:
                        return _BadRequest(413, "request body too large")
                    await trio.lowlevel.checkpoint()  # one piece may hold thousands of the smallest chunks
                elif isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
                    break
                else:
                    return None
        return self._request_of(head, bytes(body))

    def _request_of(self, head: h11.Request, body: bytes) -> Request | _BadRequest:
        try:
            target = head.target.decode("ascii")
            path, query = parse_target(target)
        except ValueError as exc:
            return _BadRequest(400, f"malformed request target: {exc}")
        return Request(
            method=head.method.decode("ascii"),
            path=path,
            target=target,
            query=query,
            headers=tuple((k.decode("ascii"), v.decode("latin-1")) for k, v in head.headers),
            body=body,
            peer=self._peer,
            peer_certificate=_certificate_of(self._stream),
            http_version=head.http_version.decode("ascii"),
        )

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                await self._write(self._http.send(go_on))
            if self._ahead:
                self._http.receive_data(bytes(self._ahead))
                self._ahead.clear()
            else:
                self._http.receive_data(bytes(await self._stream.receive_some(PIECE)))

    async def _send(self, response: Response, head_only: bool, version: str = "1.1") -> None:
        headers = [("Date", formatdate(usegmt=True)), *response.headers]
        if self._place.retired:
            headers.append(("Connection", "close"))
        # What was not modified has the length that the client knows, and no other.
        if isinstance(response.body, bytes) and response.status != HTTPStatus.NOT_MODIFIED:
            headers.append(("Content-Length", str(len(response.body))))
        reason = REASONS.get(response.status, "").encode()
        status = h11.Response(status_code=response.status, headers=headers, reason=reason)
        head = self._http.send(status) or b""
        if version == "1.0":  # h11 says another one
            head = head.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        if isinstance(response.body, bytes):
            body = b"" if head_only else response.body
            first = len(head) + len(body) <= PIECE  # one segment for what is small
            await self._write(head if not first else head + (self._http.send(h11.Data(data=body)) or b""))
            for start in range(0, 0 if first else len(body), PIECE):
                await self._write(self._http.send(h11.Data(data=body[start : start + PIECE])))
        else:
            await self._send_pieces(head, response.body, head_only)
        await self._write(self._http.send(h11.EndOfMessage()))

    async def _send_pieces(self, head: bytes, body: AsyncIterator[bytes], head_only: bool) -> None:
        try:
            await self._write(head)
            if not head_only:
                async for piece in body:
                    if piece:
                        await self._write(self._http.send(h11.Data(data=piece)))
        finally:  # a reader who left must not leave the generator hanging
            if isinstance(body, AsyncGenerator | ClosableBody):
                await body.aclose()

    async def _write(self, data: bytes | None) -> None:
        if data:
            with trio.fail_after(self._limits.write_seconds):
                await self._stream.send_all(data)


def _refusal(head: h11.Request) -> _BadRequest | None:
    """What is wrong with a request that h11 has nothing against, as Go's server finds it."""
    if not head.http_version.startswith(b"1."):
        return _BadRequest(505, "unsupported protocol version")
    if head.method == b"CONNECT":  # for h11 a tunnel begins where that is answered as other methods are
        return _BadRequest(405, "this is no proxy")
    if not _TARGET.fullmatch(head.target):
        return _BadRequest(400, "malformed request target")
    for name, value in head.headers:
        if _NO_VALUE.search(value):
            return _BadRequest(400, "invalid header value")
        if name == b"host" and not _HOST.fullmatch(value):
            return _BadRequest(400, "malformed Host header")
        if name == b"expect" and value and b"100-continue" not in value.lower():
            return _BadRequest(417, "nothing else can be expected than 100-continue")
    return None


def _peer_of(stream: trio.abc.Stream) -> str:
    inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if isinstance(inner, trio.SocketStream):
        try:
            name = inner.socket.getpeername()
        except OSError:
            return ""
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
    return ""


def _host_of(peer: str) -> str:
    return peer.rpartition(":")[0]


def _certificate_of(stream: trio.abc.Stream) -> bytes | None:
    if isinstance(stream, trio.SSLStream):
        certificate: bytes | None = stream.getpeercert(binary_form=True)
        return certificate
    return None
