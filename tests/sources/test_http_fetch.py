"""Reading a document over real sockets: headers, redirects, limits, TLS, deadlines."""

from __future__ import annotations

import base64
import gzip
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cancelling import cancelled_at_each_step
from tests.kube.certs import CA
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.serve import serve
from trio_kubelet.sources import http
from trio_kubelet.sources.http import Fetcher, FetchError, ManifestResponse
from trio_kubelet.sources.manifest import MAX_MANIFEST_BYTES

Answering = Callable[[Request], Response | Hijack]


@asynccontextmanager
async def web(answer: Answering, tls: Any = None) -> AsyncIterator[tuple[str, list[Request]]]:
    asked: list[Request] = []

    async def handle(request: Request) -> Response | Hijack:
        asked.append(request)
        return answer(request)

    listeners: list[Any] = list(await trio.open_tcp_listeners(0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    if tls is not None:
        listeners = [trio.SSLListener(each, tls, https_compatible=True) for each in listeners]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, handle)
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/pods", asked
        nursery.cancel_scope.cancel()


def fetcher(url: str, headers: dict[str, list[str]] | None = None, ca_file: str = "") -> Fetcher:
    return Fetcher(url, headers or {}, ca_file, {})


def body(data: bytes, **headers: str) -> Answering:
    return lambda request: Response(headers=tuple(headers.items()), body=data)


async def test_headers_go_out_and_validators_come_back() -> None:
    async with web(body(b"x", ETag='"1"')) as (url, asked):
        answer = await fetcher(url, {"X-Token": ["one", "two"]}).fetch({"If-None-Match": '"0"'})
    assert answer == ManifestResponse(200, b"x", '"1"')
    assert [value for name, value in asked[0].headers if name == "x-token"] == ["one", "two"]
    assert asked[0].header("if-none-match") == '"0"'


async def test_a_configured_header_stands_for_the_agents_own() -> None:
    async with web(body(b"x")) as (url, asked):
        await fetcher(url, {"user-agent": ["mine"], "X-Empty": [""]}).fetch({})
    assert [value for name, value in asked[0].headers if name == "user-agent"] == ["mine"]
    with pytest.raises(FetchError, match="connection refused") as caught:
        await fetcher(url, {"X-Empty": [""]}).fetch({})
    assert "redacted" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "headers", "found"),
    [(301, (), ManifestResponse(301)), (200, (("Location", "/again"),), ManifestResponse(200, b"x"))],
)
async def test_what_does_not_lead_elsewhere_is_the_answer(
    status: int, headers: tuple[tuple[str, str], ...], found: ManifestResponse
) -> None:
    async with web(lambda request: Response(status=status, headers=headers, body=b"x")) as (url, asked):
        assert await fetcher(url).fetch({}) == found
    assert len(asked) == 1


async def test_other_statuses_have_no_body() -> None:
    async with web(lambda request: Response(status=503, body=b"busy")) as (url, _):
        assert await fetcher(url).fetch({}) == ManifestResponse(503)


async def test_a_body_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_MANIFEST_BYTES", 1000)
    async with web(body(b"x" * 1000)) as (url, _):
        assert len((await fetcher(url).fetch({})).body) == 1000
    async with web(body(b"x" * 1001)) as (url, _):
        with pytest.raises(FetchError, match="longer than 1000 bytes"):
            await fetcher(url).fetch({})


async def test_64_megabytes_are_not_taken_in() -> None:
    sent = 0

    async def pieces() -> AsyncGenerator[bytes, None]:
        nonlocal sent
        for _ in range(1024):
            sent += 1 << 16
            yield bytes(1 << 16)

    async with web(lambda request: Response(body=pieces())) as (url, _):
        tracemalloc.start()
        try:
            with pytest.raises(FetchError, match=f"longer than {MAX_MANIFEST_BYTES} bytes"):
                await fetcher(url).fetch({})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 3 * MAX_MANIFEST_BYTES
    assert sent < 32 << 20


async def test_a_packed_body_was_not_asked_for() -> None:
    packed = gzip.compress(bytes(64 << 20))
    async with web(body(packed, **{"Content-Encoding": "gzip"})) as (url, _):
        with pytest.raises(FetchError, match="not asked for: gzip"):
            await fetcher(url).fetch({})


@pytest.mark.parametrize("name", ["X-Long", "Set-Cookie", "Location"])
async def test_headers_beyond_the_limit_are_refused(name: str) -> None:
    headers = ((name, "x" * 200_000),)
    async with web(lambda request: Response(status=302, headers=headers)) as (url, _):
        with pytest.raises(FetchError, match=r"buffer|too large|too long|header"):
            await fetcher(url).fetch({})


async def test_informational_answers_without_end_are_refused() -> None:
    async def pour(stream: trio.abc.Stream, already: bytes) -> None:
        while True:
            await stream.send_all(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)

    async with web(lambda request: Hijack(pour)) as (url, _):
        with pytest.raises(FetchError, match="too many 1xx informational responses"):
            await fetcher(url).fetch({})


