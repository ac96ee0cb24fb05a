"""Streams into containers that their clients break, on an agent's own port, beside a log that is followed.

Each kind with every way a client may leave, at random moments; the follower misses no line, a page of metrics
comes every second. What a runtime does to a stream is tested without one (`tests/server/broken_streams.py`).
"""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from functools import partial
from typing import NamedTuple

import httpx
import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, container, pod, wait_until
from tests.containerd.test_agent_streams import OPEN
from tests.server.broken_streams import end, numbers_of_log
from tests.server.stream_clients import command_query, connect
from trio_kubelet.server.http.serve import ServerLimits
from trio_kubelet.server.streams.spdy import SPDYConnection

TALKS = "timeout 1 sh -c 'while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; usleep 1000; done'"
BUSY = "nc -ll -p 7070 -e cat & while :; do echo a line; usleep 20000; done"
COUNTS = "i=0; while :; do echo $i; i=$((i+1)); usleep 50000; done"
ENDS = ("reset", "close", "half-close", "garbage")
AT_ONCE = 8
SOAK_STREAMS = int(os.environ.get("TRIO_KUBELET_BROKEN_STREAMS", "1000"))  # of each kind
LONGEST = 0.3  # seconds before a client leaves
FLAT = 8e6  # bytes by which garbage that waits for its collection may differ


class Kind(NamedTuple):
    name: str
    page: str
    upgrade: str = ""
    protocol: str = ""


def kinds(suffix: str) -> list[Kind]:
    """`suffix`: what follows the names of static pods."""
    busy, talks = f"default/busy{suffix}", command_query("sh", "-c", TALKS, output=True, error=True)
    listens = command_query("cat", input=True, output=True)
    attached = command_query(output=True, error=True)
    spdy, ws = "SPDY/3.1", "websocket"
    v1, v2, v3 = "channel.k8s.io", "v2.channel.k8s.io", "v3.channel.k8s.io"
    v4, v5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
    return [
        Kind("exec SPDY v1, output", f"/exec/{busy}/main?{talks}", spdy, v1),
        Kind("exec SPDY v2, output", f"/exec/{busy}/main?{talks}", spdy, v2),
        Kind("exec SPDY v3, output", f"/exec/{busy}/main?{talks}", spdy, v3),
        Kind("exec SPDY, output", f"/exec/{busy}/main?{talks}", spdy, v4),
        Kind("exec SPDY, input", f"/exec/{busy}/main?{listens}", spdy, v4),
        Kind("exec v1, output", f"/exec/{busy}/main?{talks}", ws, v1),
        Kind("exec v4, output", f"/exec/{busy}/main?{talks}", ws, v4),
        Kind("exec v5, output", f"/exec/{busy}/main?{talks}", ws, v5),
        Kind("exec v5, input", f"/exec/{busy}/main?{listens}", ws, v5),
        Kind("attach SPDY", f"/attach/{busy}/main?{attached}", spdy, v4),
        Kind("attach v4", f"/attach/{busy}/main?{attached}", ws, v4),
        Kind("attach v5", f"/attach/{busy}/main?{attached}", ws, v5),
        Kind("port-forward SPDY", f"/portForward/{busy}", spdy, "portforward.k8s.io"),
        Kind("port-forward WebSocket", f"/portForward/{busy}?port=7070", ws, v4),
        Kind("port-forward tunnel", f"/portForward/{busy}", ws, "SPDY/3.1+portforward.k8s.io"),
        Kind("logs -f", f"/containerLogs/{busy}/main?follow=true"),
        Kind("metrics", "/metrics"),
        Kind("node logs", "/logs/"),
    ]


