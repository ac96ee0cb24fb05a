"""The HTTP probe: one GET on a connection of its own, without proxy, without checking certificates.

Spoken with h11 directly on a Trio socket: a probe is a single small exchange, fifty of them a second
are usual, and a full client (connection pool, TLS contexts, proxies from the environment) costs several
times the exchange itself. What a server that is well says in one piece is read without h11, too. Headers,
redirects and texts follow the kubelet (`pkg/probe/http`).
"""

from __future__ import annotations

import functools
import re
import ssl
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes, urljoin, urlsplit

import h11
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import DEADLINE_EXCEEDED, PLAIN_HTTP, UNEXPECTED_EOF
from trio_kubelet.common.http_syntax import HOST, MAX_INFORMATIONAL, NOT_IN_VALUES, TOKEN, broken_escape
from trio_kubelet.common.log import go_quote
from trio_kubelet.common.tls import close_for_good
from trio_kubelet.net.dial import DialError, join_host_port, resolve_port
from trio_kubelet.net.wire import Wire, head_fault, open_wire, quoted, with_known_version
from trio_kubelet.observed.probes import Outcome, Verdict

MAX_BODY = 10 * 1024
MAX_FRAMING = 16 * 1024
"""Bytes around a body, besides sixteen for each of its own: about what Go allows."""
MAX_HEAD = 128 * 1024
"""Bytes of a head, sent or received, where each line counts for `LINE` more; Go takes 1 MiB.

A head is written or parsed in one go, and everything else waits for it.
"""
LINE = 32
MAX_LOCATION = 8 * 1024
_PIECE: Final = 16 * 1024
_SMALL: Final = 4 * 1024
MAX_REDIRECTS = 10
USER_AGENT = "kube-probe/1.36"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What Go takes as it is in the path of a URL, and what it leaves unescaped where it escapes a path itself.
_PATH_AS_IT_IS = re.compile(r"[A-Za-z0-9/:@!$&'()*+,;=~\-._\[\]%]*")
_PATH_SAFE = "/:@$&+,;=~-._"
_FRAGMENT_SAFE = _PATH_SAFE + "?!()*"
_ASCII = "".join(map(chr, range(0x80)))
_QUERY_SAFE = "".join(chr(code) for code in range(0x21, 0x7F))
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=/)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME = re.compile(TOKEN)
_NO_HEADER = re.compile(NOT_IN_VALUES)
_HOST = re.compile(HOST)
_LONGEST_NAME = 255  # punycode takes time with the square of it
# Headers that Go's client writes by itself.
_NOT_SENT = frozenset({"Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"})


class HTTPRequest(NamedTuple):
    """A GET request as it goes out. `host_header` is what the server is told."""

    scheme: str
    host: str
    port: int
    target: str
    host_header: str
    headers: tuple[tuple[str, str], ...]
    shown: str  # the target in errors

    @property
    def server(self) -> str:
        """The part of the URL that all its targets have."""
        return f"{self.scheme}://{join_host_port(self.host, self.port)}"

    @property
    def url(self) -> str:
        return self.server + self.target

    @property
    def about(self) -> str:
        """The beginning of an error's text."""
        return f"Get {go_quote(self.server + self.shown)}"


class HTTPResponse(NamedTuple):
    """What a server answered, at most `MAX_BODY` bytes; `broken` says why its body could not be read."""

    status: int
    location: str
    body: str
    broken: str = ""


class _Head(NamedTuple):
    """What a probe goes by of the head of an answer; `location` is "" where there is none."""

    status: int
    location: str


class HTTPFailure(Exception):
    """There was no answer; the text names the URL and reads like Go's.

    `plain_http`: TLS was answered in plain text.
    """

    def __init__(self, text: str, plain_http: bool = False) -> None:
        super().__init__(text)
        self.plain_http = plain_http


class _Broken(Exception):
    """The exchange broke; the text is Go's for why."""


def canonical(name: str) -> str:
    """A header name as Go writes it: `x-a-b` → `X-A-B`; names with odd characters stay."""
    if _HEADER_NAME.fullmatch(name):
        return "-".join(part.capitalize() for part in name.split("-"))
    return name


class RequestTarget(NamedTuple):
    """A path as Go parses it: what is asked for, and how errors show it."""

    asked: str
    shown: str


