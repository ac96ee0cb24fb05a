"""The stack of connections to one server."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpcore
import httpx
import pytest
import trio

from trio_kubelet.kube.transport import (
    OneServer,
    Transport,
    errors_of_httpx,
    transport,
    transport_to_one_server,
)

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each piece that it receives, and keeps them; by connection."""

    def __init__(self) -> None:
        self.received: list[list[bytes]] = []
        self.ended = 0
        self.streams: list[trio.SocketStream] = []
        self.may_answer = trio.Event()
        self.may_answer.set()

    async def serve(self, stream: trio.SocketStream) -> None:
        pieces: list[bytes] = []
        self.received.append(pieces)
        self.streams.append(stream)
        while piece := await stream.receive_some(1 << 20):
            pieces.append(bytes(piece))
            await self.may_answer.wait()
            await stream.send_all(ANSWER)
        self.ended += 1


@asynccontextmanager
async def running(server: Server, kept: int = 2) -> AsyncIterator[tuple[Transport, str]]:
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        http = transport_to_one_server(None, kept, 60.0, [])
        yield http, f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        await http.aclose()
        nursery.cancel_scope.cancel()


async def ask(http: Transport, url: str, body: bytes | None = None) -> None:
    answer = await http.handle_async_request(
        httpx.Request("GET" if body is None else "PUT", url, content=body)
    )
    assert await answer.aread() == b"ok"


def pool_of(http: Transport) -> OneServer:
    assert isinstance(http.pool, OneServer)
    return http.pool


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def test_head_and_body_go_out_in_one_piece() -> None:
    server = Server()
    async with running(server) as (http, url):
        await ask(http, url, b"x" * 1000)
        await ask(http, url)
    [[put, get]] = server.received
    assert put.startswith(b"PUT / HTTP/1.1\r\n")
    assert put.endswith(b"\r\n\r\n" + b"x" * 1000)
    assert get.startswith(b"GET / HTTP/1.1\r\n")


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    server = Server()
    async with running(server) as (http, url):
        await ask(http, url)
        await server.streams[0].send_eof()
        [idle] = pool_of(http)._idle
        await until(idle.has_expired)  # the end has come to this side
        await ask(http, url)
        await ask(http, url)
    assert [len(pieces) for pieces in server.received] == [1, 2]


async def test_no_more_connections_stay_than_are_to_be_kept() -> None:
    server = Server()
    async with running(server, kept=2) as (http, url):
        server.may_answer = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, http, url)
            await until(lambda: len(server.streams) == 5)
            server.may_answer.set()
        await until(lambda: server.ended == 3)
        await ask(http, url)
    assert len(server.received) == 5


async def test_an_answer_that_nobody_reads_to_its_end_costs_its_connection() -> None:
    server = Server()
    async with running(server) as (http, url):
        answer = await http.handle_async_request(httpx.Request("GET", url))
        await answer.aclose()
        await answer.aclose()
        await ask(http, url)
    assert len(server.received) == 2


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
