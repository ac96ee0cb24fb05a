"""Peers that send without a pause leave the agent to others, whatever frames they send."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grpclib.config import Configuration
from grpclib.protocol import Connection, H2Protocol
from h2.config import H2Configuration

from tests.turns import others
from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.grpc.channel import connect
from trio_kubelet.grpc.connection import PacedProtocol
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import open_asyncio_loop

OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
FLOOD = 128 << 10


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 without flags."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0]) + struct.pack(">I", stream) + payload


GREETING = frame(4, 0, b"")
FRAMES = {"pings": frame(6, 0, b"x" * 8), "settings": frame(4, 0, struct.pack(">HI", 3, 100))}


@pytest.fixture(params=FRAMES)
def flooding(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A socket whose server floods who connects, and hangs up."""
    path = str(tmp_path / "p.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    one = FRAMES[request.param]

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(GREETING)
            peer.recv(1 << 16)
            peer.sendall(one * (FLOOD // len(one)))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    yield path
    thread.join()
    listener.close()


async def test_others_have_their_turns_in_between(flooding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a megabyte at a time was taken, up to 32 times in one turn: seconds."""
    monkeypatch.setattr("trio_kubelet.grpc.connection._BURST", 0.0)
    receive = H2Protocol.data_received
    taken: list[tuple[int, int]] = []  # of the flood: after how many turns of others, and bytes

    def received(protocol: H2Protocol, data: bytes) -> None:
        if data != GREETING:
            taken.append((turns.count, len(data)))
        receive(protocol, data)

    monkeypatch.setattr(H2Protocol, "data_received", received)
    async with open_asyncio_loop() as loop:
        with connect(loop, flooding) as channel:
            async with others() as turns:
                with pytest.raises(GrpcError) as error:
                    await channel.unary(OPTIONS, api.Empty(), api.DevicePluginOptions, deadline=60.0)
    assert error.value.code is Code.UNAVAILABLE
    assert sum(size for _, size in taken) > FLOOD * 0.9
    assert max(size for _, size in taken) <= 16 << 10
    assert len({count for count, _ in taken}) == len(taken)


class Machine:
    """A clock, how much the connection has had of it, and a transport that keeps what is done to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.worked = 0.0
        self.rests: list[float] = []
        self.paused = self.aborted = False
        self.max_size = self.unread = 0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.thread_time", lambda: self.worked)
        monkeypatch.setattr("asyncio.get_running_loop", lambda: self)
        monkeypatch.setattr(H2Protocol, "data_received", lambda protocol, data: self.work(data))
        self.protocol = PacedProtocol(Any, Configuration(), H2Configuration())  # type: ignore[arg-type]
        monkeypatch.setattr(Connection, "initialize", lambda connection: None)
        self.protocol.connection_made(self)

    def work(self, data: bytes) -> None:
        """A frame takes as many milliseconds as it has bytes."""
        self.worked += len(data) / 1000
        self.now += len(data) / 1000

    def get_extra_info(self, name: str) -> None: ...

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, seconds: float, resume: Callable[[], None]) -> None:
        assert self.paused
        self.rests.append(seconds)
        self.now += seconds
        resume()


def test_who_sends_without_a_pause_has_a_fifth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert machine.max_size == 16 << 10
    while machine.now < 100:
        machine.protocol.data_received(b"x" * 20)
    assert 19 < machine.worked < 21
    assert max(machine.rests) < 0.2


def test_who_sends_now_and_then_is_never_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    for _ in range(100):
        machine.protocol.data_received(b"x" * 40)
        machine.now += 0.2
    assert machine.rests == []


def test_a_peer_that_does_not_read_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.unread = 1 << 20
    machine.protocol.data_received(b"x")
    assert not machine.aborted
    machine.unread += 1
    machine.protocol.data_received(b"x")
    assert machine.aborted
