"""Requests on sockets, and the stack of connections to one server."""

from __future__ import annotations

import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
import trio

from tests.turns import others
from trio_kubelet.kube import direct
from trio_kubelet.kube.answer_bodies import BodyError
from trio_kubelet.kube.direct import DirectRequests
from trio_kubelet.kube.doors import WholeAnswer

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each piece that it receives, and keeps them; by connection."""

    def __init__(self, answer: bytes = ANSWER) -> None:
        self.answer = answer
        self.received: list[list[bytes]] = []
        self.ended = 0
        self.streams: list[trio.SocketStream] = []
        self.may_answer = trio.Event()
        self.may_answer.set()

    async def serve(self, stream: trio.SocketStream) -> None:
        pieces: list[bytes] = []
        self.received.append(pieces)
        self.streams.append(stream)
        with contextlib.suppress(trio.BrokenResourceError):
            while piece := await stream.receive_some(1 << 20):
                pieces.append(bytes(piece))
                await self.may_answer.wait()
                await stream.send_all(self.answer)
        self.ended += 1


@asynccontextmanager
async def running(server: Server, kept: int = 2, expiry: float = 60.0) -> AsyncIterator[DirectRequests]:
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        url = httpx.URL(f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        requests = DirectRequests(url, None, "", kept=kept, expiry=expiry, patience=10, socket_options=())
        yield requests
        await requests.aclose()
        nursery.cancel_scope.cancel()


async def ask(requests: DirectRequests, body: bytes | None = None, longest: int = 100) -> WholeAnswer:
    with trio.fail_after(10):
        return await requests.ask("GET" if body is None else "PUT", "/a?b", {"X": "y"}, body, longest)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def test_head_and_body_go_out_in_one_piece() -> None:
    server = Server()
    async with running(server) as requests:
        answer = await ask(requests, b"x" * 1000)
        assert answer == (200, {"content-length": "2"}, b"ok")
        await ask(requests)
    [[put, get]] = server.received
    assert put.partition(b"Host")[0] == b"PUT /a?b HTTP/1.1\r\n"
    assert put.endswith(b"X: y\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)
    assert get.partition(b"Host")[0] == b"GET /a?b HTTP/1.1\r\n"
    assert get.endswith(b"X: y\r\n\r\n")


async def test_a_large_body_is_sent_and_received_whole() -> None:
    body = bytes(range(256)) * 40_000

    class Echoes(Server):
        async def serve(self, stream: trio.SocketStream) -> None:
            taken = b""
            while not taken.endswith(body):
                taken += await stream.receive_some(1 << 20)
            await stream.send_all(b"HTTP/1.1 201 Made\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with running(Echoes()) as requests:
        answer = await ask(requests, body, longest=len(body))
    assert answer.status == 201
    assert answer.body == body


async def test_a_long_answer_that_is_there_already_leaves_others_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list of a large node takes longer to read than one turn of the loop may."""
    pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 << 20), *[b"x" * 16384] * 512]

    async def ready(connection: object, most: int) -> bytes:
        return pieces.pop(0)

    monkeypatch.setattr(direct._Connection, "receive", ready)
    async with running(Server()) as requests, others() as turns:
        connection = await requests._connected()
        requests._give_back(connection)
        before = turns.count
        answer = await ask(requests, longest=8 << 20)
        assert turns.count - before >= 20
    assert len(answer.body) == 8 << 20


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    server = Server()
    async with running(server) as requests:
        await ask(requests)
        server.streams[0].socket.shutdown(socket.SHUT_WR)
        [idle] = requests._idle
        await trio.lowlevel.wait_readable(idle.sock)  # the end has come to this side
        await ask(requests)
        await ask(requests)
    assert [len(pieces) for pieces in server.received] == [1, 2]


async def test_a_connection_on_which_the_server_says_more_is_not_used_again() -> None:
    server = Server(ANSWER + b"and more")
    async with running(server) as requests:
        await ask(requests)
        assert requests._idle == []
        server.answer = ANSWER
        await ask(requests)
        await server.streams[1].socket.send(b"unasked")
        await trio.lowlevel.wait_readable(requests._idle[0].sock)
        await ask(requests)
    assert [len(pieces) for pieces in server.received] == [1, 1, 1]


async def test_no_more_connections_stay_than_are_to_be_kept() -> None:
    server = Server()
    async with running(server, kept=2) as requests:
        server.may_answer = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask, requests)
            await until(lambda: len(server.streams) == 5)
            server.may_answer.set()
        await until(lambda: server.ended == 3)
        await ask(requests)
    assert len(server.received) == 5


async def test_idle_connections_do_not_stay_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    server = Server()
    autojump_clock.autojump_threshold = float("inf")
    async with running(server, expiry=60) as requests:
        await ask(requests)
        autojump_clock.jump(61)
        await ask(requests)
    assert [len(pieces) for pieces in server.received] == [1, 1]


