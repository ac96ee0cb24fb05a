"""The HTTP probe's request, and its judgement of real answers on loopback."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.selfsigned_process import ensure_self_signed
from trio_kubelet.net.http import (
    MAX_BODY,
    MAX_HEAD,
    MAX_LOCATION,
    USER_AGENT,
    _redirected,
    _server_name,
    _written,
    build_request,
    probe_http,
)
from trio_kubelet.net.wire import head_fault
from trio_kubelet.observed.probes import Outcome, Verdict
from trio_kubelet.probes.runners import probe_tcp
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.http.serve import serve

CONTAINER = v1.Container(name="c", ports=[v1.ContainerPort(name="web", container_port=8080)])
Handler = Callable[[Request], Awaitable[Response | Hijack]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[int]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, handler)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def ask(handler: Handler, path: str = "/", timeout: float = 5) -> Outcome:
    async with server(handler) as port:
        action = v1.HTTPGetAction(port=port, host="127.0.0.1", path=path)
        return await probe_http(build_request(action, CONTAINER, "10.0.0.1"), timeout)


def test_the_request_goes_to_the_pods_ip_and_a_named_port() -> None:
    request = build_request(v1.HTTPGetAction(port="web", path="/a b?x=1#f"), CONTAINER, "10.0.0.1")
    assert request.url == "http://10.0.0.1:8080/a%20b?x=1"
    assert request.about == 'Get "http://10.0.0.1:8080/a%20b?x=1#f"'
    assert request.host_header == "10.0.0.1:8080"
    assert request.headers == (("User-Agent", USER_AGENT), ("Accept", "*/*"))


@pytest.mark.parametrize(
    ("path", "asked", "shown"),
    [
        ("/a b?c=%zz", "/a%20b?c=%zz", "/a%20b?c=%zz"),  # a query may hold anything
        ("/a%zz?b=c", "/a%25zz%3Fb=c", "/a%25zz%3Fb=c"),
        ("/a?b#%zz", "/a%3Fb%23%25zz", "/a%3Fb%23%25zz"),
        ("/a?b\x01", "/a%3Fb%01", "/a%3Fb%01"),
        ("/a?b#c d", "/a?b", "/a?b#c%20d"),
        ("/a?b c", "/a?b%20c", "/a?b c"),
        ('/a?"b', '/a?"b', '/a?\\"b'),
        ("?b", "/?b", "?b"),
        ("nofile", "/nofile", "/nofile"),
        ("http://x/y", "/y", "/y"),
    ],
)
def test_a_path_is_read_as_go_reads_it(path: str, asked: str, shown: str) -> None:
    """Recorded with Go's `url.Parse`, but that a request line is kept whole."""
    request = build_request(v1.HTTPGetAction(port=80, path=path), CONTAINER, "10.0.0.1")
    assert request.target == asked
    assert request.about == f'Get "http://10.0.0.1:80{shown}"'


def test_headers_replace_the_usual_ones() -> None:
    headers = [
        v1.HTTPHeader(name="host", value="example"),
        v1.HTTPHeader(name="user-agent", value="me"),
        v1.HTTPHeader(name="accept", value=""),
        v1.HTTPHeader(name="x-a", value="1"),
        v1.HTTPHeader(name="X-A", value="2"),
    ]
    action = v1.HTTPGetAction(port=443, scheme="HTTPS", http_headers=headers)
    request = build_request(action, CONTAINER, "fd00::1")
    assert request.url == "https://[fd00::1]:443/"
    assert request.host_header == "example"
    assert request.headers == (("User-Agent", "me"), ("X-A", "1"), ("X-A", "2"))


@pytest.mark.parametrize(
    "large",
    [
        {"path": "/é" * 700_000},
        {"host": "a" * 1_400_000},
        {"http_headers": [v1.HTTPHeader(name=f"x-{number}", value="") for number in range(45_000)]},
        {"http_headers": [v1.HTTPHeader(name="x-a", value="b" * 100) for _ in range(1_000)]},
    ],
)
def test_a_request_has_a_longest_head(large: dict[str, Any]) -> None:
    """To make one of megabytes held everything else up, for a tenth of a second at each run."""
    for _ in within_cpu(0.02):
        with pytest.raises(ValueError, match="request larger than 131072 bytes"):
            build_request(v1.HTTPGetAction(port=80, **large), CONTAINER, "10.0.0.1")


