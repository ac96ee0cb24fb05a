"""`/page/`: the page of the node, its files and the WebSocket behind it.

It is served where everything else is: behind the guard of the main port and on the agent's own socket. A
browser adds credentials (a client certificate, a cookie) to whatever asks it to, so a foreign site could
open the WebSocket in a user's name. Such a request is known by its Origin. Where a proxy changes the Host,
as `kubectl proxy` does, the page shows a word instead that it was given with its own files, which no
foreign site can read.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.nodepage.feed import Feed
from trio_kubelet.nodepage.session import BadMessage, Session
from trio_kubelet.server.http.messages import Hijack, Request, Response, not_found, text
from trio_kubelet.server.streams.upgrade import is_websocket

log = get_logger(__name__)

ROOT: Final = "/page/"
READERS: Final = 64
LONGEST_MESSAGE: Final = 32 * 1024

_FILES: Final = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
}
_HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


class NodePage:
    """The handler of `/page/` and what is below it."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._word = secrets.token_urlsafe(16)
        self._readers = 0

    async def answer(self, request: Request) -> Response | Hijack:
        """One request."""
        name = request.path.removeprefix(ROOT)
        if request.method not in ("GET", "HEAD"):
            return text(405, "Method Not Allowed\n", (("Allow", "GET, HEAD"),))
        if name == "live" or name.startswith("live/"):
            return self._live(request)
        if name == "word":
            if self._readers >= READERS:  # a page is not told how its WebSocket was refused
                return text(503, "It has too many readers.\n", (("Retry-After", "10"),))
            told = (("Content-Type", "text/plain"), ("Page-Edition", _edition()))
            return Response(headers=(*told, *_HEADERS), body=self._word.encode())
        found = _files().get(name)
        if found is None:
            return not_found()
        body, kind = found
        return Response(headers=(("Content-Type", kind), *_HEADERS), body=body)

    def _live(self, request: Request) -> Response | Hijack:
        key = request.header("sec-websocket-key")
        if not is_websocket(request) or not key or request.header("sec-websocket-version") != "13":
            return text(426, "This is for WebSockets.\n", (("Upgrade", "websocket"),))
        if not self._is_own(request):
            log.info(
                "Refused a WebSocket of a foreign page", origin=request.header("origin"), peer=request.peer
            )
            return text(403, "Not from this page.\n")
        if self._readers >= READERS:
            return text(503, "Too many readers.\n", (("Retry-After", "10"),))

        async def take(stream: trio.abc.Stream, already_read: bytes) -> None:
            self._readers += 1
            try:
                await self._serve(stream, already_read, key)
            finally:
                self._readers -= 1
                with trio.move_on_after(1):
                    await stream.aclose()

        return Hijack(take)

    def _is_own(self, request: Request) -> bool:
        """Whether it comes from the page itself, or from no browser at all."""
        origin = request.header("origin")
        if origin is None or same_place(origin, request.header("host") or ""):
            return True
        # In the path, for the API server's proxy drops the query of a request that upgrades.
        word = request.path.removeprefix(f"{ROOT}live/")
        return hmac.compare_digest(word.encode("utf-8", "replace"), self._word.encode())

    async def _serve(self, stream: trio.abc.Stream, already_read: bytes, key: str) -> None:
        # The library for it is for readers alone.
        from trio_kubelet.server.streams.websocket import WebSocket, WebSocketError, switch_head

        await stream.send_all(switch_head(key, ""))
        socket = WebSocket(stream, already_read, LONGEST_MESSAGE)
        try:
            await Session(self._feed, socket.send, socket.receive).run()
        except* (BadMessage, WebSocketError) as group:
            log.v(2).info("A reader of the page broke a rule", err=group.exceptions[0])
            with trio.move_on_after(1):
                await socket.close()


def same_place(origin: str, host: str) -> bool:
    """Whether an Origin is that of the host asked. Pure."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


@cache
def _edition() -> str:
    """Of the page's files: a page that was loaded from another agent knows by it that it is of another."""
    return sha256(b"".join(body for body, _ in _files().values())).hexdigest()[:16]


@cache
def _files() -> Mapping[str, tuple[bytes, str]]:
    place = files("trio_kubelet.nodepage") / "static"
    return {path: ((place / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
