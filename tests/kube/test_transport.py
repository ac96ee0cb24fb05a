"""httpx's requests over httpcore."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpcore
import httpx
import pytest
import trio

from tests.kube.test_direct import ANSWER
from trio_kubelet.kube.transport import Transport, errors_of_httpx, transport


async def ask(http: Transport, url: str) -> None:
    answer = await http.handle_async_request(httpx.Request("GET", url))
    assert await answer.aread() == b"ok"


async def test_errors_are_httpxs_also_in_the_middle_of_a_body() -> None:
    async def breaks_off(stream: trio.SocketStream) -> None:
        await stream.receive_some(1 << 16)
        await stream.send_all(ANSWER[:-1])
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, breaks_off, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        async with transport(None, None) as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await ask(http, url)
        nursery.cancel_scope.cancel()
    async with transport(None, None) as http:
        with pytest.raises(httpx.ConnectError):
            await ask(http, url)


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
async def test_informational_answers_are_bounded(piece: int) -> None:
    """Without a bound a server has the agent read them until the request's deadline."""
    before = b"HTTP/1.1 103 Early\nLink: x\n\n" + b"HTTP/1.1 100 Go on\r\n\r\n" * 4
    answers = [before + ANSWER, before + ANSWER, before + b"HTTP/1.0 199 x\r\n\r\n"]

    async def answering(stream: trio.SocketStream) -> None:
        for answer in answers:
            await stream.receive_some(1 << 16)
            for start in range(0, len(answer), piece):
                await stream.send_all(answer[start : start + piece])

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, answering, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        async with transport(None, None) as http:
            await ask(http, url)
            await ask(http, url)
            with pytest.raises(httpx.RemoteProtocolError, match="too many 1xx informational responses"):
                await ask(http, url)
        nursery.cancel_scope.cancel()


def test_every_error_of_httpcore_is_one_of_httpx() -> None:
    errors = [
        each
        for name in httpcore.__all__
        if isinstance(each := getattr(httpcore, name), type) and issubclass(each, Exception)
    ]
    assert len(errors) > 10
    for each in errors:
        if issubclass(each, httpcore.ConnectionNotAvailable):  # between the pool and its connections
            continue
        with pytest.raises(getattr(httpx, each.__name__)), errors_of_httpx():
            raise each("said")


async def test_a_proxy_is_asked_with_the_user_of_its_url() -> None:
    said: list[bytes] = []

    async def proxy(stream: trio.SocketStream) -> None:
        said.append(bytes(await stream.receive_some(1 << 16)))
        await stream.send_all(ANSWER)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, proxy, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with transport(None, f"http://me:se%40cret@127.0.0.1:{port}") as http:
            await ask(http, "http://far.example/pods")
        nursery.cancel_scope.cancel()
    assert said[0].startswith(b"GET http://far.example/pods HTTP/1.1\r\n")
    assert base64.b64encode(b"me:se@cret") in said[0]


FAR = b"\x05\x01\x00\x03\x0bfar.example\x00\x50"
SERVED = (b"GET /pods HTTP/1.1\r\nHost: far.example", ANSWER)


@asynccontextmanager
async def socks_proxy(*turns: tuple[bytes, bytes]) -> AsyncIterator[str]:
    """Its address. It expects of each connection to begin these messages, and answers so."""

    async def proxy(stream: trio.SocketStream) -> None:
        for expected, answer in turns:
            said = bytes(await stream.receive_some(1 << 16))
            assert said.startswith(expected)
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, proxy, 0, host="127.0.0.1"))
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://far.example/pods", FAR),
        ("http://10.0.0.1/pods", b"\x05\x01\x00\x01\x0a\x00\x00\x01\x00\x50"),
        ("http://[fd00::1]:8080/pods", b"\x05\x01\x00\x04\xfd" + bytes(14) + b"\x01\x1f\x90"),
    ],
)
@pytest.mark.parametrize("bound", [b"\x01" + bytes(6), b"\x03\x01a\x00\x00", b"\x04" + bytes(18)])
async def test_a_socks_proxy_connects(url: str, asked: bytes, bound: bytes) -> None:
    turns = (b"\x05\x01\x00", b"\x05\x00"), (asked, b"\x05\x00\x00" + bound), (b"GET /pods HTTP/1.1", ANSWER)
    async with socks_proxy(*turns) as proxy, transport(None, f"socks5://{proxy}") as http:
        await ask(http, url)


@pytest.mark.parametrize("methods", [b"\x05\x00", b"\x05\x02"])
async def test_a_socks_proxy_is_told_who_asks_if_it_wants_to_know(methods: bytes) -> None:
    told = [(b"\x01\x02me\x07se@cret", b"\x01\x00")] if methods[1] else []
    turns = (b"\x05\x02\x00\x02", methods), *told, (FAR, b"\x05\x00\x00\x01" + bytes(6)), SERVED
    async with socks_proxy(*turns) as proxy, transport(None, f"socks5h://me:se%40cret@{proxy}") as http:
        await ask(http, "http://far.example/pods")


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([(b"\x05", b"HTTP/1.1 400")], "unexpected protocol version 72"),
        ([(b"\x05", b"\x05\xff")], "no acceptable authentication methods"),
        ([(b"\x05", b"\x05\x02")], "no acceptable authentication methods"),
        ([(b"\x05", b"\x05\x00"), (FAR, b"\x05\x05\x00\x01" + bytes(6))], "unknown error connection refused"),
        ([(b"\x05", b"\x05\x00"), (FAR, b"\x05\x63\x00\x01" + bytes(6))], "unknown error unknown code: 99"),
        ([(b"\x05", b"\x05\x00"), (FAR, b"\x05\x00")], "EOF"),
        ([], "EOF"),
    ],
)
async def test_what_a_socks_proxy_refuses(turns: list[tuple[bytes, bytes]], why: str) -> None:
    async with socks_proxy(*turns) as proxy, transport(None, f"socks5://{proxy}") as http:
        with pytest.raises(httpx.ProxyError) as caught:
            await ask(http, "http://far.example/pods")
    assert str(caught.value) == f"socks connect tcp {proxy}->far.example:80: {why}"


async def test_a_socks_proxy_gets_the_time_of_a_connection() -> None:
    turns = (b"\x05", b"\x05"), (b"more", b"")
    asked = httpx.Request("GET", "http://far.example/", extensions={"timeout": {"connect": 0.2}})
    async with socks_proxy(*turns) as proxy, transport(None, f"socks5://{proxy}") as http:
        with trio.fail_after(10), pytest.raises(httpx.ConnectTimeout):
            await http.handle_async_request(asked)
