"""Clients of exec, attach and port-forward as kubectl speaks them: WebSocket channels and SPDY streams."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from trio_kubelet.server.streams.spdy import DATA, GOAWAY, RST_STREAM, SPDYConnection

SPDY_PROTOCOL = "v4.channel.k8s.io"


@dataclass
class Said:
    """What a command wrote to each channel, and how it ended."""

    channels: dict[int, bytearray] = field(default_factory=dict)

    def add(self, channel: int, data: bytes) -> None:
        self.channels.setdefault(channel, bytearray()).extend(data)

    @property
    def stdout(self) -> bytes:
        return bytes(self.channels.get(1, b""))

    @property
    def stderr(self) -> bytes:
        return bytes(self.channels.get(2, b""))

    @property
    def exit_code(self) -> int:
        """From the status on the error channel; -1 when there was none."""
        if not self.channels.get(3):
            return -1
        status = json.loads(self.channels[3])
        if status["status"] == "Success":
            return 0
        assert status["reason"] == "NonZeroExitCode", status
        causes = status["details"]["causes"]
        return next(int(cause["message"]) for cause in causes if cause["reason"] == "ExitCode")


class ChannelSocket:
    """A WebSocket with channels."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self.said = Said()

    async def send(self, channel: int, data: bytes) -> None:
        await self._socket.send_message(bytes([channel]) + data)

    async def close_channel(self, channel: int) -> None:
        """v5 only."""
        await self._socket.send_message(bytes([255, channel]))

    async def receive(self) -> tuple[int, bytes] | None:
        try:
            message = await self._socket.get_message()
        except ConnectionClosed:
            return None
        assert isinstance(message, bytes)
        self.said.add(message[0], message[1:])
        return message[0], message[1:]

    async def until(self, channel: int, wanted: bytes) -> None:
        """Receives until the channel has said `wanted`."""
        while wanted not in self.said.channels.get(channel, b""):
            assert await self.receive() is not None, self.said

    async def to_the_end(self) -> Said:
        while await self.receive() is not None:
            pass
        return self.said


async def connect(port: int, tls: bool = False) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
    """A connection to a server here; whose certificate it shows is not looked at."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    if not tls:
        return stream
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return trio.SSLStream(stream, context, https_compatible=True)


@asynccontextmanager
async def channel_socket(
    port: int, path: str, protocol: str, headers: Sequence[tuple[str, str]] = (), tls: bool = False
) -> AsyncIterator[ChannelSocket]:
    stream = await connect(port, tls)
    async with stream, trio.open_nursery() as nursery:  # the library leaves a stream open that the peer ended
        socket = await wrap_client_stream(
            nursery,
            stream,
            "node",
            path,
            subprotocols=[protocol],
            extra_headers=[(k.encode(), v.encode()) for k, v in headers],
            max_message_size=1 << 24,
        )
        assert socket.subprotocol == protocol
        yield ChannelSocket(socket)
        with trio.move_on_after(2):
            await socket.aclose()
        nursery.cancel_scope.cancel()


async def upgrade_spdy(
    port: int, path: str, protocol: str = SPDY_PROTOCOL, tls: bool = False
) -> tuple[trio.abc.Stream, bytes, bytes]:
    """The stream, the answer's head and what came behind it."""
    stream = await connect(port, tls)
    request = (
        f"POST {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
        f"X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n"
    )
    await stream.send_all(request.encode())
    said = b""
    while b"\r\n\r\n" not in said:
        data = await stream.receive_some()
        assert data, said
        said += data
    head, _, rest = said.partition(b"\r\n\r\n")
    return stream, head, rest


class SPDYCommand:
    """A command on SPDY streams."""

    CHANNELS: ClassVar = {"stdin": 0, "stdout": 1, "stderr": 2, "error": 3, "resize": 4}

    def __init__(self, connection: SPDYConnection) -> None:
        self.connection = connection
        self.said = Said()
        self.streams: dict[str, int] = {}

    async def open(self, *names: str) -> None:
        for name in names:
            self.streams[name] = await self.connection.open_stream({"streamType": name})

    async def send(self, name: str, data: bytes, fin: bool = False) -> None:
        await self.connection.send(self.streams[name], data, fin)

    async def to_the_end(self) -> Said:
        names = {number: name for name, number in self.streams.items()}
        open_streams = {n for name, n in self.streams.items() if name in ("stdout", "stderr", "error")}
        while open_streams:
            frame = await self.connection.receive()
            if frame is None or frame.kind == GOAWAY:
                break
            if frame.kind == DATA:
                self.said.add(self.CHANNELS[names[frame.stream]], frame.payload)
            if frame.fin or frame.kind == RST_STREAM:
                open_streams.discard(frame.stream)
        return self.said


@asynccontextmanager
async def spdy_command(port: int, path: str, *streams: str, tls: bool = False) -> AsyncIterator[SPDYCommand]:
    stream, head, rest = await upgrade_spdy(port, path, tls=tls)
    assert head.startswith(b"HTTP/1.1 101 "), head
    async with stream:
        command = SPDYCommand(SPDYConnection(stream, rest))
        await command.open(*streams)
        yield command


async def ask(
    port: int,
    method: str,
    path: str,
    headers: Sequence[tuple[str, str]] = (),
    tls: bool = False,
    version: str = "1.1",
) -> tuple[int, dict[str, str], bytes]:
    """A plain request on a connection of its own: status, headers, body as it came (not unchunked)."""
    stream = await connect(port, tls)
    async with stream:
        lines = [f"{method} {path} HTTP/{version}", "Host: node", "Connection: close"]
        if headers:
            lines = lines[:2] + [f"{name}: {value}" for name, value in headers]
        await stream.send_all(("\r\n".join(lines) + "\r\n\r\n").encode())
        said = b""
        while data := await stream.receive_some():
            said += data
            head, mark, body = said.partition(b"\r\n\r\n")
            found = dict(_header(line) for line in head.split(b"\r\n")[1:])
            if mark and len(body) >= int(found.get("content-length", 1 << 60)):
                break
    head, _, body = said.partition(b"\r\n\r\n")
    found = dict(_header(line) for line in head.split(b"\r\n")[1:])
    spoken, status = head.split()[:2]
    assert spoken.decode() == f"HTTP/{version}"
    return int(status), found, body


def unchunked(body: bytes) -> bytes:
    """The content of a chunked body; AssertionError unless it is whole."""
    out = b""
    while True:
        size, mark, body = body.partition(b"\r\n")
        assert mark, "a chunk is missing"
        if int(size, 16) == 0:
            return out
        out += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]


def _header(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode("latin-1").partition(":")
    return name.lower(), value.strip()


def command_query(*command: str, **flags: Any) -> str:
    """`command=…&output=1`."""
    parts = [f"command={quote(part)}" for part in command] + [f"{name}=1" for name, on in flags.items() if on]
    return "&".join(parts)
