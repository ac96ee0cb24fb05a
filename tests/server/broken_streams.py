"""Streams of every kind that end in every way, on a node's own port, beside a follower and a scraper.

A `Breaker` is a client of the real server (TLS, guard, router, handlers); behind it stands a runtime whose
streaming server speaks as much SPDY as it needs. What a stream does is a `Script`, which its client hands to
both ends: the runtime reads its number from a header that the node passes on.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import trio

from tests.server.node import Node
from tests.server.test_streaming import RUNNING, FakeRuntime, OnePod, Seen, Told, pod
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, ContainerStatus
from trio_kubelet.server.http.handshakes import HandshakePace
from trio_kubelet.server.http.serve import ServerLimits
from trio_kubelet.server.logs.container_logs import ContainerLogs
from trio_kubelet.server.logs.watch import LogWatch
from trio_kubelet.server.streams.streaming import Streaming

IDLE = 0.3  # seconds after which nothing moving ends a stream here
PIECE = b"x" * 1000
MOST_PIECES = 12
SECONDS = 30.0  # for one stream on a busy machine
_SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
_MASK = bytes(4)


class Kind(NamedTuple):
    """A kind of stream: the endpoint and how its client asks for it. `tongue`: in what its pieces are."""

    page: str
    upgrade: str = ""
    protocol: str = ""
    tongue: str = "raw"

    @property
    def name(self) -> str:
        return " ".join(
            filter(None, (self.page.partition("?")[0].strip("/").partition("/")[0], self.protocol))
        )


_CHANNELS = ("channel.k8s.io", "v2.channel.k8s.io", "v3.channel.k8s.io", "v4.channel.k8s.io")
_COMMAND = "?command=c&input=1&output=1&error=1"
KINDS = (
    *(Kind(f"/exec/n/p/main{_COMMAND}", "SPDY/3.1", protocol) for protocol in _CHANNELS),
    *(Kind(f"/exec/n/p/main{_COMMAND}", "websocket", protocol) for protocol in _CHANNELS),
    Kind(f"/exec/n/p/main{_COMMAND}", "websocket", "v5.channel.k8s.io", "v5"),
    Kind(f"/attach/n/p/main{_COMMAND}", "SPDY/3.1", "v4.channel.k8s.io"),
    Kind(f"/attach/n/p/main{_COMMAND}", "websocket", "v4.channel.k8s.io"),
    Kind(f"/attach/n/p/main{_COMMAND}", "websocket", "v5.channel.k8s.io", "v5"),
    Kind("/portForward/n/p", "SPDY/3.1", "portforward.k8s.io"),
    Kind("/portForward/n/p?port=80", "websocket", "v4.base64.channel.k8s.io"),
    Kind("/portForward/n/p", "websocket", "SPDY/3.1+portforward.k8s.io", "tunnel"),
    Kind("/containerLogs/n/p/main?follow=true", tongue="page"),
    Kind("/logs/large.log", tongue="page"),
    Kind("/metrics", tongue="page"),
)
CLIENT_ENDS = ("reset", "half-close", "close", "garbage", "silence")
RUNTIME_ENDS = ("reset", "half-close", "close", "garbage", "silence")
FLOWS = ("up", "down", "both")


class Script(NamedTuple):
    """One stream: after so many pieces (-1: before the answer to its request) somebody ends it somehow."""

    kind: Kind
    who: str
    how: str
    flow: str
    pieces: int


def scripts() -> list[Script]:
    """Each kind with each way to end it and each direction, once; pages end by their client only."""
    return [
        Script(kind, who, how, flow, 0)
        for kind in KINDS
        for who, ways in (("client", CLIENT_ENDS), ("runtime", RUNTIME_ENDS))
        for how in ways
        for flow in FLOWS
        if kind.tongue != "page" or (who == "client" and flow == "down")
    ]


class Runtime(FakeRuntime):
    """A runtime that gives the URL of its streaming server, which does what the scripts say."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.scripts: dict[int, Script] = {}
        self.open = 0
        self.life = trio.CancelScope()  # whoever cancels it sees a runtime die

    def _answer(self, asked: Any) -> str:
        return self.url

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=500)
        self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/stream"
        with self.life:
            task_status.started()
            await trio.serve_listeners(self._talk, listeners)

    async def _talk(self, stream: trio.SocketStream) -> None:
        self.open += 1
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                data = await stream.receive_some()
                if not data:
                    return
                head += data
            number = int(head.lower().partition(b"x-script: ")[2].partition(b"\r\n")[0])
            script = self.scripts[number]
            if script.who == "runtime" and script.pieces < 0:
                await end(stream, script.how)
                return
            await stream.send_all(_SWITCH)
            await act(stream, script, "runtime")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.open -= 1
            await trio.aclose_forcefully(stream)


