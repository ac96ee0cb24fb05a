"""Static pods from a URL (`--manifest-url`): read every `httpCheckFrequency`, applied when it changed.

The decisions are functions over `FetchState`: what to send (`request_headers`), what an answer means
(`after_answer`, `after_failure`). `HTTPSource` fetches, delivers and logs what they say. Behaviour follows
the kubelet (`pkg/kubelet/config/http.go`): only a 200 counts, an empty body empties the source, anything
else leaves the pods as they are. Beyond it, an unchanged document may be answered with a 304, a body counts
as known only once it was applied, and the configured headers (they may hold credentials) go to no other
host and into no log.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

import trio

from trio_kubelet.api.errors import ManifestError
from trio_kubelet.api.pod_rules import DEFAULT_RULES, PodRules
from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.lanes import CERTIFICATES, MANIFESTS, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.answer_bodies import BodyError, read_body
from trio_kubelet.kube.kubeconfig import Source
from trio_kubelet.kube.proxy import proxy_for
from trio_kubelet.kube.tls import client_context
from trio_kubelet.podinfo.updates import HTTP_SOURCE, PodOperation, PodUpdate
from trio_kubelet.sources.manifest import MAX_MANIFEST_BYTES, Origin, as_wanted, static_pods

if TYPE_CHECKING:
    import httpx

log = get_logger(__name__)

# The bounds of what a server may make of a read; its headers are bounded by the HTTP library, at 100 KiB.
TIMEOUT: Final = 10.0
MAX_REDIRECTS: Final = 10
LOGGED_FAILURES: Final = 3
USER_AGENT: Final = "kubelet/v1.36 (linux) trio-kubelet"
_PASSWORD: Final = re.compile(r"(//[^/?#@:]*):[^/?#]*@")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class ManifestResponse(NamedTuple):
    """What came back: the body is empty for all but a 200."""

    status: int
    body: bytes = b""
    etag: str = ""
    last_modified: str = ""


class Known(NamedTuple):
    """The document that is in force and the validators it came with."""

    body: bytes
    etag: str = ""
    last_modified: str = ""


class FetchState(NamedTuple):
    """What one read leaves for the next. `known` is None until something was applied."""

    known: Known | None = None
    failures: int = 0


class FetchDecision(NamedTuple):
    """What to do after a read: deliver `pods` (if any), go on with `state`, say `problem` or the recovery.

    `state` holds once the pods were taken: a document counts as known only when it was applied.
    """

    state: FetchState
    pods: tuple[Pod, ...] | None = None
    problem: str = ""
    quiet: bool = False
    recovered: bool = False


class FetchError(Exception):
    """The document could not be read; the text holds neither headers nor passwords."""


Fetch = Callable[[Mapping[str, str]], Awaitable[ManifestResponse]]
"""Reads the document with some headers added to the configured ones. Raises FetchError."""


def request_headers(state: FetchState) -> dict[str, str]:
    """The validators of the known document: an unchanged one need not be sent again."""
    if state.known is None:
        return {}
    headers = {"If-None-Match": state.known.etag, "If-Modified-Since": state.known.last_modified}
    return {name: value for name, value in headers.items() if value}


def after_answer(state: FetchState, answer: ManifestResponse, origin: Origin) -> FetchDecision:
    """What an answer means. Pure: the same answer in the same state always means the same."""
    if answer.status == 304 and request_headers(state):
        return _good(state, state.known)
    if answer.status != 200:
        return after_failure(state, f"HTTP status {answer.status}")
    if not answer.body:
        return after_failure(FetchState(None, state.failures), "the document is empty")._replace(pods=())
    known = Known(answer.body, answer.etag, answer.last_modified)
    if state.known is not None and state.known.body == answer.body:
        return _good(state, known)
    try:
        pods = map(as_wanted, static_pods(answer.body, origin))
    except ManifestError as exc:
        return after_failure(state, str(exc))
    return _good(state, known)._replace(pods=tuple(pods))


def after_failure(state: FetchState, problem: str) -> FetchDecision:
    """A read failed: the pods stay. The first few times that is said aloud, then with -v=4."""
    failures = state.failures + 1
    if failures == LOGGED_FAILURES:
        problem += " (further failures are logged with -v=4)"
    return FetchDecision(state._replace(failures=failures), problem=problem, quiet=failures > LOGGED_FAILURES)


def _good(state: FetchState, known: Known | None) -> FetchDecision:
    return FetchDecision(FetchState(known), recovered=state.failures > 0)


class HTTPSource:
    """The source: `run` reads for ever. `name` is what logs call it, a URL without password."""

    def __init__(
        self,
        name: str,
        origin: Origin,
        period: float,
        fetch: Fetch,
        send: trio.abc.SendChannel[PodUpdate],
    ) -> None:
        """`period` in seconds."""
        self._name = name
        self._origin = origin
        self._period = period
        self._fetch = fetch
        self._send = send
        self._state = FetchState()

    async def run(self) -> None:
        """Reads at once and then every period until cancelled."""
        while True:
            await self.read_once()
            await trio.sleep(self._period)

    async def read_once(self) -> None:
        """One read: fetch, decide, deliver."""
        state = self._state
        try:
            answer = await self._fetch(request_headers(state))
            decision = await MANIFESTS.run(after_answer, state, answer, self._origin, owner=self._name)
        except (FetchError, WorkHangs) as exc:
            decision = after_failure(state, str(exc))
        if decision.problem:
            level = log.v(4) if decision.quiet else log
            level.warning("Cannot read pods from URL", url=self._name, err=FetchError(decision.problem))
        if decision.recovered:
            log.info("Reading pods from URL works again", url=self._name)
        if decision.pods is not None:
            await self._send.send(PodUpdate(PodOperation.SET, HTTP_SOURCE, decision.pods))
        self._state = decision.state


def http_source(
    url: str,
    headers: Mapping[str, Sequence[str]],
    node_name: str,
    period: float,
    send: trio.abc.SendChannel[PodUpdate],
    ca_file: str = "",
    *,
    rules: PodRules = DEFAULT_RULES,
) -> HTTPSource:
    """The source for a URL and its configured headers; `ca_file` replaces the system's authorities."""
    fetcher = Fetcher(url, headers, ca_file, os.environ)
    origin = Origin(node_name, HTTP_SOURCE, url, rules)
    return HTTPSource(fetcher.name, origin, period, fetcher.fetch, send)