def test_a_large_request_within_the_bound_is_made() -> None:
    given = [v1.HTTPHeader(name="X-A", value="b" * 100) for _ in range(900)]
    request = build_request(v1.HTTPGetAction(port=80, http_headers=given), CONTAINER, "10.0.0.1")
    assert request.headers.count(("X-A", "b" * 100)) == 900


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("healthz", "/healthz"),
        ("", "/"),
        ("?x", "/?x"),
        ("/a?", "/a?"),
        ("/a#b?c", "/a"),
        ("/a%2Fb", "/a%2Fb"),
        ("/a[1]!*", "/a[1]!*"),
        ("/ä%2F b!", "/%C3%A4/%20b%21"),
        ("/a?x=ä b", "/a?x=%C3%A4%20b"),
        ("/100%?x", "/100%25%3Fx"),
        ("/a\tb", "/a%09b"),
        ("//elsewhere/x", "/x"),
        ("//healthz", "/"),
        ("http://elsewhere:1/x?y", "/x?y"),
    ],
)
def test_a_path_is_read_as_go_reads_a_url(path: str, target: str) -> None:
    assert build_request(v1.HTTPGetAction(port=1, path=path), CONTAINER, "10.0.0.1").target == target


def headers_of(*headers: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    given = [v1.HTTPHeader(name=name, value=value) for name, value in headers]
    request = build_request(v1.HTTPGetAction(port=1, http_headers=given), CONTAINER, "10.0.0.1")
    return (("Host", request.host_header), *request.headers)


def test_headers_the_client_writes_by_itself() -> None:
    host, agent, accept = ("Host", "10.0.0.1:1"), ("User-Agent", USER_AGENT), ("Accept", "*/*")
    assert headers_of(("user-agent", "")) == (host, accept)
    assert headers_of(("content-length", "5"), ("transfer-encoding", "chunked")) == (host, agent, accept)
    assert headers_of(("host", ""), ("Host", "later")) == (host, agent, accept)
    assert headers_of(("User-Agent", "a"), ("User-Agent", "b")) == (host, ("User-Agent", "a"), accept)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("x-a", "a\nb", 'value for "X-A"'),
        ("X", "\x7f", 'value for "X"'),
        ("Host", "a\r", 'value for "Host"'),
        ("A B", "c", 'name "A B"'),
        ("", "c", 'name ""'),
    ],
)
async def test_a_header_that_is_none_fails_the_probe(name: str, value: str, fault: str) -> None:
    """It was an error of the agent's, logged each second, and the container counted as it had before."""
    header = v1.HTTPHeader(name=name, value=value)
    action = v1.HTTPGetAction(port=80, host="127.0.0.1", http_headers=[header])
    outcome = await probe_http(build_request(action, CONTAINER, ""), 1)
    said = f'Get "http://127.0.0.1:80/": net/http: invalid header field {fault}'
    assert outcome == Outcome(Verdict.FAILURE, said)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("Example:8080", "Example:8080"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("B\u00dcCHER.Example:8080", "xn--BCHER-2pa.Example:8080"),
        ("\u65e5\u672c", "xn--wgv71a"),
        ("\u00e9..b", "xn--9ca..b"),
        ("\u65e5\u672c x", ""),
        ("a b", ""),
        ("a/b", ""),
        ("\u00e9" * 100_000, ""),
    ],
)
def test_a_host_header_goes_out_as_go_writes_it(given: str, sent: str) -> None:
    request = build_request(v1.HTTPGetAction(port=80, host="127.0.0.1"), CONTAINER, "")
    written = _written(request._replace(host_header=given)).decode("ascii")
    assert written.splitlines()[1] == f"Host: {sent}"


def test_a_default_port_stands_in_the_host_header() -> None:
    assert build_request(v1.HTTPGetAction(port=80), CONTAINER, "10.0.0.1").host_header == "10.0.0.1:80"


