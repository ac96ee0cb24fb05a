"""Quiet watches on shared connections, against a small HTTP/2 server.

It is in this process, behind streams in memory and on a virtual clock: neither the kernel's buffers nor the
speed of the machine have a say in what happens.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import trio
import trio.testing

from tests.kube.certs import CA, trusting
from trio_kubelet.kube import shared_watches
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.shared_watches import NotShared, SharedWatches


def _port(listener: trio.SSLListener[trio.SocketStream]) -> int:
    inner = listener.transport_listener
    assert isinstance(inner, trio.SocketListener)
    return int(inner.socket.getsockname()[1])


class Server:
    """Takes watches and sends what a test wants; `status` is its answer."""

    def __init__(self, directory: Path) -> None:
        ca = CA()
        self.tls = ca.server_context(directory, ("127.0.0.1",))
        self.tls.set_alpn_protocols(["h2"])
        self.ca_pem, self.client = ca.pem, trusting(ca.pem)
        self.status = 200
        self.streams_allowed = 100
        self.silent = False
        self.connections: list[Peer] = []

    @property
    def watches(self) -> dict[str, tuple[Peer, int]]:
        """Open watches by path."""
        return {path: (peer, n) for peer in self.connections for n, path in peer.paths.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """On a port of the loopback interface."""
        listeners = await trio.open_ssl_over_tcp_listeners(0, self.tls, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self.serve, listeners)
            yield f"https://127.0.0.1:{_port(listeners[0])}"
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def in_memory(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
        """Behind every dialled address, for as long as the block lasts."""
        async with trio.open_nursery() as nursery:
            there = True

            async def dial(host: str, port: int) -> trio.abc.Stream:
                await trio.lowlevel.checkpoint()
                if not there:
                    raise OSError("nobody there")
                ours, theirs = trio.testing.memory_stream_pair()
                nursery.start_soon(self.serve, trio.SSLStream(ours, self.tls, server_side=True))
                return theirs

            monkeypatch.setattr(trio, "open_tcp_stream", dial)
            yield "https://127.0.0.1:6443"
            there = False
            nursery.cancel_scope.cancel()

    async def serve(self, stream: trio.SSLStream[Any]) -> None:
        peer = Peer(stream, self)
        self.connections.append(peer)
        try:
            await peer.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.connections.remove(peer)
            await trio.aclose_forcefully(stream)


class Peer:
    """One connection of the server."""

    def __init__(self, stream: trio.SSLStream[Any], server: Server) -> None:
        self._stream = stream
        self._server = server
        self._sending = trio.Lock()
        self.paths: dict[int, str] = {}
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))

    async def run(self) -> None:
        allowed = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._server.streams_allowed}
        self.h2.local_settings = h2.settings.Settings(client=False, initial_values=allowed)
        self.h2.initiate_connection()
        await self.flush()
        while data := await self._stream.receive_some(65536):
            if self._server.silent:
                continue
            events = self.h2.receive_data(bytes(data))
            gone = {e.stream_id for e in events if isinstance(e, h2.events.StreamReset)}
            for event in events:
                if isinstance(event, h2.events.RequestReceived) and event.stream_id not in gone:
                    self.answer(event)
            for number in gone:
                self.paths.pop(number or 0, None)
            await self.flush()

    def answer(self, event: h2.events.RequestReceived) -> None:
        number = event.stream_id or 0
        path = dict(event.headers or ())[b":path"].decode()
        status = self._server.status
        self.h2.send_headers(number, [(":status", str(status))])
        if status == 200:
            self.paths[number] = path
        else:
            body = {"kind": "Status", "message": "no relationship found", "reason": "Forbidden"}
            self.h2.send_data(number, json.dumps(body).encode(), end_stream=True)

    async def send(self, number: int, data: bytes, end: bool = False) -> None:
        """Sends when the client takes that much."""
        while self.h2.local_flow_control_window(number) < len(data):  # noqa: ASYNC110
            await trio.sleep(0.001)
        self.h2.send_data(number, data, end_stream=end)
        await self.flush()

    async def flush(self) -> None:
        async with self._sending:
            if data := self.h2.data_to_send():
                await self._stream.send_all(data)

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


class World:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.server = Server(directory)
        self.watches = SharedWatches()
        self.url = ""
        self.seen: dict[str, list[bytes | None]] = {}
        self.scopes: dict[str, trio.CancelScope] = {}

    @asynccontextmanager
    async def running(self, seconds: float = 60) -> AsyncIterator[trio.Nursery]:
        with trio.fail_after(seconds):
            async with self.server.in_memory(self._monkeypatch) as self.url, trio.open_nursery() as nursery:
                yield nursery
                nursery.cancel_scope.cancel()

    async def follow(self, name: str, ping_period: float = 60.0) -> None:
        """Notes what a watch sees; "broken" at its end if it broke."""
        seen = self.seen[name] = []
        try:
            with trio.CancelScope() as self.scopes[name]:
                url = f"{self.url}/{name}?watch=1"
                async with self.watches.open(url, {"A": "b"}, self.server.client, "", ping_period) as events:
                    while (event := await events.next_event()) is not None:
                        seen.append(event)
                    seen.append(None)
        except APIUnavailable:
            seen.append(b"broken")

    async def send(self, name: str, text: str, end: bool = False) -> None:
        peer, number = self.server.watches[f"/{name}?watch=1"]
        await peer.send(number, text.encode(), end)

    async def until_open(self, count: int) -> None:
        while len(self.server.watches) != count:  # noqa: ASYNC110
            await trio.sleep(0.01)

    async def until(self, name: str, *wanted: bytes | None) -> None:
        while self.seen[name] != list(wanted):  # noqa: ASYNC110
            await trio.sleep(0.01)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock) -> World:
    return World(tmp_path, monkeypatch)


async def test_many_watches_one_connection(world: World) -> None:
    async with world.running() as nursery:
        for number in range(50):
            nursery.start_soon(world.follow, f"w{number}")
        await world.until_open(50)
        assert len(world.server.connections) == 1
        for number in reversed(range(50)):
            await world.send(f"w{number}", f'{{"n":{number}}}\n{{"half"')
            await world.until(f"w{number}", f'{{"n":{number}}}'.encode())
        await world.send("w7", ":1}\n")
        await world.until("w7", b'{"n":7}', b'{"half":1}')
        assert sum(len(seen) for seen in world.seen.values()) == 51


async def test_whoever_leaves_the_others_go_on(world: World) -> None:
    """Each watch may be the one that reads for all."""
    async with world.running() as nursery:
        names = [f"w{number}" for number in range(8)]
        for name in names:
            nursery.start_soon(world.follow, name)
        await world.until_open(8)
        for left, name in enumerate(names[:-1], 1):
            world.scopes[name].cancel()
            await world.until_open(8 - left)
            await world.send("w7", f"{left}\n")
            await world.until("w7", *(str(n).encode() for n in range(1, left + 1)))
        assert len(world.server.connections) == 1
        world.scopes["w7"].cancel()
        while world.server.connections:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_an_event_larger_than_the_windows(world: World) -> None:
    async with world.running() as nursery:
        nursery.start_soon(world.follow, "w")
        await world.until_open(1)
        for _ in range(300):
            await world.send("w", "x" * 10_000)
        await world.send("w", "\n")
        await world.until("w", b"x" * 3_000_000)


async def test_another_connection_when_one_is_full(world: World) -> None:
    world.server.streams_allowed = 3
    async with world.running() as nursery:
        for number in range(8):
            nursery.start_soon(world.follow, f"w{number}")
        await world.until_open(8)
        assert len(world.server.connections) == 3


async def test_orderly_ends_and_broken_ones(world: World) -> None:
    async with world.running() as nursery:
        for name in ("ends", "cut", "reset", "lost"):
            nursery.start_soon(world.follow, name)
        await world.until_open(4)
        await world.send("ends", "1\n", end=True)
        await world.until("ends", b"1", None)
        await world.send("cut", "1\n2", end=True)
        await world.until("cut", b"1", b"broken")
        peer, number = world.server.watches["/reset?watch=1"]
        peer.h2.reset_stream(number)
        await peer.flush()
        await world.until("reset", b"broken")
        await world.send("lost", "1\n")
        await world.until("lost", b"1")
        await peer.close()
        await world.until("lost", b"1", b"broken")
        nursery.start_soon(world.follow, "again")
        await world.until_open(1)


async def test_a_server_that_goes_away_in_good_order(world: World) -> None:
    async with world.running() as nursery:
        nursery.start_soon(world.follow, "a")
        nursery.start_soon(world.follow, "b")
        await world.until_open(2)
        (peer,) = world.server.connections
        peer.h2.close_connection()
        await peer.flush()
        await world.until("a", None)
        await world.until("b", None)


async def test_a_silent_peer_is_noticed(world: World) -> None:
    async with world.running(600) as nursery:
        nursery.start_soon(world.follow, "a", 30)
        nursery.start_soon(world.follow, "b", 30)
        await world.until_open(2)
        await trio.sleep(300)  # it answers pings
        assert world.seen == {"a": [], "b": []}
        world.server.silent = True
        began = trio.current_time()
        await world.until("a", b"broken")
        await world.until("b", b"broken")
        assert trio.current_time() - began <= 30 + shared_watches.PONG_TIMEOUT + 1


async def test_a_connection_without_answers_is_given_up(world: World) -> None:
    async with world.running() as nursery:
        nursery.start_soon(world.follow, "a")
        await world.until_open(1)
        await trio.sleep(1)
        world.server.silent = True
        nursery.start_soon(world.follow, "b")
        while "b" not in world.seen:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await world.until("b", b"broken")
        await world.until("a", b"broken")
        world.server.silent = False
        nursery.start_soon(world.follow, "c")
        await world.until_open(1)


async def test_a_refusal_has_the_servers_words(world: World) -> None:
    world.server.status = 403
    async with world.running():
        with pytest.raises(APIError, match="no relationship found") as error:
            async with world.watches.open(f"{world.url}/w?watch=1", {}, world.server.client, "", 60):
                pass
        assert error.value.code == 403


async def test_a_status_that_is_none_ends_one_watch_and_not_the_connection(world: World) -> None:
    async with world.running() as nursery:
        nursery.start_soon(world.follow, "good")
        await world.until_open(1)
        world.server.status = "2xx"  # type: ignore[assignment]
        with pytest.raises(APIUnavailable, match="status b'2xx'"):
            async with world.watches.open(f"{world.url}/w?watch=1", {}, world.server.client, "", 60):
                pass
        await world.send("good", "still here\n")
        await world.until("good", b"still here")


async def test_a_server_without_http2_is_left_to_others(world: World) -> None:
    world.server.tls.set_alpn_protocols(["http/1.1"])
    async with world.running():
        with pytest.raises(NotShared):
            async with world.watches.open(f"{world.url}/w", {}, world.server.client, "", 60):
                pass


async def test_nobody_there(world: World) -> None:
    async with world.running():
        url = world.url
    with pytest.raises(APIUnavailable):
        async with world.watches.open(f"{url}/w", {}, world.server.client, "", 60):
            pass