def may_follow(url: str, target: str, with_headers: bool) -> bool:
    """Whether a redirect is followed: configured headers stay with their host and are not sent in clear."""
    old, new = urlsplit(url), urlsplit(target)
    if new.scheme not in ("http", "https") or not new.hostname:
        return False
    if not with_headers:
        return True
    if old.scheme == "http" and new.scheme == "https":
        return old.hostname == new.hostname
    return (old.scheme, old.hostname, old.port) == (new.scheme, new.hostname, new.port)


def shown(url: str) -> str:
    """A URL for logs, without password."""
    return _PASSWORD.sub(r"\1:xxxxx@", url)


class Fetcher:
    """Reads the document over the network."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, Sequence[str]],
        ca_file: str,
        environment: Mapping[str, str],
    ) -> None:
        self.name = shown(url)
        self._url = url
        self._headers = [(name, value) for name, values in headers.items() for value in values]
        self._ca = Source(file=ca_file)
        self._environment = environment

    async def fetch(self, extra: Mapping[str, str]) -> ManifestResponse:
        """One read within the deadline. Raises FetchError."""
        import httpx  # only an agent with a URL pays for it

        try:
            with trio.fail_after(TIMEOUT):
                return await self._fetch(extra)
        except trio.TooSlowError:
            raise FetchError(f"no complete answer within {TIMEOUT:g}s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            from trio_kubelet.kube.request_words import request_words

            raise FetchError(self._without_secrets(request_words(exc, self._url))) from None

    async def _fetch(self, extra: Mapping[str, str]) -> ManifestResponse:
        import httpx

        from trio_kubelet.kube.transport import CLOSE_TIMEOUT, transport

        url = self._url
        sent = [("User-Agent", USER_AGENT), ("Accept-Encoding", "identity"), *extra.items()]
        configured = {name.lower() for name, _ in self._headers}
        sent = [pair for pair in sent if pair[0].lower() not in configured] + self._headers
        for _ in range(MAX_REDIRECTS + 1):
            # Made anew each time: reads are rare, and a replaced CA file then counts at once.
            secure = urlsplit(url).scheme == "https"
            tls = await CERTIFICATES.run(client_context, self._ca) if secure else None
            way = transport(tls, proxy_for(url, self._environment))
            # Without httpx's client, which keeps cookies.
            async with way:
                asked = httpx.Request("GET", url, headers=_with_user(sent, url))
                answer = await way.handle_async_request(asked)
                try:
                    if answer.status_code not in _REDIRECTS or "Location" not in answer.headers:
                        return await _read(answer)
                    target = urljoin(url, answer.headers["Location"])
                finally:
                    with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
                        await answer.aclose()
            if not may_follow(url, target, bool(self._headers)):
                raise FetchError(f"redirected to {_place(target)}, where the configured headers may not go")
            url = target
        raise FetchError(f"more than {MAX_REDIRECTS} redirects")

    def _without_secrets(self, text: str) -> str:
        """The libraries' words with everything configured taken out."""
        for _, value in self._headers:
            if value:
                text = text.replace(value, "<redacted>")
        return text.replace(self._url, self.name)


def _with_user(headers: Sequence[tuple[str, str]], url: str) -> list[tuple[str, str]]:
    """The headers for a URL that may name a user, if they do not say themselves who asks."""
    parts = urlsplit(url)
    if parts.username is None or any(name.lower() == "authorization" for name, _ in headers):
        return list(headers)
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return [*headers, ("Authorization", f"Basic {base64.b64encode(user).decode()}")]


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def _read(answer: httpx.Response) -> ManifestResponse:
    if answer.status_code != 200:
        return ManifestResponse(answer.status_code)
    try:
        body = await read_body(answer, MAX_MANIFEST_BYTES)
    except BodyError as exc:
        raise FetchError(str(exc)) from None
    headers = answer.headers
    return ManifestResponse(200, body, headers.get("ETag", ""), headers.get("Last-Modified", ""))
