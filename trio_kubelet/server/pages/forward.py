"""A loopback port for a browser, which cannot open the agent's socket: `trio-kubelet page` and `standalone`.

Any user of the machine can connect to a port, so the first request needs the token in the printed address;
it is answered with a cookie that opens the page, and nothing else of what the agent's socket has, such as
commands in containers: a browser sends the cookie also for what it was shown by another port of this machine,
as that of a pod that is forwarded. So each request is judged, one on a connection.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple

import h11
import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.server.http.connections import Crowd, Place
from trio_kubelet.server.http.messages import parse_target
from trio_kubelet.server.pages.node_page import ROOT
from trio_kubelet.server.streams.upgrade import pass_through, say_goodbye

log = get_logger(__name__)

_HOST: Final = "127.0.0.1"
_HEAD_BYTES: Final = 32 * 1024
_HEAD_SECONDS: Final = 10.0
_CONNECTIONS: Final = 128


class Pass(NamedTuple):
    """What is answered to a request: "" and nothing when the agent answers."""

    status: str = ""
    headers: tuple[str, ...] = ()
    body: str = ""


class TokenGate:
    """Who may pass. `port` is the one it is for; cookies know no ports, so its number is in their name."""

    def __init__(self, port: int, token: str) -> None:
        self._token = token
        self._cookie = f"trio-kubelet-page-{port}"
        self._hosts = {f"{_HOST}:{port}", f"localhost:{port}"}

    def judge(self, target: str, host: str, cookie: str) -> Pass:
        """Decides about a request. Pure."""
        if host.lower() not in self._hosts:  # a foreign name that was made to point here
            return Pass("403 Forbidden", body="Ask for it by the address that was printed.\n")
        if hmac.compare_digest(self._shown(cookie).encode(), self._token.encode()):
            if target.startswith(ROOT):
                return Pass()
            if target.partition("?")[0] in ("/", ROOT.rstrip("/")):
                return Pass("302 Found", (f"Location: {ROOT}",))
            return Pass("404 Not Found", body=f"There is nothing but {ROOT} here.\n")
        try:
            path, query = parse_target(target)
        except ValueError:
            return Pass("400 Bad Request", body="A malformed address.\n")
        given = query.get("token", [""])[0]
        if path == "/" and hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            kept = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Lax"
            return Pass("302 Found", (f"Location: {ROOT}", f"Set-Cookie: {kept}"))
        return Pass("403 Forbidden", body="Open the address that was printed, with its token.\n")

    def _shown(self, cookie: str) -> str:
        try:
            found = SimpleCookie(cookie).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found is not None else ""


@asynccontextmanager
async def page_port(socket_path: str, port: int = 0) -> AsyncIterator[str]:
    """Serves a loopback port for the length of the block; the address to be printed. Raises OSError."""
    listeners = await trio.open_tcp_listeners(port, host=_HOST)
    number = listeners[0].socket.getsockname()[1]
    token = secrets.token_urlsafe(16)
    door = _Door(TokenGate(number, token), socket_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, door.serve, listeners)
        yield f"http://{_HOST}:{number}/?token={token}"
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
        verdict = self._gate.judge(
            head.target.decode("ascii", "replace"), names.get(b"host", ""), names.get(b"cookie", "")
        )
        if verdict.status:
            await client.send_all(_answer(verdict))
            await say_goodbye(client)
            return
        try:
            agent = await trio.open_unix_socket(self._socket_path)
        except OSError:
            await client.send_all(_answer(Pass("502 Bad Gateway", body="The agent does not answer.\n")))
            await say_goodbye(client)
            return
        await pass_through(client, said if b"upgrade" in names else _alone(head), agent, b"", 0)


def _alone(head: h11.Request) -> bytes:
    """What the page asks for, of which its target tells all; the agent takes no other request after it."""
    host = next(value for name, value in head.headers if name == b"host")
    return b"%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (head.method, head.target, host)


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


def _answer(verdict: Pass) -> bytes:
    body = verdict.body.encode()
    lines = [
        f"HTTP/1.1 {verdict.status}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *verdict.headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