@pytest.mark.parametrize("port", ["nope", 0, 65536])
def test_a_port_that_does_not_exist_is_an_error(port: int | str) -> None:
    with pytest.raises(ValueError):
        build_request(v1.HTTPGetAction(port=port), CONTAINER, "10.0.0.1")


@pytest.mark.parametrize(
    ("status", "verdict", "output"),
    [
        (200, Verdict.SUCCESS, "body"),
        (204, Verdict.SUCCESS, ""),
        (304, Verdict.WARNING, "Probe terminated redirects, Response body: "),
        (404, Verdict.FAILURE, "HTTP probe failed with statuscode: 404"),
        (500, Verdict.FAILURE, "HTTP probe failed with statuscode: 500"),
    ],
)
async def test_status_codes(status: int, verdict: Verdict, output: str) -> None:
    async def handler(request: Request) -> Response:
        return text(status, "" if status in (204, 304) else "body")

    assert await ask(handler) == Outcome(verdict, output)


async def test_redirects_on_the_same_host_are_followed() -> None:
    async def handler(request: Request) -> Response:
        if request.path == "/":
            return Response(status=302, headers=[("Location", "/there?x=1")])
        return text(200, request.target)

    assert await ask(handler) == Outcome(Verdict.SUCCESS, "/there?x=1")


async def test_a_redirect_keeps_a_host_header_of_its_own_unless_it_names_a_scheme() -> None:
    seen: list[tuple[str, str, str]] = []

    async def handler(request: Request) -> Response:
        got = (request.header("host") or "", request.header("x-a") or "")
        seen.append((request.path, *got))
        port = request.header("x-port")
        steps = {"/": "/one", "/one": f"http://127.0.0.1:{port}/two"}
        location = steps.get(request.path)
        return Response(status=307, headers=[("Location", location)]) if location else text(200, "")

    async with server(handler) as port:
        headers = [
            v1.HTTPHeader(name="Host", value="example"),
            v1.HTTPHeader(name="X-A", value=" \u00e4 "),
            v1.HTTPHeader(name="X-Port", value=str(port)),
        ]
        action = v1.HTTPGetAction(port=port, host="127.0.0.1", path="/", http_headers=headers)
        outcome = await probe_http(build_request(action, CONTAINER, ""), 5)
    assert outcome.verdict is Verdict.SUCCESS
    assert [(path, host) for path, host, _ in seen] == [
        ("/", "example"),
        ("/one", "example"),
        ("/two", f"127.0.0.1:{port}"),
    ]
    assert all(value for _, _, value in seen)


@pytest.mark.parametrize("status", [300, 304, 305])
async def test_only_redirects_proper_are_followed(status: int) -> None:
    async def handler(request: Request) -> Response:
        return Response(status=status, headers=[("Location", "/fails")] if request.path == "/" else [])

    assert (await ask(handler)).verdict is Verdict.WARNING


async def test_without_an_address_the_node_itself_is_asked() -> None:
    async def handler(request: Request) -> Response:
        if request.path == "/":
            return Response(status=302, headers=[("Location", "/there")])
        return text(200, request.header("host") or "")

    async with server(handler) as port:
        request = build_request(v1.HTTPGetAction(port=port, path="/"), CONTAINER, "")
        assert await probe_http(request, 5) == Outcome(Verdict.SUCCESS, f":{port}")
        assert (await probe_tcp("", port, 5)).verdict is Verdict.SUCCESS


