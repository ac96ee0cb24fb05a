"""What a server is asked and what it answers, as values: requests, responses, connections handed over.

Words and texts are those of Go's `net/http` where a client sees them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

import msgspec
import trio

from trio_kubelet.common.http_syntax import broken_escape
from trio_kubelet.common.log import go_quote
from trio_kubelet.server.doors import ClosableBody

Headers = Sequence[tuple[str, str]]

NOSNIFF = (("X-Content-Type-Options", "nosniff"),)  # what Go adds to errors and to text
# Go's words for statuses, where Python's differ between versions.
REASONS = {s.value: s.phrase for s in HTTPStatus} | {
    413: "Request Entity Too Large",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
}


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
    http_version: str = "1.1"

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
    """The handler takes the connection over: it gets the stream and what was already read from it.

    `take` is called in any case: what it holds it closes, also when it is cancelled from its beginning.
    """

    take: Callable[[trio.abc.Stream, bytes], Awaitable[None]]


Handler = Callable[[Request], Awaitable[Response | Hijack]]


def until_sent(answer: Response | Hijack, done: Callable[[], object]) -> Response | Hijack:
    """The answer, at whose end `done` is called: at once where it is whole, else when it is sent or its
    connection handed back.
    """
    if isinstance(answer, Hijack):
        return Hijack(partial(_taken, answer, done))
    if isinstance(answer.body, bytes):
        done()
        return answer
    return msgspec.structs.replace(answer, body=_Watched(answer.body, done))


async def _taken(hijack: Hijack, done: Callable[[], object], stream: trio.abc.Stream, already: bytes) -> None:
    try:
        await hijack.take(stream, already)
    finally:
        done()


class _Watched:
    def __init__(self, body: AsyncIterator[bytes], done: Callable[[], object]) -> None:
        self._body = body
        self._done = done

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._body)

    async def aclose(self) -> None:
        self._done()
        if isinstance(self._body, AsyncGenerator | ClosableBody):
            await self._body.aclose()


def text(status: int, body: str, headers: Headers = ()) -> Response:
    """A plain-text answer, as Go's `http.Error` makes it."""
    kind = ("Content-Type", "text/plain; charset=utf-8")
    return Response(status=status, headers=(kind, *headers), body=body.encode())


def not_found() -> Response:
    """As Go's `http.NotFound`."""
    return text(404, "404 page not found\n", NOSNIFF)


def json_body(body: bytes | AsyncIterator[bytes], status: int = 200) -> Response:
    """A JSON answer that is encoded already, or comes in pieces."""
    return Response(status=status, headers=(("Content-Type", "application/json"),), body=body)


def parse_target(target: str) -> tuple[str, dict[str, list[str]]]:
    """Path (decoded) and query of a request target. Raises ValueError for one that cannot be decoded."""
    path, query = raw_path(target), target.partition("?")[2]
    if broken := broken_escape(path):
        raise ValueError(f"invalid URL escape {go_quote(broken)}")
    return unquote(path), parse_query(query)[0]


def parse_query(query: str) -> tuple[dict[str, list[str]], str]:
    """The parameters of a query, and what is wrong with those that are left out; "" if nothing is
    (Go: `url.ParseQuery`).
    """
    found: dict[str, list[str]] = {}
    fault = ""
    for pair in filter(None, query.split("&")):
        if ";" in pair:
            fault = "invalid semicolon separator in query"
        elif broken := broken_escape(pair):
            fault = fault or f"invalid URL escape {go_quote(broken)}"
        else:
            name, _, value = pair.partition("=")
            found.setdefault(unquote_plus(name), []).append(unquote_plus(value))
    return found, fault


def raw_path(target: str) -> str:
    """The path of a request target as it was sent, also of one with scheme and host as proxies send it."""
    path = target.partition("?")[0]
    if path.startswith(("http://", "https://")):
        path = "/" + path.split("/", 3)[3] if path.count("/") > 2 else "/"
    return path
