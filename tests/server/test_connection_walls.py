"""An error of any shape, wherever in a connection it is raised, ends that connection and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

import h11
import pytest
import trio
import trio.testing

from tests.server.test_hostile_clients import GOOD, Listener, ask, drain
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.http.serve import ServerLimits, serve

BROKEN = trio.BrokenResourceError("gone")
UNEXPECTED: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError("x"),
    "UnicodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "OverflowError": OverflowError,
    "OSError": lambda: OSError(5, "Input/output error"),
    "AssertionError": AssertionError,
    "a connection used twice": lambda: trio.BusyResourceError("another task is sending"),
    "a group": lambda: ExceptionGroup("g", [ValueError("x")]),
    "a group in a group": lambda: ExceptionGroup("g", [ExceptionGroup("h", [KeyError("x")]), BROKEN]),
    "two in a group": lambda: ExceptionGroup("g", [ValueError("x"), KeyError("y")]),
    "our own fault": lambda: h11.LocalProtocolError("too much data"),
}
EXPECTED: dict[str, Callable[[], Exception]] = {
    "a broken connection": lambda: BROKEN,
    "a closed one": lambda: trio.ClosedResourceError("closed"),
    "a deadline": trio.TooSlowError,
    "a group of them": lambda: ExceptionGroup("g", [BROKEN, ExceptionGroup("h", [trio.TooSlowError()])]),
}
Handle = Callable[[Request], Awaitable[Response | Hijack]]


def in_handler(make: Callable[[], Exception]) -> Handle:
    async def handle(request: Request) -> Response | Hijack:
        raise make()

    return handle


def in_body(make: Callable[[], Exception]) -> Handle:
    """After some of the answer has been sent."""

    class Body:
        sent = False

        def __aiter__(self) -> Body:
            return self

        async def __anext__(self) -> bytes:
            if self.sent:
                raise make()
            self.sent = True
            return b"some"

    async def handle(request: Request) -> Response | Hijack:
        return Response(body=Body())

    return handle


def in_stream(make: Callable[[], Exception]) -> Handle:
    async def take(stream: trio.abc.Stream, already: bytes) -> None:
        raise make()

    async def handle(request: Request) -> Response | Hijack:
        return Hijack(take)

    return handle


def in_task_of_stream(make: Callable[[], Exception]) -> Handle:
    """In a task beside the one that took the connection over."""

    async def fail() -> None:
        raise make()

    async def take(stream: trio.abc.Stream, already: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    async def handle(request: Request) -> Response | Hijack:
        return Hijack(take)

    return handle


PLACES = {
    "handler": in_handler,
    "body": in_body,
    "stream": in_stream,
    "task of a stream": in_task_of_stream,
}


class Told:
    """Error lines and the count."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.counted = 0

    def error(self, msg: str, /, **pairs: object) -> None:
        self.lines.append(f"{msg} {pairs}")

    def v(self, level: int) -> Told:
        return Told()

    def info(self, msg: str, /, **pairs: object) -> None:
        return None

    def count(self) -> None:
        self.counted += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    log = Told()
    monkeypatch.setattr("trio_kubelet.server.http.serve.log", log)
    return log


async def beside(hurt: Handle, told: Told) -> bytes:
    """What a client of `hurt` gets, while another one's stream goes on and a third one asks afterwards."""

    async def ticking() -> AsyncGenerator[bytes, None]:
        while True:
            await trio.sleep(1)
            yield b"tick"

    async def handle(request: Request) -> Response | Hijack:
        if request.path == "/hurt":
            return await hurt(request)
        return Response(body=ticking()) if request.path == "/follow" else text(200, "fine")

    listener = Listener()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, [listener], handle, ServerLimits(), failed=told.count))
        follower = listener.connect()
        await follower.send_all(GOOD.replace(b"/good", b"/follow"))
        said = await ask(listener, GOOD.replace(b"/good", b"/hurt"))
        assert b"fine" in await ask(listener)
        heard = b""
        while heard.count(b"tick") < 3:
            heard += await follower.receive_some(4096)
        nursery.cancel_scope.cancel()
    return said


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", UNEXPECTED)
async def test_an_unexpected_error_ends_its_connection_and_is_told_once(
    place: str, shape: str, told: Told, autojump_clock: trio.testing.MockClock
) -> None:
    said = await beside(PLACES[place](UNEXPECTED[shape]), told)
    if place == "handler":
        assert said.startswith(b"HTTP/1.1 500 ")
    assert told.counted == 1
    assert len(told.lines) == 1, told.lines
    assert "Exceptions from Trio nursery" not in told.lines[0]


@pytest.mark.parametrize("place", ["body", "stream", "task of a stream"])
@pytest.mark.parametrize("shape", EXPECTED)
async def test_peers_that_leave_are_no_errors(
    place: str, shape: str, told: Told, autojump_clock: trio.testing.MockClock
) -> None:
    await beside(PLACES[place](EXPECTED[shape]), told)
    assert (told.counted, told.lines) == (0, [])


async def test_an_error_at_the_end_of_the_server_does_not_outlive_it(
    told: Told, autojump_clock: trio.testing.MockClock
) -> None:
    """A stream that fails while it is cancelled: the server ends as if it had not."""

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in clean-up")

    async def take(stream: trio.abc.Stream, already: bytes) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()

    async def handle(request: Request) -> Response | Hijack:
        return Hijack(take)

    listener = Listener()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, [listener], handle, ServerLimits(), failed=told.count))
        client = listener.connect()
        await client.send_all(GOOD)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await drain(client) == b""
    assert told.counted == 1
