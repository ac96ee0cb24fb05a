"""Pass-through of upgraded connections: what is forwarded, what is refused, how closing is carried."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.server.stream_clients import ask
from trio_kubelet.server.http.messages import Hijack, Request, Response, parse_target
from trio_kubelet.server.http.serve import serve
from trio_kubelet.server.streams.options import (
    BadStreamOptions,
    StreamOptions,
    read_ports,
    read_stream_options,
)
from trio_kubelet.server.streams.upgrade import BUFFER, pass_through, pass_to_runtime

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
UPGRADE = (("Connection", "Upgrade"), ("Upgrade", "x"))
Runtime = Callable[[trio.SocketStream, bytes], Awaitable[None]]


@asynccontextmanager
async def node(runtime: Runtime) -> AsyncIterator[int]:
    """Port of a server that passes everything to `runtime`, which gets what was sent up to the head's end."""

    async def talk(stream: trio.SocketStream) -> None:
        async with stream:
            said = b""
            while b"\r\n\r\n" not in said:
                said += await stream.receive_some()
            await runtime(stream, said)

    async with trio.open_nursery() as nursery:
        behind = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        url = f"http://127.0.0.1:{behind.socket.getsockname()[1]}/exec/token?x=1"

        async def handle(request: Request) -> Response | Hijack:
            return await pass_to_runtime(request, url, 60)

        front = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        nursery.start_soon(trio.serve_listeners, talk, [behind])
        await nursery.start(serve, [front], handle)
        with trio.fail_after(60):
            yield front.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_what_the_runtime_gets() -> None:
    """The client's request on the runtime's URL, without what the client showed to the node alone."""
    heads: list[bytes] = []

    async def runtime(stream: trio.SocketStream, said: bytes) -> None:
        heads.append(said)
        await stream.send_all(SWITCH)

    secret = ("Authorization", "Bearer secret")
    async with node(runtime) as port:
        status, _, _ = await ask(port, "POST", "/exec/a/b?command=c", (*UPGRADE, secret, ("X-Own", "1")))
    assert status == 101
    lines = heads[0].decode().lower().split("\r\n")
    assert lines[0] == "post /exec/token?x=1 http/1.1"
    assert {"host: node", "upgrade: x", "connection: upgrade", "x-own: 1"} <= set(lines)
    assert "x-forwarded-for: 127.0.0.1" in lines
    assert "secret" not in heads[0].decode()


async def test_early_bytes_both_ways() -> None:
    """What stood behind the request, and behind the switch, arrives; so do the last words of either end."""

    async def runtime(stream: trio.SocketStream, said: bytes) -> None:
        await stream.send_all(SWITCH + b"early;")
        rest = said.partition(b"\r\n\r\n")[2]
        async for data in stream:
            rest += data
        await stream.send_all(b"got " + rest)

    async with node(runtime) as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(
                b"GET / HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello "
            )
            await stream.send_all(b"world")
            await stream.send_eof()
            said = b"".join([bytes(data) async for data in stream])
    assert said == SWITCH + b"early;got hello world"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\nX-Why: y\r\n\r\nno!", 403, b"no!"),
        (b"HTTP/1.1 404 Not Found\r\n\r\ngone", 404, b"gone"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            500,
            b"invalid upgrade response: status code 200\n",
        ),
        (b"", 500, b"unexpected EOF\n"),
    ],
)
async def test_refusals_of_the_runtime(answer: bytes, status: int, body: bytes) -> None:
    async def runtime(stream: trio.SocketStream, said: bytes) -> None:
        await stream.send_all(answer)

    async with node(runtime) as port:
        found = await ask(port, "GET", "/", UPGRADE)
    assert (found[0], found[2]) == (status, body)
    assert found[1].get("x-why") == ("y" if status == 403 else None)


async def test_a_runtime_that_says_nothing_but_wait() -> None:
    async def runtime(stream: trio.SocketStream, said: bytes) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)

    async with node(runtime) as port:
        status, _, body = await ask(port, "POST", "/exec/a/b", UPGRADE)
    assert (status, body) == (500, b"net/http: server response headers exceeded limit\n")


