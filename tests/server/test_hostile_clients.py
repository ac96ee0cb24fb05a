"""Clients that are slow, silent, malformed or too many: they harm nobody but themselves."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.turns import others
from trio_kubelet.server.http.connections import Crowd
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.http.serve import ServerLimits, serve

GOOD = b"GET /good HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
SMALL = ServerLimits(header_bytes=2048, body_bytes=1024, connections=4, connections_per_peer=4)


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """Connections in memory, made by `connect`."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](100)

    def connect(self) -> trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]:
        client, server = trio.testing.memory_stream_pair()
        self._send.send_nowait(server)
        return client

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None: ...


async def answer_ok(request: Request) -> Response | Hijack:
    return text(200, f"{request.method} {request.path}")


@asynccontextmanager
async def serving(
    listener: Listener, handler: Callable[[Request], Awaitable[Response | Hijack]]
) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [listener], handler, SMALL)
        yield nursery
        nursery.cancel_scope.cancel()


async def drain(stream: trio.abc.Stream) -> bytes:
    received = bytearray()
    try:
        while data := await stream.receive_some(65536):
            received += data
    except trio.BrokenResourceError:
        pass
    return bytes(received)


async def ask(listener: Listener, request: bytes = GOOD) -> bytes:
    client = listener.connect()
    await client.send_all(request)
    return await drain(client)


async def test_headers_that_never_end_are_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener()
    async with serving(listener, answer_ok) as nursery:
        client = listener.connect()
        began = trio.current_time()

        async def drip() -> None:
            try:
                while True:
                    await client.send_all(b"X")
                    await trio.sleep(1)
            except trio.BrokenResourceError:
                pass

        nursery.start_soon(drip)
        assert await drain(client) == b""
        assert trio.current_time() - began <= SMALL.header_seconds + 1


async def test_who_waits_for_a_place_when_the_server_ends_is_hung_up_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    listener = Listener()

    async def for_ever(request: Request) -> Response | Hijack:
        await trio.sleep_forever()
        raise AssertionError

    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [listener], for_ever, ServerLimits(connections=1))
        served = listener.connect()
        await served.send_all(GOOD)
        await trio.testing.wait_all_tasks_blocked()
        waiting = listener.connect()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with trio.fail_after(5):
        assert await drain(served) == b""
        assert await drain(waiting) == b""


