"""Reading a document over real sockets: headers, redirects, limits, TLS, deadlines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cancelling import cancelled_at_each_step
from tests.kube.certs import CA
from trio_kubelet.server.http.serve import Hijack, Request, Response, serve
from trio_kubelet.sources import http
from trio_kubelet.sources.http import Answer, Fetcher, FetchError

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
    assert answer == Answer(200, b"x", '"1"')
    assert [value for name, value in asked[0].headers if name == "x-token"] == ["one", "two"]
    assert asked[0].header("if-none-match") == '"0"'


async def test_other_statuses_have_no_body() -> None:
    async with web(lambda request: Response(status=503, body=b"busy")) as (url, _):
        assert await fetcher(url).fetch({}) == Answer(503)


async def test_a_body_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_MANIFEST_BYTES", 1000)
    async with web(body(b"x" * 1000)) as (url, _):
        assert len((await fetcher(url).fetch({})).body) == 1000
    async with web(body(b"x" * 1001)) as (url, _):
        with pytest.raises(FetchError, match="longer than 1000 bytes"):
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
            with pytest.raises(FetchError, match=r"(?i)certificate verify failed"):
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