@asynccontextmanager
async def answering(answer: bytes, *, then_wait: bool = False) -> AsyncIterator[int]:
    """A port where every connection is given these bytes."""

    async def handle(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        if then_wait:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, handle, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("then_wait", [False, True], ids=["broken", "stalled"])
async def test_a_body_that_does_not_end_well_is_no_verdict(then_wait: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbeginning"
    async with answering(head, then_wait=then_wait) as port:
        action = v1.HTTPGetAction(port=port, host="127.0.0.1")
        outcome = await probe_http(build_request(action, CONTAINER, ""), 0.2)
    assert outcome.error
    assert ("while reading body" in outcome.error) == then_wait


async def test_a_connection_that_ends_without_an_answer_fails() -> None:
    async with answering(b"") as port:
        action = v1.HTTPGetAction(port=port, host="127.0.0.1")
        outcome = await probe_http(build_request(action, CONTAINER, ""), 5)
    assert outcome == Outcome(Verdict.FAILURE, f'Get "http://127.0.0.1:{port}/": EOF')


async def test_a_failed_handshake_says_why() -> None:
    async with answering(b"") as port:
        action = v1.HTTPGetAction(port=port, host="127.0.0.1", scheme="HTTPS")
        outcome = await probe_http(build_request(action, CONTAINER, ""), 5)
    assert outcome.verdict is Verdict.FAILURE
    assert not outcome.output.endswith(": ")


async def test_a_redirect_to_another_host_is_a_warning() -> None:
    async def handler(request: Request) -> Response:
        return Response(status=302, headers=[("Location", "http://elsewhere.invalid/")], body=b"go")

    outcome = await ask(handler)
    assert outcome == Outcome(Verdict.WARNING, "Probe terminated redirects, Response body: go")


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("", "http://10.0.0.1:80/a/b?c"),
        ("#f", "http://10.0.0.1:80/a/b?c"),
        ("?d", "http://10.0.0.1:80/a/b?d"),
        ("e", "http://10.0.0.1:80/a/e"),
        ("../../e/./f/..", "http://10.0.0.1:80/e/"),
        ("/x//y/.?q r#f", "http://10.0.0.1:80/x//y/?q%20r"),
        ("/\u00e4 b", "http://10.0.0.1:80/%C3%A4%20b"),
        ("//10.0.0.2", "http://10.0.0.2:80/"),
        ("HTTPS://me:pw@10.0.0.1", "https://10.0.0.1:443/"),
        ("http://10.0.0.1:8080/x", "http://10.0.0.1:8080/x"),
        ("http://[fd00::1]:81/x", "http://[fd00::1]:81/x"),
        ("http://\u212a.example/", "http://\u212a.example:80/"),  # nothing is normalised
        ("ftp://10.0.0.1/", None),
        ("http://10.0.0.1:http/", None),
        ("http://10.0.0.1:65536/", None),
        ("http://[fd00::1]x:81/", None),
    ],
)
def test_where_a_redirect_leads(location: str, url: str | None) -> None:
    request = build_request(v1.HTTPGetAction(port=80, path="/a/b?c"), CONTAINER, "10.0.0.1")
    following = _redirected(request, request, location)
    assert (following and following.url) == url


async def outcome_of(answer: bytes) -> Outcome:
    """What a probe says of an answer, without where it was asked for."""
    async with answering(answer) as port:
        request = build_request(v1.HTTPGetAction(port=port, host="127.0.0.1"), CONTAINER, "")
        outcome = await probe_http(request, 30)
    return outcome._replace(output=outcome.output.removeprefix(f"{request.about}: "))


def test_a_redirect_that_is_hard_to_normalise_holds_nobody_up() -> None:
    """Unicode's normal form of many marks on one letter takes time that is quadratic in their number."""
    location = "http://a" + "\u0301" * 20_000 + "\u0316" * 20_000
    request = build_request(v1.HTTPGetAction(port=80), CONTAINER, "10.0.0.1")
    for _ in within_cpu(0.5):
        assert _redirected(request, request, location)


async def test_a_location_that_is_too_long_is_not_followed() -> None:
    head = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: /"
    outcome = await outcome_of(head + b"x" * MAX_LOCATION + b"\r\n\r\n")
    shown = "/" + "x" * 1023 + "..."
    assert outcome == Outcome(
        Verdict.FAILURE, f'failed to parse Location header "{shown}": longer than 8192 characters'
    )


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * (MAX_HEAD // 8) + b"\r\n",
        b"HTTP/1.1 200 " + b"\xff" * MAX_HEAD * 2,
        b"HTTP/1.1 100 " + b"x" * (MAX_HEAD - 100) + b"\r\n\r\nHTTP/1.1 200 " + b"x" * MAX_HEAD,
    ],
    ids=["headers", "reason", "with what came before"],
)
async def test_a_head_that_is_too_long_fails(head: bytes) -> None:
    assert await outcome_of(head) == Outcome(
        Verdict.FAILURE, "net/http: server response headers exceeded 131072 bytes; aborted"
    )


