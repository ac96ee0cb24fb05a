"""A small HTTP/1.1 server: h11 on Trio, bounded in everything a peer can stretch.

h11 rather than an ASGI server, because `exec`, `attach` and `port-forward` need the raw connection
after an Upgrade: a handler may answer with a `Hijack` and gets the stream with the bytes that came
behind the request. A connection is one task; its deadlines keep a slow peer from holding anything but
itself, and when too many connections are open, further ones wait in the kernel's queue.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

import h11
import msgspec
import trio

from trio_kubelet.log import get_logger

log = get_logger(__name__)

Headers = Sequence[tuple[str, str]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a server: bytes, seconds, connections."""

    header_bytes: int = 64 * 1024
    body_bytes: int = 1024 * 1024
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0  # for each piece that is sent
    idle_seconds: float = 90.0  # between two requests of one connection
    connections: int = 256


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, its body read: `path` is decoded, `target` as sent, `params` come from the route."""

    method: str
    path: str
    target: str
    query: dict[str, list[str]]
    headers: tuple[tuple[str, str], ...]  # names in lower case
    body: bytes = b""
    peer: str = ""
    peer_certificate: bytes | None = None  # DER, verified
    params: dict[str, str] = {}

    def header(self, name: str) -> str | None:
        """The first header of that (lower-case) name."""
        return next((value for key, value in self.headers if key == name), None)

    def first(self, name: str, default: str = "") -> str:
        """The first query parameter of that name."""
        return self.query.get(name, [default])[0]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; a body that is an iterator is sent in chunks as it comes."""

    status: int = 200
    headers: Headers = ()
    body: bytes | AsyncIterator[bytes] = b""


class Hijack(NamedTuple):
    """The handler takes the connection over: it gets the stream and what was already read from it."""

    take: Callable[[trio.abc.Stream, bytes], Awaitable[None]]


Handler = Callable[[Request], Awaitable[Response | Hijack]]


class _BadRequest(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def text(status: int, body: str, headers: Headers = ()) -> Response:
    """A plain-text answer, as Go's `http.Error` makes it."""
    kind = ("Content-Type", "text/plain; charset=utf-8")
    return Response(status=status, headers=(kind, *headers), body=body.encode())


def json_body(body: bytes, status: int = 200) -> Response:
    """A JSON answer that is encoded already."""
    return Response(status=status, headers=(("Content-Type", "application/json"),), body=body)


def parse_target(target: str) -> tuple[str, dict[str, list[str]]]:
    """Path (decoded) and query of a request target."""
    path, _, query = target.partition("?")
    return unquote(path), parse_qs(query, keep_blank_values=True)


async def serve(
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    handler: Handler,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; closes the listeners."""
    slots = trio.Semaphore(limits.connections)

    async def accept(listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        async with listener:
            while True:
                await slots.acquire()
                try:
                    stream = await listener.accept()
                except OSError as exc:  # out of file descriptors: wait rather than die
                    slots.release()
                    log.error("Cannot accept a connection", err=exc)
                    await trio.sleep(0.1)
                    continue
                nursery.start_soon(one, stream)

    async def one(stream: trio.abc.Stream) -> None:
        try:
            await _Connection(stream, handler, limits).run()
        finally:
            slots.release()

    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(accept, listener)
        task_status.started()


class _Connection:
    """One connection: request after request, until one side wants no more."""

    def __init__(self, stream: trio.abc.Stream, handler: Handler, limits: Limits) -> None:
        self._stream = stream
        self._handler = handler
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._peer = _peer_of(stream)

    async def run(self) -> None:
        try:
            with trio.move_on_after(self._limits.header_seconds):
                if isinstance(self._stream, trio.SSLStream):
                    await self._stream.do_handshake()
            wait = self._limits.header_seconds
            while await self._one_request(wait):
                self._http.start_next_cycle()
                wait = self._limits.idle_seconds
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as exc:
            log.v(4).info("Connection ended", peer=self._peer, err=exc)
        except h11.LocalProtocolError as exc:
            log.error("Answer could not be sent", peer=self._peer, err=exc)
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _one_request(self, wait: float) -> bool:
        """Serves one request; whether another one may follow on this connection."""
        try:
            request = await self._read_request(wait)
        except h11.RemoteProtocolError as exc:
            request = _BadRequest(exc.error_status_hint, str(exc))
        except _BadRequest as exc:
            request = exc
        if request is None:
            return False
        if isinstance(request, _BadRequest):
            await self._refuse(request)
            return False
        answer = await self._handler(request)
        if isinstance(answer, Hijack):
            await answer.take(self._stream, self._http.trailing_data[0])
            return False
        await self._send(answer, request.method == "HEAD")
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _refuse(self, error: _BadRequest) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(text(error.status, f"{error}\n", (("Connection", "close"),)), False)

    async def _read_request(self, wait: float) -> Request | _BadRequest | None:
        with trio.move_on_after(wait) as scope:
            head = await self._next_event()
        if scope.cancelled_caught or not isinstance(head, h11.Request):
            return None
        body = bytearray()
        with trio.fail_after(self._limits.body_seconds):
            while True:
                event = await self._next_event()
                if isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > self._limits.body_bytes:
                        return _BadRequest(413, "request body too large")
                elif isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
                    break
                else:
                    return None
        try:
            target = head.target.decode("ascii")
            path, query = parse_target(target)
        except UnicodeDecodeError:
            return _BadRequest(400, "malformed request target")
        return Request(
            method=head.method.decode("ascii"),
            path=path,
            target=target,
            query=query,
            headers=tuple((k.decode("ascii"), v.decode("latin-1")) for k, v in head.headers),
            body=bytes(body),
            peer=self._peer,
            peer_certificate=_certificate_of(self._stream),
        )

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._write(self._http.send(go_on))
            self._http.receive_data(bytes(await self._stream.receive_some(64 * 1024)))

    async def _send(self, response: Response, head_only: bool) -> None:
        headers = list(response.headers)
        if isinstance(response.body, bytes):
            headers.append(("Content-Length", str(len(response.body))))
        head = self._http.send(h11.Response(status_code=response.status, headers=headers))
        if isinstance(response.body, bytes):
            body = b"" if head_only else self._http.send(h11.Data(data=response.body))
            await self._write(head + body + self._http.send(h11.EndOfMessage()))
            return
        await self._write(head)
        try:
            async for piece in response.body:
                if piece:
                    await self._write(self._http.send(h11.Data(data=piece)))
        finally:  # a reader who left must not leave the generator hanging
            if isinstance(response.body, AsyncGenerator):
                await response.body.aclose()
        await self._write(self._http.send(h11.EndOfMessage()))

    async def _write(self, data: bytes | None) -> None:
        if data:
            with trio.fail_after(self._limits.write_seconds):
                await self._stream.send_all(data)


def _peer_of(stream: trio.abc.Stream) -> str:
    inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if isinstance(inner, trio.SocketStream):
        try:
            name = inner.socket.getpeername()
        except OSError:
            return ""
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
    return ""


def _certificate_of(stream: trio.abc.Stream) -> bytes | None:
    if isinstance(stream, trio.SSLStream):
        certificate: bytes | None = stream.getpeercert(binary_form=True)
        return certificate
    return None
