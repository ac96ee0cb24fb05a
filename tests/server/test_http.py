"""The HTTP server against well-behaved, slow and hostile peers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import h11
import pytest
import trio
import trio.testing

from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, parse_target, text
from trio_kubelet.server.http.serve import ServerLimits, serve


class _Listener(trio.abc.Listener[trio.abc.Stream]):
    """Hands out one in-memory stream, then waits."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._streams = [stream]

    async def accept(self) -> trio.abc.Stream:
        if not self._streams:
            await trio.sleep_forever()
        return self._streams.pop()

    async def aclose(self) -> None: ...


async def talk(
    handler: Handler, sent: list[bytes], limits: ServerLimits | None = None, pause: float = 0
) -> bytes:
    """Sends the pieces with a pause between them; everything the server answers until it closes."""
    client, server = trio.testing.memory_stream_pair()
    received = bytearray()
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [_Listener(server)], handler, limits or ServerLimits())

        async def send() -> None:
            for piece in sent:
                try:
                    await client.send_all(piece)
                except trio.BrokenResourceError:
                    return
                await trio.sleep(pause)

        nursery.start_soon(send)
        try:
            while data := await client.receive_some():
                received += data
        except trio.BrokenResourceError:
            pass
        nursery.cancel_scope.cancel()
    return bytes(received)


async def echo(request: Request) -> Response | Hijack:
    return text(200, f"{request.method} {request.path} {request.query} {request.body!r}\n")


async def test_answers_requests_of_one_connection_in_turn(autojump_clock: trio.testing.MockClock) -> None:
    first = b"GET /a%20b?x=1&x=2&y HTTP/1.1\r\nHost: n\r\n\r\n"
    second = b"POST /c HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    answer = await talk(echo, [first, second])
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"GET /a b {'x': ['1', '2'], 'y': ['']} b''" in answer
    assert b"POST /c {} b'abc'" in answer


async def test_an_iterated_body_is_sent_in_chunks(autojump_clock: trio.testing.MockClock) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b""
        yield b"two"

    async def handler(request: Request) -> Response | Hijack:
        return Response(body=pieces())

    answer = await talk(handler, [b"GET / HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"])
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("Host", "n")]))
    reader.receive_data(answer)
    body = bytearray()
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            body += event.data
    assert body == b"onetwo"


async def test_what_was_not_modified_keeps_its_length(autojump_clock: trio.testing.MockClock) -> None:
    """A cache would take another one for that of what it holds. The connection serves on."""

    async def handler(request: Request) -> Response | Hijack:
        return Response(status=304) if request.path == "/old" else text(200, "new")

    first = b"GET /old HTTP/1.1\r\nHost: n\r\n\r\n"
    second = b"GET / HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
    head, _, following = (await talk(handler, [first + second])).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 304")
    assert b"content-length" not in head.lower()
    assert following.endswith(b"\r\n\r\nnew")


async def test_a_hijacker_gets_the_stream_and_what_followed(autojump_clock: trio.testing.MockClock) -> None:
    async def take(stream: trio.abc.Stream, already: bytes) -> None:
        await stream.send_all(b"got:" + already + await stream.receive_some())

    async def handler(request: Request) -> Response | Hijack:
        return Hijack(take)

    head = b"GET / HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    assert await talk(handler, [head + b"first", b"second"], pause=1) == b"got:firstsecond"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET / HTTP/1.1\r\nHost: n\r\nX: " + b"a" * 200000 + b"\r\n\r\n", b"431"),
        # Whatever follows: the head would be kept until a body has come.
        (b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 9\r\n" + b"a:\r\n" * 127 + b"\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 100000\r\n\r\n" + b"a" * 100000, b"413"),
        (b"CONNECT / HTTP/1.1\r\nHost: n\r\n\r\n", b"405"),
        (b"CONNECT host:443 HTTP/1.1\r\nHost: n\r\n\r\n", b"405"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET / HTTP/0.9\r\n\r\n", b"505"),
        (b"GET healthz HTTP/1.1\r\nHost: n\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: n\r\nX: \x01\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 1\r\nExpect: foo\r\n\r\na", b"417"),
    ],
)
async def test_what_is_malformed_too_large_or_for_a_proxy_is_refused(
    autojump_clock: trio.testing.MockClock, sent: bytes, status: bytes
) -> None:
    answer = await talk(echo, [sent], ServerLimits(body_bytes=1000))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.2\r\nHost: n\r\nConnection: close\r\n\r\n",
        b"GET http://n/x HTTP/1.1\r\nHost: [fe80::1%25eth0]:10250\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\nExpect:\r\nX: \xe4\t\xff\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: n\r\nExpect: 100-Continue\r\nConnection: close\r\n\r\n",
    ],
)
async def test_what_is_rare_but_right_is_answered(
    autojump_clock: trio.testing.MockClock, sent: bytes
) -> None:
    assert (await talk(echo, [sent])).startswith(b"HTTP/1.1 200")


async def test_who_waits_for_a_word_before_the_body_hears_it(autojump_clock: trio.testing.MockClock) -> None:
    head = (
        b"PUT / HTTP/1.1\r\nHost: n\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    )
    answer = await talk(echo, [head, b"abc"], pause=1)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"b'abc'\n")


async def test_who_speaks_1_0_is_answered_so(autojump_clock: trio.testing.MockClock) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1"

    async def handler(request: Request) -> Response | Hijack:
        return Response(body=pieces())

    answer = await talk(handler, [b"GET / HTTP/1.0\r\n\r\n"])
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nHTTP/1.1")
    # What cannot be read has a version of its own, as Go's server writes it.
    assert (await talk(handler, [b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n"])).startswith(b"HTTP/1.1 400")


async def test_as_many_headers_as_may_be(autojump_clock: trio.testing.MockClock) -> None:
    head = b"GET / HTTP/1.1\r\nHost: n\r\nConnection: close\r\n" + b"a:\r\n" * 126 + b"\r\n"
    assert (await talk(echo, [head])).startswith(b"HTTP/1.1 200")


async def test_a_slow_header_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    slow = [bytes([b]) for b in b"GET / HTTP/1.1\r\nHost: n\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaa"]
    assert await talk(echo, slow, ServerLimits(header_seconds=10), pause=1) == b""
    assert trio.current_time() - began == pytest.approx(10, abs=1)


async def test_an_idle_connection_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    answer = await talk(echo, [b"GET / HTTP/1.1\r\nHost: n\r\n\r\n"], ServerLimits(idle_seconds=90))
    assert answer.startswith(b"HTTP/1.1 200")
    assert trio.current_time() - began == pytest.approx(90, abs=1)


def test_target_is_split_and_decoded() -> None:
    assert parse_target("/x%2Fy?a=%20&b") == ("/x/y", {"a": [" "], "b": [""]})
    assert parse_target("http://host:1/x/y?a=1") == ("/x/y", {"a": ["1"]})
    assert parse_target("https://host") == ("/", {})