async def test_a_request_that_is_given_up_costs_its_connection() -> None:
    server = Server()
    async with running(server) as requests:
        await ask(requests)
        server.may_answer = trio.Event()
        with trio.move_on_after(0.05):
            await requests.ask("GET", "/", {}, None, 100)
        assert requests._idle == []
        server.may_answer.set()
        await ask(requests)
    assert len(server.received) == 2


async def test_an_answer_that_is_longer_than_its_bound_costs_its_connection() -> None:
    packed = gzip.compress(b"x" * 1000)
    server = Server(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    )
    async with running(server) as requests:
        with pytest.raises(BodyError, match="longer than 999 bytes"):
            await ask(requests, longest=999)
        assert requests._idle == []
        assert (await ask(requests, longest=1000)).body == b"x" * 1000


@pytest.mark.parametrize("name", ["a\r\nX-Evil: b", "a\nb", "a\0b"])
async def test_nothing_is_smuggled_into_a_request(name: str) -> None:
    server = Server()
    async with running(server) as requests:
        with pytest.raises(httpx.LocalProtocolError):
            await requests.ask("GET", f"/{name}", {}, None, 100)
        with pytest.raises(httpx.LocalProtocolError):
            await requests.ask("GET", "/", {"Authorization": f"Bearer {name}"}, None, 100)
    assert server.received == []


async def test_an_answer_before_the_request_was_taken_is_read_all_the_same() -> None:
    """A server may refuse a large body without reading it."""
    refusal = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"

    class Refuses(Server):
        async def serve(self, stream: trio.SocketStream) -> None:
            await stream.receive_some(1000)
            await stream.send_all(refusal)
            await stream.send_eof()
            while await stream.receive_some(1 << 20):
                pass

    async with running(Refuses()) as requests:
        answer = await ask(requests, b"x" * 10_000_000)
        assert (answer.status, answer.body) == (413, b"no")
        assert requests._idle == []


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "status", "body", "stays"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, b"abcde", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 100 Go on\r\n\r\n" * 5 + ANSWER, 200, b"ok", True),
        (HEAD + b"Connection: x, Close\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
    ],
)
async def test_answers_of_all_kinds(answer: bytes, status: int, body: bytes, stays: bool) -> None:
    async with running(Server(answer)) as requests:
        found = await ask(requests)
        assert (found.status, found.body, bool(requests._idle)) == (status, body, stays)


async def test_headers_are_in_the_letters_of_go() -> None:
    head = b"HTTP/1.1 204 No Content\r\n" + "Warning: 299 - größe\r\nWARNING: b\r\n\r\n".encode()
    async with running(Server(head)) as requests:
        assert (await ask(requests)).headers == {"warning": "299 - größe, b"}


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        HEAD + b"no header\r\n\r\n",
        HEAD + b"Content-Length: -3\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b"A: " + b"x" * (1 << 17),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 103 E\r\n\r\n" * 6 + HEAD + b"Content-Length: 0\r\n\r\n",  # they could go on for ever
    ],
)
async def test_what_is_no_answer_costs_its_connection(answer: bytes) -> None:
    async with running(Server(answer)) as requests:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(requests)
        assert requests._idle == []


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nContent-", HEAD + b"Content-Length: 3\r\n\r\nab"]
)
async def test_an_answer_that_ends_too_early_is_an_error(answer: bytes) -> None:
    class Leaves(Server):
        async def serve(self, stream: trio.SocketStream) -> None:
            await stream.receive_some(1000)
            await stream.send_all(answer)
            await stream.aclose()

    async with running(Leaves()) as requests:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(requests)


async def test_many_small_parts_leave_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is received at once may be tens of thousands of them."""
    head, end = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"
    pieces = [head + b"1\r\n \r\n" * 20_000 + end]

    async def ready(connection: object, most: int) -> bytes:
        return pieces.pop(0)

    monkeypatch.setattr(direct._Connection, "receive", ready)
    async with running(Server()) as requests, others() as turns:
        requests._give_back(await requests._connected())
        before = turns.count
        assert (await ask(requests, longest=20_000)).status == 200
        assert turns.count - before >= 50


async def test_an_answer_that_becomes_long_when_it_is_unpacked_leaves_others_their_turns() -> None:
    body = gzip.compress(bytes(64 << 20))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with running(Server(head + body)) as requests, others() as turns:
        before = turns.count
        answer = await ask(requests, longest=64 << 20)
        assert len(answer.body) == 64 << 20
        assert turns.count - before >= 50


async def test_what_follows_the_end_of_a_packed_answer_is_not_kept() -> None:
    body = gzip.compress(b"{}") + bytes(1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running(Server(head + b"%x\r\n%s\r\n" % (len(body), body))) as requests:
        with pytest.raises(BodyError, match="behind its end"):
            await ask(requests)
        assert not requests._idle