def request_target(path: str) -> RequestTarget:
    """What a path of an action comes to.

    Scheme and host in it are ignored; what is no URL is escaped as it stands. A query may hold anything, and
    what no request line can hold of it is escaped where it is asked for.
    """
    before, _, fragment = path.partition("#")
    rest, mark, query = before.partition("?")
    if _CONTROL.search(path) or broken_escape(rest) or broken_escape(fragment):
        escaped = _rooted(quote(path, safe=_PATH_SAFE))
        return RequestTarget(escaped, escaped)
    scheme = _SCHEME.match(rest)
    rest = rest[scheme.end() if scheme else 0 :]
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        rest = "".join(rest[2:].partition("/")[1:])
    escaped = _escaped(rest)
    shown = (_rooted(escaped) if escaped else "") + mark + query
    if fragment:
        shown += "#" + quote(unquote_to_bytes(fragment), safe=_FRAGMENT_SAFE)
    return RequestTarget(_rooted(escaped + mark + quote(query, safe=_QUERY_SAFE)), shown)


def _rooted(path: str) -> str:
    return path if path.startswith("/") else "/" + path


def _escaped(path: str) -> str:
    return path if _PATH_AS_IT_IS.fullmatch(path) else quote(unquote_to_bytes(path), safe=_PATH_SAFE)


def build_request(
    action: v1.HTTPGetAction, container: v1.Container, pod_ip: str, agent: str = USER_AGENT
) -> HTTPRequest:
    """The request of an HTTPGetAction. Raises ValueError when its port cannot be resolved, or when it is
    larger than a head may be: it is made anew for each run of a probe.
    """
    if _is_large(action):
        raise ValueError(f"request larger than {MAX_HEAD} bytes")
    scheme = (action.scheme or "http").lower()
    host = action.host or pod_ip
    port = resolve_port(action.port, container)
    given = [(canonical(h.name), h.value) for h in action.http_headers or ()]
    first = dict(reversed(given))
    headers = [(name, value) for name, value in given if name not in _NOT_SENT]
    if user_agent := first.get("User-Agent", agent):
        headers.insert(0, ("User-Agent", user_agent))
    if "Accept" not in first:
        headers.append(("Accept", "*/*"))
    elif not first["Accept"]:
        headers = [h for h in headers if h[0] != "Accept"]
    target = request_target(action.path or "/")
    return HTTPRequest(
        scheme,
        host,
        port,
        target.asked,
        first.get("Host") or join_host_port(host, port),
        tuple(headers),
        target.shown,
    )


def _is_large(action: v1.HTTPGetAction) -> bool:
    headers = action.http_headers or ()
    size = len(action.host or "") + len(action.path or "") + LINE * len(headers)
    return size > MAX_HEAD or size + sum(len(h.name) + len(h.value) for h in headers) > MAX_HEAD


async def probe_http(request: HTTPRequest, timeout: float) -> Outcome:
    """Sends the request and judges the answer: 200 to 399 is success.

    An answer whose body breaks off or does not end in time is no verdict, as with the kubelet.
    """
    try:
        answer = await fetch(request, timeout)
    except trio.TooSlowError:
        reason = f"{DEADLINE_EXCEEDED} (Client.Timeout exceeded while awaiting headers)"
        return Outcome(Verdict.FAILURE, f"{request.about}: {reason}")
    except HTTPFailure as exc:
        return Outcome(Verdict.FAILURE, str(exc))
    if answer.broken:
        return Outcome(Verdict.FAILURE, error=answer.broken)
    return judge(answer.status, answer.body)


async def fetch(request: HTTPRequest, timeout: float) -> HTTPResponse:
    """Sends the request and follows redirects to the same host.

    Raises HTTPFailure, and TooSlowError when there is no answer after `timeout` seconds for all together.
    """
    first, location = request, ""
    deadline = trio.current_time() + timeout
    for _ in range(MAX_REDIRECTS):
        try:
            answer = await _get(request, deadline)
        except (DialError, _Broken) as exc:
            raise HTTPFailure(f"{request.about}: {exc}", plain_http=str(exc) == PLAIN_HTTP) from exc
        if answer.status not in REDIRECTS or not answer.location:
            return answer
        location = answer.location
        if len(location) > MAX_LOCATION:
            shown = f"{quoted(location.encode())}: longer than {MAX_LOCATION} characters"
            raise HTTPFailure(f"{request.about}: failed to parse Location header {shown}")
        following = _redirected(first, request, location)
        if following is None or following.host != first.host:
            return answer
        request = following
    raise HTTPFailure(f"Get {go_quote(location)}: stopped after {MAX_REDIRECTS} redirects")


