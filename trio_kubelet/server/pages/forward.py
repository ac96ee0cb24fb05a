"""A loopback port for a browser, which cannot open the agent's socket: `trio-kubelet page` and `standalone`.

Any user of the machine can connect to a port, so what is asked for has to begin with the token of the
printed address. There is no cookie: a browser sends those of one port to all others of this machine too, such
as that of a pod that is forwarded. Below the token is the page, and nothing else of what the agent's socket
has, such as commands in containers; each request is judged, one on a connection.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import h11
import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.server.http.connections import Crowd, Place
from trio_kubelet.server.pages.node_page import ROOT
from trio_kubelet.server.streams.upgrade import pass_through, say_goodbye

log = get_logger(__name__)

_HOST: Final = "127.0.0.1"
_HEAD_BYTES: Final = 32 * 1024
_HEAD_SECONDS: Final = 10.0
_CONNECTIONS: Final = 128


class GateAnswer(NamedTuple):
    """What is answered instead of the agent."""

    status: str
    headers: tuple[str, ...] = ()
    body: str = ""


class TokenGate:
    """Who may pass the port of this number: who knows the token."""

    def __init__(self, port: int, token: str) -> None:
        self._token = token
        self._hosts = {f"{_HOST}:{port}", f"localhost:{port}"}

    def judge(self, target: str, host: str) -> str | GateAnswer:
        """What the agent is to be asked for, or what is answered in its place. Pure."""
        if host.lower() not in self._hosts:  # a foreign name that was made to point here
            return GateAnswer("403 Forbidden", body="Ask for it by the address that was printed.\n")
        token, slash, below = target.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return GateAnswer("403 Forbidden", body="Open the address that was printed, with its token.\n")
        if not slash:
            return GateAnswer("302 Found", (f"Location: /{token}/",))
        return ROOT + below


@asynccontextmanager
async def page_port(socket_path: str, port: int = 0) -> AsyncIterator[str]:
    """Serves a loopback port for the length of the block; the address to be printed. Raises OSError."""
    listeners = await trio.open_tcp_listeners(port, host=_HOST)
    number = listeners[0].socket.getsockname()[1]
    token = secrets.token_urlsafe(16)
    door = _Door(TokenGate(number, token), socket_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, door.serve, listeners)
        yield f"http://{_HOST}:{number}/{token}/"
        nursery.cancel_scope.cancel()


class _Door:
    """The connections of a port. Those that have not said yet what they want make room for new ones."""

    def __init__(self, gate: TokenGate, socket_path: str) -> None:
        self._gate = gate
        self._socket_path = socket_path
        self._crowd = Crowd(_CONNECTIONS, _CONNECTIONS)

    async def serve(self, client: trio.SocketStream) -> None:
        """One connection and its request."""
        place = await self._crowd.enter(_HOST)
        if place is None:
            return
        try:
            with place.scope:
                await self._serve(client, place)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as group:
            log.v(4).info("A connection to the page ended", err=group)
        except* Exception as group:  # it ends this connection; the others are served
            log.error("Connection failed", err=group)
        finally:
            self._crowd.leave(place)

    async def _serve(self, client: trio.SocketStream, place: Place) -> None:
        with place.waiting(), trio.fail_after(_HEAD_SECONDS):
            said, head = await _read_head(client)
        if head is None:
            return
        names = {name: value.decode("latin-1") for name, value in head.headers}
        target = self._gate.judge(head.target.decode("ascii", "replace"), names.get(b"host", ""))
        if isinstance(target, GateAnswer):
            await _refuse(client, target)
            return
        try:
            agent = await trio.open_unix_socket(self._socket_path)
        except OSError:
            await _refuse(client, GateAnswer("502 Bad Gateway", body="The agent does not answer.\n"))
            return
        inner = target.encode()
        first = said.replace(head.target, inner, 1) if b"upgrade" in names else _alone(head, inner)
        await pass_through(client, first, agent, b"", 0)


def _alone(head: h11.Request, target: bytes) -> bytes:
    """What the page asks for, of which its target tells all; the agent takes no other request after it."""
    host = next(value for name, value in head.headers if name == b"host")
    return b"%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (head.method, target, host)


async def _read_head(client: trio.SocketStream) -> tuple[bytes, h11.Request | None]:
    """What the client sent, with the head of its first request in it; None when that is none."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
    said = b""
    while True:
        try:
            event = http.next_event()
        except h11.RemoteProtocolError:
            return said, None
        if isinstance(event, h11.Request):
            return said, event
        if event is not h11.NEED_DATA:
            return said, None
        data = bytes(await client.receive_some(_HEAD_BYTES))
        said += data
        http.receive_data(data)


async def _refuse(client: trio.SocketStream, answer: GateAnswer) -> None:
    body = answer.body.encode()
    lines = [
        f"HTTP/1.1 {answer.status}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *answer.headers,
    ]
    await client.send_all("\r\n".join([*lines, "", ""]).encode() + body)
    await say_goodbye(client)