async def test_cookies_are_neither_kept_nor_sent() -> None:
    def answer(request: Request) -> Response:
        headers = [("Set-Cookie", f"c{n}=x; Path=/; Expires=" + "1" * 500) for n in range(100)]
        if request.path == "/pods":
            headers.append(("Location", "/again"))
        return Response(status=302 if request.path == "/pods" else 200, headers=headers, body=b"x")

    async with web(answer) as (url, asked):
        reader = fetcher(url)
        with trio.fail_after(20):
            for _ in range(2):
                assert (await reader.fetch({})).body == b"x"
    assert [request.path for request in asked] == ["/pods", "/again"] * 2
    assert not any(request.header("cookie") for request in asked)


async def test_a_user_in_the_url_is_told_to_the_server_alone() -> None:
    async with web(body(b"x")) as (url, asked):
        named = url.replace("://", "://some%20body:pass%3Aword@")
        await fetcher(named).fetch({})
        await fetcher(named, {"authorization": ["Bearer own"]}).fetch({})
    assert [request.header("authorization") for request in asked] == [
        "Basic " + base64.b64encode(b"some body:pass:word").decode(),
        "Bearer own",
    ]


@pytest.mark.parametrize(
    "place",
    ["http://[::bad/", "file:///etc/passwd", "http://h:99999/", "javascript:x", "http:///x"],
)
async def test_redirects_to_nowhere_are_refused(place: str) -> None:
    found = Response(status=302, headers=(("Location", place),))
    async with web(lambda request: found) as (url, _):
        with pytest.raises(FetchError):
            await fetcher(url).fetch({})


async def test_redirects_stay_at_home_when_there_are_headers() -> None:
    async with web(body(b"there")) as (there, seen):

        def answer(request: Request) -> Response:
            if request.path == "/pods":
                return Response(status=302, headers=(("Location", "/again"),))
            if request.path == "/again":
                return Response(status=307, headers=(("Location", there),))
            return Response(body=b"loop")

        async with web(answer) as (url, _):
            assert (await fetcher(url).fetch({})).body == b"there"
            assert len(seen) == 1
            with pytest.raises(FetchError, match="configured headers") as caught:
                await fetcher(url, {"Authorization": ["Bearer secret"]}).fetch({})
    assert len(seen) == 1
    assert "secret" not in str(caught.value)


async def test_redirects_do_not_go_on_for_ever() -> None:
    loop = Response(status=302, headers=(("Location", "/pods"),))
    async with web(lambda request: loop) as (url, asked):
        with pytest.raises(FetchError, match="redirects"):
            await fetcher(url).fetch({})
    assert len(asked) == 11


async def test_certificates_are_checked(tmp_path: Path) -> None:
    ca = CA()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    (tmp_path / "other.pem").write_bytes(CA().pem)
    (tmp_path / "broken.pem").write_bytes(b"no certificate")
    async with web(body(b"x"), ca.server_context(tmp_path, ("127.0.0.1",))) as (url, _):
        assert (await fetcher(url, ca_file=str(tmp_path / "ca.pem")).fetch({})).body == b"x"
        for other in ("other.pem", ""):
            with pytest.raises(FetchError, match=r"x509: certificate signed by unknown authority$"):
                await fetcher(url, ca_file=str(tmp_path / other) if other else "").fetch({})
        for unreadable in ("broken.pem", "absent.pem"):
            with pytest.raises(FetchError, match=unreadable.removesuffix(".pem")):
                await fetcher(url, ca_file=str(tmp_path / unreadable)).fetch({})


@pytest.mark.parametrize("awake", [True, False], ids=["awake", "waiting"])
async def test_a_read_that_is_given_up_leaves_no_connection(awake: bool, tmp_path: Path) -> None:
    ca = CA()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    async with web(body(b"x" * 100_000), ca.server_context(tmp_path, ("127.0.0.1",))) as (url, _):
        reader = fetcher(url, ca_file=str(tmp_path / "ca.pem"))
        assert await cancelled_at_each_step(lambda: reader.fetch({}), awake) > 10


async def test_a_slow_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "TIMEOUT", 0.3)

    async def dribble() -> AsyncIterator[bytes]:
        while True:
            yield b"#"
            await trio.sleep(0.05)

    async with web(lambda request: Response(body=dribble())) as (url, _):
        with pytest.raises(FetchError, match=r"within 0\.3s"):
            await fetcher(url).fetch({})


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "nonsense", "ftp://h/x", "http://[::bad/x"])
async def test_what_cannot_be_reached_is_an_error_without_secrets(url: str) -> None:
    with pytest.raises(FetchError) as caught:
        await fetcher(url, {"Authorization": ["Bearer secret"]}).fetch({})
    assert str(caught.value)
    assert "secret" not in str(caught.value)