def judge(status: int, body: str) -> Outcome:
    """What a status code means."""
    if 200 <= status < 300:
        return Outcome(Verdict.SUCCESS, body)
    if 300 <= status < 400:
        return Outcome(Verdict.WARNING, f"Probe terminated redirects, Response body: {body}")
    return Outcome(Verdict.FAILURE, f"HTTP probe failed with statuscode: {status}")


def _redirected(first: HTTPRequest, last: HTTPRequest, location: str) -> HTTPRequest | None:
    """The request a Location asks for; None when it cannot be followed.

    A Host header of one's own goes along to a Location that names no scheme.
    """
    # A host of other characters is escaped meanwhile: Python would normalise it, for minutes if it is long.
    base, location = (quote(url, safe=_ASCII) for url in (last.url, location))
    try:
        url = urlsplit(urljoin(base, location))
        port = url.port or {"http": 80, "https": 443}[url.scheme]
    except (ValueError, KeyError):
        return None
    authority = url.netloc.rpartition("@")[2]
    if authority.startswith("["):
        host, _, behind = authority[1:].partition("]")
        if behind and not behind.startswith(":"):  # not every version of Python refuses it
            return None
    else:
        host = authority.partition(":")[0]
    host = unquote(host)
    target = (_escaped(url.path) or "/") + (f"?{quote(url.query, safe=_QUERY_SAFE)}" if url.query else "")
    own_header = last.host_header not in (join_host_port(last.host, last.port), last.host)
    if own_header and not urlsplit(location).scheme:
        authority = last.host_header
    headers = first.headers
    if "Referer" not in dict(headers) and (last.scheme, url.scheme) != ("https", "http"):
        headers = (*headers, ("Referer", last.url))
    return HTTPRequest(url.scheme, host, port, target, authority, headers, target)


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _server_name(host: str) -> str | None:
    """The name asked for in TLS: as with Go none where there is no host, or none that could be a name."""
    return host if host and not host.startswith(".") else None


async def _get(request: HTTPRequest, deadline: float) -> HTTPResponse:
    """One exchange. Raises DialError, _Broken, and TooSlowError when there is no head of an answer before the
    deadline.
    """
    asked = _written(request)
    with trio.fail_at(deadline):
        wire = await open_wire(request.host, request.port)
    stream: trio.abc.Stream = wire
    try:
        try:
            with trio.fail_at(deadline):
                if request.scheme == "https":
                    stream = encrypted = _over_tls(wire, request.host)
                    await _shake_hands(encrypted, wire)
                await stream.send_all(asked)
                first = bytes(await stream.receive_some(_PIECE))
                if (whole := whole_answer(first)) is not None:
                    return whole
                http, _ = _sent(request)
                head = await _head(stream, http, first)
        except trio.BrokenResourceError as exc:
            raise _Broken(wire.words(exc)) from exc
        body, broken = bytearray(), ""
        try:
            with trio.move_on_at(deadline) as scope:
                await _read_body(stream, http, body)
            if scope.cancelled_caught:
                reason = "Client.Timeout or context cancellation while reading body"
                broken = f"{DEADLINE_EXCEEDED} ({reason})"
        except _Broken as exc:
            broken = str(exc)
        except h11.ProtocolError as exc:
            broken = "invalid byte in chunk length" if "chunk" in str(exc) else UNEXPECTED_EOF
            if "incomplete" in str(exc) or "closed" in str(exc):
                broken = UNEXPECTED_EOF
        except trio.BrokenResourceError as exc:
            broken = wire.words(exc)
        return HTTPResponse(head.status, head.location, body[:MAX_BODY].decode("utf-8", "replace"), broken)
    finally:
        if stream is wire:
            wire.close()
        else:
            await close_for_good(stream)


def _over_tls(wire: Wire, host: str) -> trio.SSLStream[Wire]:
    return trio.SSLStream(wire, _tls(), server_hostname=_server_name(host), https_compatible=True)


async def _shake_hands(stream: trio.SSLStream[Wire], wire: Wire) -> None:
    """Raises _Broken when the handshake fails."""
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as exc:
        raise _Broken(wire.handshake_words(exc)) from exc


def _sent(request: HTTPRequest) -> tuple[h11.Connection, bytes]:
    """A connection on which the request was sent, and its bytes. Raises _Broken for a header that is none."""
    for name, value in (("Host", request.host_header), *request.headers):
        if not _HEADER_NAME.fullmatch(name):
            raise _Broken(f"net/http: invalid header field name {go_quote(name)}")
        if _NO_HEADER.search(value):
            raise _Broken(f"net/http: invalid header field value for {go_quote(name)}")
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2 * MAX_HEAD)  # it is counted below
    headers = [
        (name.encode(), value.strip(" \t").encode())
        for name, value in (("Host", _host(request.host_header)), *request.headers, ("Connection", "close"))
    ]
    head = http.send(h11.Request(method="GET", target=request.target, headers=headers))
    return http, (head or b"") + (http.send(h11.EndOfMessage()) or b"")