async def test_informational_answers_are_bounded() -> None:
    more, good = b"HTTP/1.1 103 \r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    assert await outcome_of(more * 5 + good) == Outcome(Verdict.SUCCESS, "ok")
    assert await outcome_of(more * 6 + good) == Outcome(
        Verdict.FAILURE, "net/http: too many 1xx informational responses"
    )


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"1\r\nx\r\n" * MAX_BODY, None),
        (b"0\r\n" + b"a:\r\n" * 20_000 + b"\r\n", "chunked encoding contains too much non-data"),
        ((b"1;" + b"y" * 1000 + b"\r\nx\r\n") * 1000, "chunked encoding contains too much non-data"),
    ],
    ids=["small chunks", "trailers", "extensions"],
)
async def test_what_frames_a_body_is_bounded(body: bytes, error: str | None) -> None:
    outcome = await outcome_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    assert outcome.error == error
    assert outcome.output == ("" if error else "x" * MAX_BODY)


@pytest.mark.parametrize(
    "said",
    [
        b"\x01" * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\n" + b"\xff" * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + b"\x01" * MAX_HEAD + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"Content-Length: %d\r\n" % n for n in range(5000)) + b"\r\n",
    ],
    ids=["no HTTP", "no header", "encoding", "lengths"],
)
def test_a_fault_quotes_only_the_beginning_of_what_is_long(said: bytes) -> None:
    assert len(head_fault(said, True)) < 5000


async def test_endless_redirects_fail() -> None:
    async def handler(request: Request) -> Response:
        return Response(status=302, headers=[("Location", "/")])

    outcome = await ask(handler)
    assert outcome.verdict is Verdict.FAILURE
    assert outcome.output == 'Get "/": stopped after 10 redirects'


async def test_a_large_body_is_cut_and_a_slow_answer_fails() -> None:
    async def large(request: Request) -> Response:
        return text(200, "x" * 100_000)

    assert len((await ask(large)).output) == 10 * 1024

    async def never(request: Request) -> Response:
        await trio.sleep_forever()
        raise AssertionError

    outcome = await ask(never, timeout=0.05)
    assert outcome.verdict is Verdict.FAILURE
    assert "context deadline exceeded" in outcome.output


async def test_a_closed_port_fails_with_gos_words() -> None:
    async def unused(request: Request) -> Response:
        raise AssertionError

    async with server(unused) as port:
        assert (await probe_tcp("127.0.0.1", port, 1)).verdict is Verdict.SUCCESS
    refused = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    assert await probe_tcp("127.0.0.1", port, 1) == Outcome(Verdict.FAILURE, refused)
    action = v1.HTTPGetAction(port=port, host="127.0.0.1")
    outcome = await probe_http(build_request(action, CONTAINER, ""), 1)
    assert outcome == Outcome(Verdict.FAILURE, f'Get "http://127.0.0.1:{port}/": {refused}')


@pytest.mark.parametrize("host", ["", ".example"])
async def test_https_without_a_name_names_none(host: str, tmp_path: Path) -> None:
    """A pod on the node's network has no address where there is no API server."""
    pair = PairFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    ensure_self_signed(pair, "node", time.time_ns())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    names: list[str | None] = []
    context.sni_callback = lambda stream, name, context: names.append(name)

    async def answer(request: Request) -> Response:
        return text(200, "ok")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [trio.SSLListener(each, context) for each in listeners], answer)
        request = build_request(v1.HTTPGetAction(port=port, scheme="HTTPS"), CONTAINER, "")
        request = request._replace(host=host)
        if host:
            assert _server_name(host) is None
        else:
            assert (await probe_http(request, 5)).verdict is Verdict.SUCCESS
            assert names == [None]
        nursery.cancel_scope.cancel()