async def test_a_body_that_never_comes_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener()
    async with serving(listener, answer_ok):
        answer = await ask(listener, b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 10\r\n\r\nabc")
        assert answer == b""
        assert trio.current_time() <= SMALL.body_seconds + 1


async def test_others_have_turns_between_thousands_of_chunks(autojump_clock: trio.testing.MockClock) -> None:
    """A body that came in one piece, in chunks of a byte; nobody has asked yet who sends it."""
    listener, chunks = Listener(), SMALL.body_bytes
    head = b"POST / HTTP/1.1\r\nHost: n\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(listener, answer_ok), others() as turns:
        assert b" 200 OK" in await ask(listener, head + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
        assert turns.count >= chunks


async def test_a_slow_reader_is_left(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that takes nothing of a stream loses its connection, and the stream's source is closed."""
    closed = trio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x" * 1000
        finally:
            closed.set()

    async def handler(request: Request) -> Response | Hijack:
        return Response(body=pieces())

    client, server = trio.testing.lockstep_stream_pair()
    listener = Listener()
    listener._send.send_nowait(server)
    async with serving(listener, handler):
        await client.send_all(GOOD)
        await client.receive_some(4096)  # the head, and no more
        await closed.wait()
        assert trio.current_time() <= SMALL.write_seconds + 1


async def test_a_client_that_leaves_ends_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    ended = trio.Event()

    async def handler(request: Request) -> Response | Hijack:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    listener = Listener()
    async with serving(listener, handler):
        client = listener.connect()
        await client.send_all(GOOD)
        await trio.sleep(100)
        assert not ended.is_set()
        await client.aclose()
        await ended.wait()


async def test_a_client_that_only_listens_still_gets_its_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def handler(request: Request) -> Response | Hijack:
        await trio.sleep(1)
        return text(200, "late")

    listener = Listener()
    async with serving(listener, handler):
        client = listener.connect()
        await client.send_all(GOOD)
        await client.send_stream.aclose()
        assert (await drain(client)).endswith(b"late")


async def test_pipelined_requests_are_answered_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async def handler(request: Request) -> Response | Hijack:
        await trio.sleep(1)  # the second request arrives meanwhile
        return text(200, request.path)

    listener = Listener()
    async with serving(listener, handler):
        client = listener.connect()
        await client.send_all(b"GET /1 HTTP/1.1\r\nHost: n\r\n\r\n")
        await trio.sleep(0.5)
        await client.send_all(b"GET /2 HTTP/1.1\r\nHost: n\r\n\r\n" + GOOD)
        answer = await drain(client)
        assert [answer.find(path) for path in (b"/1", b"/2", b"/good")] == sorted(
            answer.find(path) for path in (b"/1", b"/2", b"/good")
        )
        assert answer.count(b"HTTP/1.1 200 OK") == 3


async def test_a_failing_handler_is_a_500_and_no_more(autojump_clock: trio.testing.MockClock) -> None:
    async def handler(request: Request) -> Response | Hijack:
        raise RuntimeError("a bug")

    listener = Listener()
    async with serving(listener, handler):
        for _ in range(2):
            answer = await ask(listener)
            assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
            assert b"a bug" not in answer


async def test_the_longest_silent_goes_first_and_the_busy_stay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def handler(request: Request) -> Response | Hijack:
        if request.path == "/slow":
            await trio.sleep(50)
        return text(200, request.path)

    listener = Listener()
    async with serving(listener, handler):
        busy = listener.connect()
        await busy.send_all(b"GET /slow HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
        await trio.sleep(0.1)
        silent = []
        for _ in range(3):
            silent.append(listener.connect())
            await trio.sleep(0.1)
        assert (await ask(listener)).endswith(b"/good")
        assert await drain(silent[0]) == b""
        await silent[1].send_all(GOOD)
        assert (await drain(silent[1])).endswith(b"/good")
        assert (await drain(busy)).endswith(b"/slow")


async def test_one_peer_cannot_take_all_places(autojump_clock: trio.testing.MockClock) -> None:
    crowd = Crowd(total=10, per_peer=3)
    greedy = [await crowd.enter("1.1.1.1") for _ in range(3)]
    assert all(greedy)
    assert await crowd.enter("1.1.1.1") is None
    assert await crowd.enter("2.2.2.2") is not None
    place = greedy[0]
    assert place is not None
    crowd.begin_waiting(place)
    assert await crowd.enter("1.1.1.1") is not None  # its own silent connection goes
    assert place.scope.cancel_called


async def test_a_full_house_waits_until_somebody_leaves(autojump_clock: trio.testing.MockClock) -> None:
    crowd = Crowd(total=1, per_peer=1)
    first = await crowd.enter("a")
    assert first is not None
    entered = []

    async def second() -> None:
        entered.append(await crowd.enter("b"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(second)
        await trio.sleep(1)
        assert entered == []
        crowd.leave(first)
    assert len(crowd) == 1


STATUS = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) ")
WORDS = [
    *(b"GET", b"POST", b"HEAD", b"/", b"/pods", b"*", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b" ", b"\r\n"),
    *(b"\r\n\r\n", b"\n", b"Host: n", b"Content-Length: 5", b"Content-Length: -1", b": ", b"%ff", b"\x00"),
    *(b"Transfer-Encoding: chunked", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"Expect: 100-continue", b"Upgrade: x"),
    *(b"Connection: close", b"\xff\xfe", b"A" * 3000, b"?a=%00&b", b"\x16\x03\x01"),
]
words = st.sampled_from(WORDS)
garbage = st.lists(st.one_of(words, st.binary(max_size=20)), max_size=25).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(garbage, min_size=1, max_size=4))
def test_whatever_is_sent_is_answered_or_closed(pieces: list[bytes]) -> None:
    """No input ends the server or stays unanswered: next to it a good request gets its answer."""

    async def check() -> None:
        listener = Listener()
        async with serving(listener, answer_ok) as nursery:
            client = listener.connect()

            async def send() -> None:
                try:
                    for piece in pieces:
                        await client.send_all(piece)
                        await trio.sleep(0.1)
                    await client.send_stream.aclose()
                except trio.BrokenResourceError:
                    pass

            nursery.start_soon(send)
            with trio.fail_after(200):
                answer = await drain(client)
                assert not answer or STATUS.match(answer)
                assert (await ask(listener)).endswith(b"GET /good")

    trio.run(check, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_malformed_request_is_refused_in_go_s_words(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener()
    async with serving(listener, answer_ok):
        for request, status in (
            (b"GET / HTTP/1.1\r\nBad Header\r\n\r\n", b"400 Bad Request"),
            (b"GET / HTTP/1.1\r\nHost: n\r\nX: " + b"y" * 5000, b"431 Request Header Fields Too Large"),
            (
                b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 2000\r\n\r\n" + b"z" * 2000,
                b"413 Request Entity Too Large",
            ),
        ):
            answer = await ask(listener, request)
            assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n"), answer
            assert answer.endswith(b"\r\n\r\n" + status)


async def test_bodies_that_drip_make_room_too(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener()
    async with serving(listener, answer_ok):
        dripping = [listener.connect() for _ in range(4)]
        for client in dripping:
            await client.send_all(b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 10\r\n\r\nabc")
        await trio.sleep(0.1)
        assert (await ask(listener)).endswith(b"/good")
        assert trio.current_time() < 1