class InMessages(trio.abc.SendStream):
    """What is written to it goes out as a client's binary messages; `channel` before each."""

    def __init__(self, stream: trio.abc.Stream, channel: bytes = b"") -> None:
        self._stream = stream
        self._channel = channel

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        payload = self._channel + bytes(data)
        await self._stream.send_all(struct.pack("!BBH", 0x82, 0xFE, len(payload)) + bytes(4) + payload)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Breaker:
    """Clients that leave."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._rng = random.Random(seed)
        self.broken: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    async def one(self, kind: Kind, how: str) -> None:
        """One stream: talks until a random moment, before its answer or after, then ends it."""
        stay, early = self._rng.random() * LONGEST, self._rng.random() < 0.2
        stream = await connect(self._port, tls=True)
        self.broken[kind.name] += 1
        try:
            await stream.send_all(_request(kind))
            if early:
                await trio.sleep(stay)
            else:
                if not await self._answer(stream, kind):
                    return
                with trio.move_on_after(stay):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_talk, stream, kind)
                        while await stream.receive_some():
                            pass
                        nursery.cancel_scope.cancel()
            await end(stream, how)
            if how in ("half-close", "garbage"):
                with trio.move_on_after(stay):
                    while await stream.receive_some():
                        pass
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.abc.Stream, kind: Kind) -> bool:
        """Whether there was one; on a busy machine a handshake may take longer than the server waits."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = await stream.receive_some()
            if not data:
                return False
            head += data
        assert head.startswith(b"HTTP/1.1 101 " if kind.upgrade else b"HTTP/1.1 200 "), (kind.name, head)
        self.answered[kind.name] += 1
        return True


