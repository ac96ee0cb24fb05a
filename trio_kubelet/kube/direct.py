"""Requests to one server by the shortest way: h11 on sockets.

A pod's start makes six requests, and two more for each claim. Through httpx and httpcore one costs three
times as much CPU as here (`bench/bench_requests.py`): objects, locks, turns of the event loop. A connection
carries one request at a time. Idle ones form a stack: the one that was used last is used next.

A request that is cancelled, or goes wrong, closes its connection. Errors are httpx's, so that they are told
like those of requests that go through a proxy (`transport`).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterable, Mapping
from typing import Final

import h11
import httpx
import trio

from trio_kubelet.common.bare_socket import BareSocket
from trio_kubelet.common.http_syntax import MAX_INFORMATIONAL
from trio_kubelet.kube.answer_bodies import WholeBody
from trio_kubelet.kube.doors import WholeAnswer

_FIRST_CHUNK: Final = 1 << 14
_CHUNK: Final = 1 << 18
_MAX_HEAD: Final = 1 << 16
_TURN: Final = 1 << 18
"""Bytes of an answer after which others have their turn, however fast more of it comes."""
_PARTS: Final = 256
"""The same in parts (chunks of the body), which may be of a few bytes."""


class _Connection(BareSocket):
    """A connection to the server, and where its exchange stands."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        self.idle_since = 0.0

    def is_quiet(self) -> bool:
        """Whether the peer has neither closed it nor said anything that nobody asked for."""
        try:
            self.sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    async def shake_hands(self, tls: ssl.SSLContext, name: str) -> None:
        """TLS from now on. Raises OSError."""
        secure = tls.wrap_socket(self.sock, server_hostname=name, do_handshake_on_connect=False)
        self.sock = secure
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(secure)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(secure)
            else:
                return


class DirectRequests:
    """Implements `HTTPRequests`, for any number of requests at a time. `kept` connections stay when they are
    idle, each for `expiry` seconds; connecting takes at most `patience`.
    """

    def __init__(
        self,
        server: httpx.URL,
        tls: ssl.SSLContext | None,
        server_name: str,
        *,
        kept: int,
        expiry: float,
        patience: float,
        socket_options: Iterable[tuple[int, int, int]],
    ) -> None:
        """`server_name` is asked for in TLS instead of the host, if there is one."""
        self._host = server.raw_host.decode("ascii")
        self._authority = server.netloc.decode("ascii")
        self._port = server.port or (443 if server.scheme == "https" else 80)
        self._tls = tls if server.scheme == "https" else None
        self._server_name = server_name or self._host
        self._kept = kept
        self._expiry = expiry
        self._patience = patience
        self._socket_options = tuple(socket_options)
        self._idle: list[_Connection] = []  # the longest idle one first

    async def aclose(self) -> None:
        """Closes idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, longest: int
    ) -> WholeAnswer:
        """See `HTTPRequests`."""
        request = self._request(method, target, headers, body)
        connection = self._quiet_one() or await self._connected()
        try:
            answer = await _exchange(connection, request, body, longest)
        except BaseException:
            connection.close()
            raise
        if _is_over(connection.http):
            connection.http.start_next_cycle()
            self._give_back(connection)
        else:
            connection.close()
        return answer

    def _request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> h11.Request:
        every = [("Host", self._authority), *headers.items()]
        if body is not None:
            every.append(("Content-Length", str(len(body))))
        try:
            return h11.Request(
                method=method,
                target=_bytes(target),
                headers=[(_bytes(name), _bytes(value)) for name, value in every],
            )
        except h11.LocalProtocolError as exc:
            raise httpx.LocalProtocolError(str(exc)) from exc

    def _give_back(self, connection: _Connection) -> None:
        now = connection.idle_since = trio.current_time()
        self._idle.append(connection)
        while len(self._idle) > self._kept or self._idle[0].idle_since < now - self._expiry:
            self._idle.pop(0).close()

    def _quiet_one(self) -> _Connection | None:
        oldest = trio.current_time() - self._expiry
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _connected(self) -> _Connection:
        """Raises httpx.ConnectTimeout, httpx.ConnectError."""
        try:
            with trio.fail_after(self._patience):
                stream = await trio.open_tcp_stream(self._host, self._port)
                connection = _Connection(socket.socket(fileno=stream.socket.detach()))
                try:
                    connection.sock.setblocking(False)
                    for option in self._socket_options:
                        connection.sock.setsockopt(*option)
                    if self._tls is not None:
                        await connection.shake_hands(self._tls, self._server_name)
                except BaseException:
                    connection.close()
                    raise
                return connection
        except trio.TooSlowError as exc:
            raise httpx.ConnectTimeout(str(exc)) from exc
        except (OSError, ValueError) as exc:  # a host may be no name
            raise httpx.ConnectError(str(exc)) from exc


async def _exchange(
    connection: _Connection, request: h11.Request, sent: bytes | None, longest: int
) -> WholeAnswer:
    """Raises httpx.TransportError, BodyError."""
    http, events = connection.http, [request, *([h11.Data(data=sent)] if sent else ()), h11.EndOfMessage()]
    with contextlib.suppress(OSError):  # who closes early may have answered all the same
        await connection.send(b"".join([http.send(event) or b"" for event in events]))
    status, headers, body, most, taken, parts, informational = 0, {}, None, _FIRST_CHUNK, 0, 0, 0
    try:
        while type(event := http.next_event()) is not h11.EndOfMessage:
            parts += 1
            if not parts % _PARTS:
                await trio.lowlevel.checkpoint()
            if event is h11.NEED_DATA:
                try:
                    data = await connection.receive(most)
                except OSError as exc:
                    raise httpx.ReadError(str(exc)) from exc
                if not data and http.their_state is h11.SEND_RESPONSE:  # no word of an answer has come
                    raise httpx.RemoteProtocolError("server disconnected")
                if len(data) == most:
                    most = _CHUNK
                taken += len(data)
                if taken >= _TURN:
                    taken = 0
                    await trio.lowlevel.checkpoint()
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                status, headers = event.status_code, _headers(event)
                body = WholeBody(headers.get("content-encoding", ""), longest, gzip=True)
            elif isinstance(event, h11.Data) and body is not None:
                await body.add(event.data)
            elif isinstance(event, h11.InformationalResponse):
                informational += 1
                if informational > MAX_INFORMATIONAL:
                    raise httpx.RemoteProtocolError("too many 1xx informational responses")
            else:
                raise httpx.RemoteProtocolError("server disconnected")
    except h11.RemoteProtocolError as exc:
        raise httpx.RemoteProtocolError(str(exc)) from exc
    assert body is not None, "an answer has a head"
    return WholeAnswer(status, headers, body.whole())


def _bytes(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _headers(answer: h11.Response) -> dict[str, str]:
    """By their names in lower case."""
    found: dict[str, str] = {}
    for name, value in answer.headers:
        key, text = name.decode("ascii"), value.decode("utf-8", "replace")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _is_over(http: h11.Connection) -> bool:
    """Whether request and answer are done, nothing came behind them, and another request may follow."""
    return http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]
