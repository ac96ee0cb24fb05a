"""The HTTP probe: one GET on a connection of its own, without proxy, without checking certificates.

Spoken with h11 directly on a Trio socket: a probe is a single small exchange, fifty of them a second
are usual, and a full client (connection pool, TLS contexts, proxies from the environment) costs several
times the exchange itself. Headers, redirects and texts follow the kubelet (`pkg/probe/http`).
"""

from __future__ import annotations

import functools
import ssl
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import h11
import trio

from trio_kubelet.api import v1
from trio_kubelet.probes.dial import DialError, dial, join_host_port, resolve_port
from trio_kubelet.probes.outcome import Outcome, Verdict

MAX_BODY = 10 * 1024
MAX_REDIRECTS = 10
USER_AGENT = "kube-probe/1.36"
# What Go leaves unescaped in the path of a URL.
_PATH_SAFE = "/:@!$&'()*+,;=~-._%"


class HTTPRequest(NamedTuple):
    """A GET request as it goes out. `host_header` is what the server is told."""

    scheme: str
    host: str
    port: int
    target: str
    host_header: str
    headers: tuple[tuple[str, str], ...]

    @property
    def url(self) -> str:
        return f"{self.scheme}://{join_host_port(self.host, self.port)}{self.target}"


class Answer(NamedTuple):
    """What a server answered; at most `MAX_BODY` bytes of it."""

    status: int
    location: str | None
    body: str


class HTTPFailure(Exception):
    """There was no answer; the text names the URL and reads like Go's."""


def canonical(name: str) -> str:
    """A header name as Go writes it: `x-a-b` → `X-A-B`; names with odd characters stay."""
    if all(c.isascii() and (c.isalnum() or c in "!#$%&'*+-.^_`|~") for c in name):
        return "-".join(part.capitalize() for part in name.split("-"))
    return name


def build_request(
    action: v1.HTTPGetAction, container: v1.Container, pod_ip: str, agent: str = USER_AGENT
) -> HTTPRequest:
    """The request of an HTTPGetAction. Raises ValueError when its port cannot be resolved."""
    scheme = (action.scheme or "http").lower()
    host = action.host or pod_ip
    port = resolve_port(action.port, container)
    path, mark, query = action.path.partition("?")
    target = quote(path.split("#")[0], safe=_PATH_SAFE) + mark + query.split("#")[0]
    if not target.startswith("/"):
        target = "/" + target
    headers = [(canonical(h.name), h.value) for h in action.http_headers or ()]
    names = {name for name, _ in headers}
    host_header = next((value for name, value in headers if name == "Host" and value), "")
    if "User-Agent" not in names:
        headers.append(("User-Agent", agent))
    if "Accept" not in names:
        headers.append(("Accept", "*/*"))
    elif next(value for name, value in headers if name == "Accept") == "":
        headers = [h for h in headers if h[0] != "Accept"]
    headers = [h for h in headers if h[0] != "Host"]
    default = {"http": 80, "https": 443}.get(scheme)
    plain = f"[{host}]" if ":" in host else host
    shown = plain if port == default else join_host_port(host, port)
    return HTTPRequest(scheme, host, port, target, host_header or shown, tuple(headers))


async def probe_http(request: HTTPRequest, timeout: float) -> Outcome:
    """Sends the request and judges the answer: 200 to 399 is success."""
    try:
        with trio.fail_after(timeout):
            answer = await fetch(request)
    except trio.TooSlowError:
        reason = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        return Outcome(Verdict.FAILURE, f'Get "{request.url}": {reason}')
    except HTTPFailure as exc:
        return Outcome(Verdict.FAILURE, str(exc))
    return judge(answer.status, answer.body)


async def fetch(request: HTTPRequest) -> Answer:
    """Sends the request and follows redirects to the same host. Raises HTTPFailure; sets no deadline."""
    first = request
    for _ in range(MAX_REDIRECTS):
        try:
            answer = await _get(request)
        except (DialError, OSError, h11.ProtocolError, trio.BrokenResourceError, ssl.SSLError) as exc:
            raise HTTPFailure(f'Get "{request.url}": {exc}') from exc
        if not (300 <= answer.status < 400 and answer.location):
            return answer
        following = _redirected(request, answer.location)
        if following is None or following.host != first.host:
            return answer
        request = following
    raise HTTPFailure(f'Get "{request.url}": stopped after {MAX_REDIRECTS} redirects')


def judge(status: int, body: str) -> Outcome:
    """What a status code means."""
    if 200 <= status < 300:
        return Outcome(Verdict.SUCCESS, body)
    if 300 <= status < 400:
        return Outcome(Verdict.WARNING, f"Probe terminated redirects, Response body: {body}")
    return Outcome(Verdict.FAILURE, f"HTTP probe failed with statuscode: {status}")


def _redirected(request: HTTPRequest, location: str) -> HTTPRequest | None:
    """The request a Location asks for; None when it cannot be followed."""
    url = urlsplit(urljoin(request.url, location))
    if url.scheme not in ("http", "https") or not url.hostname:
        return None
    try:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
    except ValueError:
        return None
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return HTTPRequest(url.scheme, url.hostname, port, target, url.netloc.rpartition("@")[2], request.headers)


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _get(request: HTTPRequest) -> Answer:
    stream: trio.abc.Stream = await dial(request.host, request.port)
    try:
        if request.scheme == "https":
            stream = trio.SSLStream(stream, _tls(), server_hostname=request.host, https_compatible=True)
        return await _exchange(stream, request)
    finally:
        await trio.aclose_forcefully(stream)


async def _exchange(stream: trio.abc.Stream, request: HTTPRequest) -> Answer:
    http = h11.Connection(h11.CLIENT)
    headers = [("Host", request.host_header), *request.headers, ("Connection", "close")]
    head = http.send(h11.Request(method="GET", target=request.target, headers=headers))
    await stream.send_all((head or b"") + (http.send(h11.EndOfMessage()) or b""))
    status, location, body = 0, None, bytearray()
    while len(body) < MAX_BODY:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(16 * 1024)))
        elif isinstance(event, h11.Response):
            status = event.status_code
            location = next((v.decode("latin-1") for k, v in event.headers if k == b"location"), None)
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) or not isinstance(event, h11.InformationalResponse):
            break
    return Answer(status, location, body[:MAX_BODY].decode("utf-8", "replace"))