def _request(kind: Kind) -> bytes:
    method = "POST" if kind.upgrade.startswith("SPDY") else "GET"
    lines = [f"{method} {kind.page} HTTP/1.1", "Host: node"]
    if kind.upgrade:
        lines += ["Connection: Upgrade", f"Upgrade: {kind.upgrade}"]
    if kind.upgrade == "websocket":
        lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"]
        lines.append(f"Sec-WebSocket-Protocol: {kind.protocol}")
    elif kind.upgrade:
        lines += [f"X-Stream-Protocol-Version: {kind.protocol}", "Content-Length: 0"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _talk(stream: trio.abc.Stream, kind: Kind) -> None:
    """Opens the streams there are and sends, as long as somebody takes it."""
    framed: trio.abc.Stream = stream
    if "tunnel" in kind.name:
        framed = trio.StapledStream(InMessages(stream), stream)
    try:
        if kind.upgrade.startswith("SPDY") or "tunnel" in kind.name:
            spdy, inputs = SPDYConnection(framed), []
            if "forward" in kind.name:
                about = {"port": "7070", "requestID": "0"}
                await spdy.open_stream({"streamType": "error", **about}, fin=True)
                inputs = [await spdy.open_stream({"streamType": "data", **about})]
            else:
                for name in ("error", *(["stdin"] if "input" in kind.name else []), "stdout"):
                    number = await spdy.open_stream({"streamType": name})
                    inputs += [number] if name == "stdin" else []
            while inputs:
                await spdy.send(inputs[0], b"x" * 1000)
                await trio.sleep(0.002)
        elif kind.upgrade and ("input" in kind.name or "forward" in kind.name):
            channel = InMessages(stream, b"\0")
            while True:
                await channel.send_all(b"x" * 1000)
                await trio.sleep(0.002)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


class Follower:
    """`logs -f` of a pod that counts, and a scrape every second."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.followed = 0
        self.scraped = 0
        self.slowest = 0.0

    async def follow(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        page = f"/containerLogs/default/counter-{self._node.name}/main?follow=true"
        stream = await connect(self._node.ports.main, tls=True)
        try:
            await stream.send_all(_request(Kind("logs", page)))
            async for number in numbers_of_log(stream, task_status):
                assert number == self.followed
                self.followed += 1
        finally:
            await trio.aclose_forcefully(stream)

    async def scrape(self) -> None:
        while True:
            began = trio.current_time()
            try:
                with trio.fail_after(30):
                    answer = await self._node.get(self._node.ports.read_only, "/metrics")
                assert answer.status_code == 200
            except httpx.RemoteProtocolError:
                # A machine that stood still between connection and request for longer than the port waits.
                assert trio.current_time() - began > ServerLimits().header_seconds
            took = trio.current_time() - began
            self.slowest = max(self.slowest, took)
            self.scraped += 1
            await trio.sleep(max(0.0, 1 - took))


async def broken(node: Node, of_each: int) -> None:
    """Breaks so many streams of each kind; whatever is left then is gone after a moment."""
    await node.start_agent("-v=2", config=OPEN)
    node.write(pod("busy", container("main", BUSY)))
    node.write(pod("counter", container("main", COUNTS)))
    for name in ("busy", "counter"):
        await node.wait_running(name)
        await wait_until(partial(_is_told, node, name), 30, f"the agent tells that {name} runs")
    await node.wait_main_port()
    assert node.agent is not None
    breaker, follower = Breaker(node.ports.main, 1), Follower(node)
    wanted = [(kind, ENDS[n % len(ENDS)]) for kind in kinds(f"-{node.name}") for n in range(of_each)]
    random.Random(2).shuffle(wanted)
    turns = trio.CapacityLimiter(AT_ONCE)
    memory, handles, began = node.agent.rss_bytes(), _handles(node), trio.current_time()

    sizes = [memory]  # after each tenth of the streams

    async def one(kind: Kind, how: str) -> None:
        async with turns:
            with trio.fail_after(120):
                await breaker.one(kind, how)
        if breaker.broken.total() >= len(sizes) * len(wanted) / 10 and node.agent is not None:
            sizes.append(node.agent.rss_bytes())
            print(f"{breaker.broken.total()}: {sizes[-1] / 1e6:.1f} MB", flush=True)

    async with trio.open_nursery() as around:
        await around.start(follower.follow)
        around.start_soon(follower.scrape)
        async with trio.open_nursery() as nursery:
            for kind, how in wanted:
                nursery.start_soon(one, kind, how)
        took = trio.current_time() - began
        seen = follower.followed
        await wait_until(lambda: follower.followed > seen + 20, 30, "the log goes on")
        await wait_until(lambda: _handles(node) <= handles + 4, 30, "nothing is left open")
        grown = node.agent.rss_bytes() - memory
        around.cancel_scope.cancel()
    figures = dict(sorted(breaker.broken.items()))
    print(
        f"{sum(figures.values())} streams in {took:.0f} s, {breaker.answered.total()} after their answer; "
        f"{follower.followed} lines, {follower.scraped} scrapes, the slowest {follower.slowest:.2f} s; "
        f"memory by tenths {[round(size / 1e6, 1) for size in sizes]} MB, at the end "
        f"{grown / 1e6:+.1f} MB: {figures}"
    )
    assert set(figures.values()) == {of_each}
    if of_each >= 100:  # before that the agent's memory settles
        assert max(sizes[6:]) - max(sizes[1:6]) <= FLAT, "the agent grows with each stream"
    assert breaker.answered.total() > len(wanted) / 2
    failed = [
        line for line in (await node.metrics()).splitlines() if "http_failed_connections_total{" in line
    ]
    assert all(line.endswith(" 0.0") for line in failed), failed
    assert "Connection failed" not in node.agent.log_text()
    assert "Task failed" not in node.agent.log_text()
    await node.stop_agent()


async def _is_told(node: Node, name: str) -> bool:
    """Whether the agent has seen the pod's container: before that it has no log to give."""
    status = await node.pod_status(name)
    return any(each.get("containerID") for each in status.get("containerStatuses", []))


def _handles(node: Node) -> int:
    assert node.agent is not None
    return len(os.listdir(f"/proc/{node.agent.process.pid}/fd"))


async def test_streams_that_clients_break(new_node: NewNode) -> None:
    async with new_node() as node:
        await broken(node, 6)


@pytest.mark.soak
async def test_a_thousand_broken_streams_of_each_kind(new_node: NewNode) -> None:
    async with new_node() as node:
        await broken(node, SOAK_STREAMS)