def _host(header: str) -> str:
    """A Host header as Go's client sends it: letters outside of ASCII as punycode, and empty where it can be
    none.
    """
    if not header.isascii():
        if len(header) > _LONGEST_NAME:
            return ""
        name, colon, port = header.partition(":")
        header = ".".join(map(_punycode, name.split("."))) + colon + port
    return header if _HOST.fullmatch(header) else ""


def _punycode(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


def _written(request: HTTPRequest) -> bytes:
    """The bytes of the request. Small ones, as most are, are kept: a probe asks the same each time. Raises
    _Broken.
    """
    size = len(request.target) + len(request.host_header) + sum(len(n) + len(v) for n, v in request.headers)
    return _written_small(request) if size < _SMALL else _sent(request)[1]


@functools.lru_cache(maxsize=1024)
def _written_small(request: HTTPRequest) -> bytes:
    return _sent(request)[1]


def whole_answer(said: bytes) -> HTTPResponse | None:
    """What a server that is well answers in one piece and the usual shape; of anything else h11 has to say
    what it is (None). It would say the same of this, with three hundred calls of functions.
    """
    match = _WELL.match(said)
    if match is None or match.end() + int(match["length"]) > len(said):
        return None
    length = min(int(match["length"]), MAX_BODY)
    body = said[match.end() : match.end() + length]
    return HTTPResponse(int(match["status"]), "", body.decode("utf-8", "replace"))


_FIELDS: Final = (  # but those that say where the body ends
    rb"(?>(?:(?!(?i:content-length|transfer-encoding):)"
    + TOKEN.encode()
    + rb"+:[\t\x20-\x7e\x80-\xff]*+\r\n)*)"
)
_WELL: Final = re.compile(
    rb"HTTP/1\.[01] (?P<status>(?!204)2[0-9]{2})(?: [\x20-\x7e]*+)?\r\n"
    + _FIELDS
    + rb"(?i:content-length):[ \t]*+(?P<length>[0-9]{1,5})[ \t]*+\r\n"
    + _FIELDS
    + rb"\r\n"
)


async def _head(stream: trio.abc.Stream, http: h11.Connection, first: bytes) -> _Head:
    """The head of the answer, of which `first` has come."""
    come: bytes | None = first
    said, ended, received, informational = bytearray(), False, 0, 0
    try:
        while not isinstance(event := http.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                if received > MAX_HEAD:
                    raise _Broken(f"net/http: server response headers exceeded {MAX_HEAD} bytes; aborted")
                data = bytes(await stream.receive_some(_PIECE)) if come is None else come
                come = None
                received += len(data) + LINE * data.count(b"\n")
                ended = not data
                http.receive_data(data if said else with_known_version(data))
                said += data
            elif isinstance(event, h11.InformationalResponse):
                said.clear()
                informational += 1
                if informational > MAX_INFORMATIONAL:
                    raise _Broken("net/http: too many 1xx informational responses")
            else:
                raise _Broken(head_fault(bytes(said), ended))
    except h11.RemoteProtocolError as exc:
        raise _Broken(head_fault(bytes(said), ended)) from exc
    except trio.BrokenResourceError as exc:
        if said:  # what came before is not enough, and Go looks at that first
            raise _Broken(head_fault(bytes(said), True)) from exc
        raise
    location = next((value for name, value in event.headers if name == b"location"), b"")
    return _Head(event.status_code, location.decode("utf-8", "replace"))


async def _read_body(stream: trio.abc.Stream, http: h11.Connection, body: bytearray) -> None:
    """Adds to `body` until it ends or is long enough. Raises _Broken when too much else comes."""
    framing = 0
    while len(body) < MAX_BODY:
        event = http.next_event()
        if event is h11.NEED_DATA:
            if framing > MAX_FRAMING:
                raise _Broken("chunked encoding contains too much non-data")
            data = bytes(await stream.receive_some(_PIECE))
            framing += len(data)
            http.receive_data(data)
        elif isinstance(event, h11.Data):
            body += event.data
            framing = max(0, framing - 16 * len(event.data))
        else:
            break