async def act(stream: trio.abc.Stream, script: Script, me: str) -> None:
    """One end of a stream: says its pieces, hears the other's, and ends it if that is its part.

    Whose part it is not waits for the other to end it.
    """
    mine = script.who == me
    says = script.flow in (("up", "both") if me == "client" else ("down", "both"))
    rng = random.Random(hash(script))
    async with trio.open_nursery() as nursery:
        heard = trio.Event()

        async def hear() -> None:
            try:
                while await stream.receive_some(65536):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            heard.set()

        nursery.start_soon(hear)
        try:
            for _ in range(max(script.pieces, 0)):
                if says:
                    await stream.send_all(piece(script.kind.tongue, me))
                if rng.random() < 0.3:
                    await trio.sleep(rng.random() * 0.003)
            if mine:
                await end(stream, script.how)
                if script.how in ("reset", "close"):
                    nursery.cancel_scope.cancel()
            else:
                while says and not heard.is_set() and script.how != "silence":
                    await stream.send_all(piece(script.kind.tongue, me))
                    await trio.sleep(0.002)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        await heard.wait()
        nursery.cancel_scope.cancel()


def piece(tongue: str, me: str) -> bytes:
    """Some data as the two ends say it to each other through the node."""
    if tongue == "v5" and me == "runtime":
        return struct.pack("!II", 5, len(PIECE)) + PIECE  # the third stream that is opened is standard output
    if tongue in ("v5", "tunnel") and me == "client":
        payload = b"\x00" + PIECE
        return struct.pack("!BBH", 0x82, 0x80 | 126, len(payload)) + _MASK + payload
    return PIECE


async def end(stream: trio.abc.Stream, how: str) -> None:
    """Ends a stream in one of the ways."""
    inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    assert isinstance(inner, trio.SocketStream)
    if how == "reset":
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(inner)
    elif how == "half-close":
        await inner.send_eof()
    elif how == "close":
        await stream.aclose()
    elif how == "garbage":
        await stream.send_all(b"\xff\x00garbage\xff" * 20)
        await inner.send_eof()