async def test_no_runtime_and_no_upgrade() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    free = listener.socket.getsockname()[1]
    await listener.aclose()
    upgrade = (("connection", "Upgrade"), ("upgrade", "x"))
    plain = Request(method="GET", path="/", target="/", query={}, headers=())
    answer = await pass_to_runtime(plain, f"http://127.0.0.1:{free}/", 60)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (500, b"Upgrade request required\n")
    request = Request(method="GET", path="/", target="/", query={}, headers=upgrade)
    for url, words in (
        (f"http://127.0.0.1:{free}/", b"error dialing backend: "),
        ("ftp://x/", b"unknown scheme"),
    ):
        answer = await pass_to_runtime(request, url, 60)
        assert isinstance(answer, Response)
        assert answer.status == 500
        assert isinstance(answer.body, bytes)
        assert words in answer.body


async def test_who_does_not_read_holds_the_other_back() -> None:
    """Between two ends that hand over byte for byte the node keeps one buffer each way."""
    client, near = trio.testing.lockstep_stream_pair()
    far, runtime = trio.testing.lockstep_stream_pair()
    sent = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_through, near, b"", far, b"", 0)

        async def send() -> None:
            nonlocal sent
            while True:
                await client.send_all(bytes(BUFFER))
                sent += BUFFER

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert sent <= BUFFER
        assert len(await runtime.receive_some(BUFFER)) == BUFFER
        await trio.testing.wait_all_tasks_blocked()
        assert BUFFER <= sent <= 2 * BUFFER
        nursery.cancel_scope.cancel()


async def test_idle_connections_end(autojump_clock: trio.testing.MockClock) -> None:
    """Counted from the last byte in either direction; the runtime's end is closed too."""
    client, near = trio.testing.memory_stream_pair()
    far, runtime = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_through, near, b"", far, b"", 30)
        for end in (client, runtime, client):
            await trio.sleep(20)
            await end.send_all(b"x")
        began = trio.current_time()
        assert await client.receive_some() == b"x"
        assert await client.receive_some() == b""
        assert 29 < trio.current_time() - began < 32
        assert await runtime.receive_some() == b"xx"
        with pytest.raises(trio.BrokenResourceError):
            await runtime.send_all(b"x")


class Reset(trio.abc.Stream):
    """A connection that is reset as soon as something is read from it."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_client_that_is_gone_ends_the_runtime_side(autojump_clock: trio.testing.MockClock) -> None:
    """At once, also while something is being sent to it."""
    far, runtime = trio.testing.memory_stream_pair()
    await runtime.send_all(b"to nobody")
    await pass_through(Reset(), b"", far, b"", 0)
    assert trio.current_time() < 1
    assert await runtime.receive_some() == b""


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("input=1&output=1&error=1&tty=0", (True, True, True, False)),
        ("output=1&error=1&tty=1", (False, True, False, True)),
        ("input=1&output=true", (True, False, False, False)),
    ],
)
def test_stream_options(query: str, wanted: tuple[bool, bool, bool, bool]) -> None:
    assert read_stream_options(parse_target(f"/?{query}")[1]) == StreamOptions(*wanted)


@pytest.mark.parametrize("query", ["", "output=yes", "error=1&tty=1", "output=0&output=1"])
def test_no_stream_at_all(query: str) -> None:
    with pytest.raises(BadStreamOptions, match="you must specify at least 1 of stdin, stdout, stderr"):
        read_stream_options(parse_target(f"/?{query}")[1])


def test_ports() -> None:
    assert read_ports({"port": ["80,443", "8080"]}) == [80, 443, 8080]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], 'query parameter "port" is required'),
        ([""], 'query parameter "port" cannot be empty'),
        (["0"], 'port "0" must be > 0'),
        (["x"], 'unable to parse "x" as a port: strconv.ParseUint: parsing "x": invalid syntax'),
        (
            ["1,70000"],
            'unable to parse "1,70000" as a port: strconv.ParseUint: parsing "70000": value out of range',
        ),
    ],
)
def test_bad_ports(given: list[str], words: str) -> None:
    with pytest.raises(BadStreamOptions) as caught:
        read_ports({"port": given})
    assert str(caught.value) == words