class World:
    """The server, the log that is followed beside it, and what its followers and scrapers have seen."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "0.log"
        self.runtime = Runtime()
        self.node = Node(directory)
        self.node.limits = ServerLimits(
            connections=2048, connections_per_peer=1536, body_bytes=65536,
            handshakes=HandshakePace(per_peer=1e6, burst=10**6, total=1e6),
        )  # fmt: skip
        self.written = 0
        self.followed = 0
        self.scraped = 0
        self.slowest_scrape = 0.0
        self.broken: Counter[str] = Counter()
        self._said_large = directory / "large.log"
        self._said_large.write_bytes(b"a line of a log\n" * 200_000)
        self.log.write_bytes(b"")
        seen = ContainerStatus(id="c1", name="main", state=ContainerState.RUNNING, log_path=str(self.log))
        runtime = cast(RuntimeService, self.runtime)
        self.watch = LogWatch(period=0.02)
        streaming = Streaming(pods=OnePod(pod()), runtime=runtime, idle_seconds=IDLE)
        logs = ContainerLogs(
            pods=OnePod(pod()),
            statuses=Told(RUNNING),
            observed=Seen(seen),
            runtime=runtime,
            watch=self.watch,
            clock=SystemClock(),
            write_seconds=60,
        )
        self.node.handlers = {
            "exec": streaming.exec,
            "attach": streaming.attach,
            "port_forward": streaming.port_forward,
            "container_logs": logs.get,
        }

    def failed(self) -> float:
        """Connections and requests that ended with an error nobody expected."""
        return (
            self.node.registry.get_sample_value(
                "trio_kubelet_http_failed_connections_total", {"server_type": "readwrite"}
            )
            or 0.0
        )

    async def run(self, task: Callable[[World], Awaitable[None]]) -> None:
        """Runs `task` while a log is followed and pages are scraped, and sees that none of these breaks."""
        async with self.node.serving(), trio.open_nursery() as nursery:
            await nursery.start(self.runtime.serve)
            nursery.start_soon(self.watch.run)
            nursery.start_soon(self._write)
            await nursery.start(self._follow)
            nursery.start_soon(self._scrape)
            await task(self)
            done, scraped = self.written, self.scraped
            with trio.fail_after(SECONDS):
                while self.followed < done or self.scraped < scraped + 2 or self.runtime.open:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def break_one(self, number: int, script: Script) -> None:
        """One stream from its beginning to its end, which has to come in time."""
        self.runtime.scripts[number] = script
        self.broken[script.kind.name] += 1
        with trio.fail_after(SECONDS):
            stream = await self.node.stream()
            try:
                await stream.send_all(self._request(number, script.kind))
                if script.who == "client" and script.pieces < 0:
                    await end(stream, script.how)
                    if script.how not in ("reset", "close"):
                        await _drain(stream, 0.2)
                elif script.who == "runtime" and script.pieces < 0:
                    assert b"HTTP/1.1 5" in await some(
                        stream
                    )  # and the connection is good for another request
                elif script.kind.tongue == "page":
                    await self._read_page(stream, script)
                else:
                    await act(stream, script, "client")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                await trio.aclose_forcefully(stream)

    async def _read_page(self, stream: trio.abc.Stream, script: Script) -> None:
        """So many pieces of a page, as far as there are, then the end."""
        with trio.move_on_after(0.2):
            for _ in range(script.pieces):
                await some(stream, 4096)
        await end(stream, script.how)
        if script.how not in ("reset", "close"):
            await _drain(stream, 0.2)

    def _request(self, number: int, kind: Kind) -> bytes:
        method = "POST" if kind.upgrade.startswith("SPDY") else "GET"
        lines = [f"{method} {kind.page} HTTP/1.1", "Host: node", "Authorization: Bearer good"]
        lines.append(f"X-Script: {number}")
        if kind.upgrade:
            lines += ["Connection: Upgrade", f"Upgrade: {kind.upgrade}"]
        if kind.upgrade == "websocket":
            lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"]
            lines.append(f"Sec-WebSocket-Protocol: {kind.protocol}")
        elif kind.upgrade:
            lines.append(f"X-Stream-Protocol-Version: {kind.protocol}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def _write(self) -> None:
        """A line every 20 ms, numbered."""
        with self.log.open("ab", buffering=0) as log:
            while True:
                log.write(b"2016-10-06T00:17:09.669794202Z stdout F %d\n" % self.written)
                self.written += 1
                await trio.sleep(0.02)

    async def _follow(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Every line comes, in order, on one connection."""
        stream = await self.node.stream()
        try:
            await stream.send_all(self._request(0, Kind("/containerLogs/n/p/main?follow=true")))
            async for number in numbers_of_log(stream, task_status):
                assert number == self.followed
                self.followed += 1
        finally:
            await trio.aclose_forcefully(stream)

    async def _scrape(self) -> None:
        """A whole page of metrics on a connection of its own, again and again."""
        while True:
            began = trio.current_time()
            async with self.node.client("good") as client:
                answer = await client.get("/metrics")
            assert answer.status_code == 200
            assert b"kubelet_http_requests_total" in answer.content
            self.slowest_scrape = max(self.slowest_scrape, trio.current_time() - began)
            self.scraped += 1
            await trio.sleep(0.1)


async def numbers_of_log(
    stream: trio.abc.Stream, task_status: trio.TaskStatus[None]
) -> AsyncGenerator[int, None]:
    """The lines of a log that is followed, which are numbers; starts with the answer's head."""
    said, lines = bytearray(), bytearray()
    while b"\r\n\r\n" not in said:
        said += await some(stream)
    assert said.startswith(b"HTTP/1.1 200 "), said
    del said[: said.index(b"\r\n\r\n") + 4]
    task_status.started()
    while True:
        while (mark := said.find(b"\r\n")) >= 0:
            size = int(said[:mark], 16)
            assert size, "the log ended"
            if len(said) < mark + 4 + size:
                break
            lines += said[mark + 2 : mark + 2 + size]
            del said[: mark + 4 + size]
        *whole, rest = lines.split(b"\n")
        for line in whole:
            yield int(line)
        lines = bytearray(rest)
        said += await some(stream)


async def some(stream: trio.abc.Stream, most: int = 65536) -> bytes:
    """What comes next; there has to be something."""
    data = await stream.receive_some(most)
    assert data, "the stream ended"
    return bytes(data)


async def _drain(stream: trio.abc.Stream, seconds: float) -> None:
    """Reads on for a moment: the end has to come, or a page goes on to a client that still takes it."""
    with trio.move_on_after(seconds):
        while await stream.receive_some(65536):
            pass


async def break_all(world: World, wanted: list[Script], at_once: int) -> None:
    """Breaks streams, so many at a time."""
    turns = trio.CapacityLimiter(at_once)

    async def one(number: int, script: Script) -> None:
        async with turns:
            await world.break_one(number, script)

    async with trio.open_nursery() as nursery:
        for number, script in enumerate(wanted, 1):
            nursery.start_soon(one, number, script)
