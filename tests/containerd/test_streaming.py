"""Exec, attach and port-forward through the node's server into containers of a real containerd."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from tests.containerd.harness import Node, container, pod, wait_until
from tests.containerd.node_streams import Endpoints, endpoints
from tests.server.stream_clients import (
    ChannelSocket,
    SPDYCommand,
    ask,
    channel_socket,
    command_query,
    spdy_command,
    upgrade_spdy,
)
from trio_kubelet.server.streams.spdy import SPDYConnection

LARGE = 100 * 1024 * 1024
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
SERVER = "nc -ll -p 7070 -e cat"
LISTENING = f"grep -q ':{7070:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"


@asynccontextmanager
async def running(
    node: Node, name: str, script: str = "", idle: float = 600, **fields: object
) -> AsyncIterator[Endpoints]:
    """Endpoints of a node on which the pod `name` runs."""
    node.write(pod(name, container("main", script, **fields)))
    await node.wait_running(name)
    with trio.fail_after(600):
        async with endpoints(node, idle) as found:
            yield found


async def test_exit_codes_and_both_outputs(node: Node) -> None:
    """The same command by every protocol a client may speak."""
    script = "echo out; echo err >&2; exit 3"
    async with running(node, "codes") as here:
        query = command_query("sh", "-c", script, output=True, error=True)
        path = here.path("exec", "codes", f"main?{query}")
        for protocol in (V4, V5):
            async with channel_socket(here.port, path, protocol) as socket:
                said = await socket.to_the_end()
            assert (said.stdout, said.stderr, said.exit_code) == (b"out\n", b"err\n", 3), protocol
            async with channel_socket(here.tls_port, path, protocol, tls=True) as socket:
                said = await socket.to_the_end()
            assert (said.stdout, said.stderr, said.exit_code) == (b"out\n", b"err\n", 3), protocol
        for port, tls in ((here.port, False), (here.tls_port, True)):
            async with spdy_command(port, path, "error", "stdout", "stderr", tls=tls) as command:
                said = await command.to_the_end()
            assert (said.stdout, said.stderr, said.exit_code) == (b"out\n", b"err\n", 3)


async def test_half_closed_stdin(node: Node) -> None:
    """The end of the input reaches the command, and its output still comes."""
    async with running(node, "halves") as here:
        query = command_query("sh", "-c", "cat; echo over", input=True, output=True)
        path = here.path("exec", "halves", f"main?{query}")
        async with channel_socket(here.port, path, V5) as socket:
            await socket.send(0, b"by websocket ")
            await socket.until(1, b"by websocket ")
            await socket.close_channel(0)
            said = await socket.to_the_end()
        assert (said.stdout, said.exit_code) == (b"by websocket over\n", 0)
        async with spdy_command(here.port, path, "error", "stdin", "stdout") as command:
            await command.send("stdin", b"by spdy ")
            await command.send("stdin", b"", fin=True)
            said = await command.to_the_end()
        assert (said.stdout, said.exit_code) == (b"by spdy over\n", 0)


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("protocol", ["v5", "spdy"])
async def test_large_both_ways(node: Node, protocol: str, tls: bool) -> None:
    """100 MB up and the same 100 MB down again, not a byte changed."""
    piece = bytes(range(256)) * 128
    pieces = LARGE // len(piece)
    wanted = hashlib.sha256()
    got, size = hashlib.sha256(), 0
    for number in range(pieces):
        wanted.update(number.to_bytes(4, "big") + piece[4:])
    async with running(node, f"large-{protocol}-{tls}".lower()) as here:
        query = command_query("cat", input=True, output=True)
        port = here.tls_port if tls else here.port
        path = here.path("exec", f"large-{protocol}-{tls}".lower(), f"main?{query}")
        if protocol == "v5":
            async with channel_socket(port, path, V5, tls=tls) as socket, trio.open_nursery() as nursery:

                async def upload() -> None:
                    for number in range(pieces):
                        await socket.send(0, number.to_bytes(4, "big") + piece[4:])
                    await socket.close_channel(0)

                nursery.start_soon(upload)
                while (received := await socket.receive()) is not None:
                    if received[0] == 1:
                        got.update(received[1])
                        size += len(received[1])
                        socket.said.channels[1].clear()
                assert socket.said.exit_code == 0
        else:
            async with (
                spdy_command(port, path, "error", "stdin", "stdout", tls=tls) as command,
                trio.open_nursery() as nursery,
            ):

                async def upload_spdy() -> None:
                    for number in range(pieces):
                        await command.send("stdin", number.to_bytes(4, "big") + piece[4:])
                    await command.send("stdin", b"", fin=True)

                nursery.start_soon(upload_spdy)
                said = await command.to_the_end()
                assert said.exit_code == 0
                got.update(said.stdout)
                size = len(said.stdout)
    assert size == LARGE
    assert got.hexdigest() == wanted.hexdigest()


async def test_terminal_sizes(node: Node) -> None:
    """A terminal is resized by its channel; its output has no stderr of its own."""
    async with running(node, "sizes") as here:
        query = command_query("sh", input=True, output=True, error=True, tty=True)
        path = here.path("exec", "sizes", f"main?{query}")
        for protocol in (V4, V5):
            async with channel_socket(here.port, path, protocol) as socket:
                await socket.send(4, json.dumps({"Width": 101, "Height": 37}).encode())
                await socket.send(0, b"until stty size | grep 37; do sleep 0.1; done; ls /nowhere\n")
                await socket.until(1, b"37 101")
                await socket.until(1, b"No such file")
                await socket.send(0, b"exit 5\n")
                assert (await socket.to_the_end()).exit_code == 5, protocol


async def test_attach(node: Node) -> None:
    """What a client sends reaches the container's own process, once, and what that says the client.

    Containerd may take a client's first line before it shows the client any output: the answer to that line
    can be lost, the line cannot.
    """
    script = "while read line; do echo $line >> /heard; echo got $line; echo oh >&2; done; sleep 3600"
    async with running(node, "attached", script, stdin=True) as here:
        (found,) = await node.running("attached")
        path = here.path("attach", "attached", "main?input=1&output=1&error=1")
        sent: list[str] = []

        async def say(line: str, send: Callable[[bytes], Awaitable[None]]) -> None:
            while True:
                sent.append(line)
                await send(f"{line}\n".encode())
                await trio.sleep(5)

        for protocol in (V4, V5):
            async with channel_socket(here.port, path, protocol) as socket, trio.open_nursery() as nursery:
                nursery.start_soon(say, "one", partial(socket.send, 0))
                await socket.until(1, b"got one\n")
                await socket.until(2, b"oh\n")
                nursery.cancel_scope.cancel()
        async with (
            spdy_command(here.port, path, "error", "stdin", "stdout", "stderr") as command,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(say, "two", partial(command.send, "stdin"))
            await _until_stdout(command, b"got two\n")
            nursery.cancel_scope.cancel()

        async def all_heard() -> bool:
            return (await node.exec(found.id, "cat", "/heard")).splitlines() == sent

        await wait_until(all_heard, 10, f"the container has heard {sent}")


async def test_port_forward(node: Node) -> None:
    """To a server in the pod: WebSocket channels, SPDY streams, SPDY in WebSocket messages."""
    async with running(node, "ported", SERVER) as here:
        (found,) = await node.running("ported")
        await node.exec(found.id, "sh", "-c", f"until {LISTENING}; do sleep 0.1; done")
        path = here.path("portForward", "ported")
        async with channel_socket(here.port, path + "?port=7070", V4) as socket:
            port = (7070).to_bytes(2, "little")
            assert await socket.receive() == (0, port)
            assert await socket.receive() == (1, port)
            await socket.send(0, b"channels")
            await socket.until(0, b"channels")
        stream, head, rest = await upgrade_spdy(here.port, path, "portforward.k8s.io")
        assert head.startswith(b"HTTP/1.1 101 ")
        async with stream:
            assert await _forward(SPDYConnection(stream, rest), b"streams") == b"streams"
        protocol = "SPDY/3.1+portforward.k8s.io"
        async with channel_socket(here.port, path, protocol) as socket:
            tunnel = _Tunnel(socket)
            assert await _forward(SPDYConnection(tunnel), b"tunnelled") == b"tunnelled"


async def test_refusals(node: Node) -> None:
    """The kubelet's answers to what cannot be done."""
    async with running(node, "refused") as here:
        upgrade = (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", V4))
        exec_path = here.path("exec", "refused", "main")
        status, _, body = await ask(here.port, "POST", exec_path, upgrade)
        assert (status, body) == (400, b"you must specify at least 1 of stdin, stdout, stderr")
        status, _, body = await ask(here.port, "POST", f"{exec_path}?output=1&command=true")
        assert (status, body) == (500, b"Upgrade request required\n")
        other = here.path("exec", "refused", "other?output=1&command=true")
        status, _, body = await ask(here.port, "POST", other, upgrade)
        assert (status, body) == (500, b'container not found ("other")')
        status, _, body = await ask(here.port, "POST", "/exec/default/none/main?output=1", upgrade)
        assert (status, body) == (404, b"pod does not exist")
        websocket = (
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
            ("Sec-WebSocket-Version", "13"),
        )
        status, _, body = await ask(here.port, "GET", here.path("portForward", "refused"), websocket)
        assert (status, body) == (400, b'query parameter "port" is required')


async def test_run(node: Node) -> None:
    async with running(node, "runner") as here:
        path = here.path("run", "runner", "main?cmd=echo%20a%20b")
        status, headers, body = await ask(here.port, "POST", path)
        assert (status, headers["content-type"], body) == (200, "application/json", b"a b\n")
        status, _, body = await ask(here.port, "POST", here.path("run", "runner", "main?cmd=false"))
        assert (status, body) == (500, b"command 'false' exited with 1: ")


async def test_a_client_that_leaves(node: Node) -> None:
    """The runtime learns of it, and ends a command that reads its input (some seconds later, since 2.1)."""
    async with running(node, "leaver") as here:
        (found,) = await node.running("leaver")
        query = command_query("cat", input=True, output=True)
        path = here.path("exec", "leaver", f"main?{query}")
        stream, head, rest = await upgrade_spdy(here.port, path)
        assert head.startswith(b"HTTP/1.1 101 ")
        command = SPDYConnection(stream, rest)
        streams = [await command.open_stream({"streamType": name}) for name in ("error", "stdin", "stdout")]
        await command.send(streams[1], b"hello")
        while (frame := await command.receive()) is not None and frame.payload != b"hello":
            pass
        await stream.aclose()

        async def ended() -> bool:
            return " cat" not in await node.exec(found.id, "ps")

        await wait_until(ended, 30, "the command has ended", interval=0.3)


async def test_an_idle_connection_is_closed(node: Node) -> None:
    async with running(node, "idler", idle=1.0) as here:
        query = command_query("cat", input=True, output=True)
        path = here.path("exec", "idler", f"main?{query}")
        async with spdy_command(here.port, path, "error", "stdin", "stdout") as command:
            with trio.fail_after(60):
                await command.to_the_end()


async def _until_stdout(command: SPDYCommand, wanted: bytes) -> None:
    """Receives until the command has said `wanted`."""
    while wanted not in command.said.stdout:
        frame = await command.connection.receive()
        assert frame is not None
        if frame.stream == command.streams["stdout"]:
            command.said.add(1, frame.payload)


async def _forward(connection: SPDYConnection, data: bytes) -> bytes:
    """One forwarded connection: sends data, returns as much of the answer."""
    headers = {"port": "7070", "requestID": "0"}
    await connection.open_stream({"streamType": "error", **headers}, fin=True)
    number = await connection.open_stream({"streamType": "data", **headers})
    await connection.send(number, data)
    got = b""
    while len(got) < len(data):
        frame = await connection.receive()
        assert frame is not None, got
        if frame.stream == number:
            got += frame.payload if frame.kind == 0 else b""
    return got


class _Tunnel(trio.abc.Stream):
    """The stream a WebSocket's messages carry; `ChannelSocket` takes their first byte for a channel."""

    def __init__(self, socket: ChannelSocket) -> None:
        self._socket = socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        data = bytes(data)
        await self._socket.send(data[0], data[1:])

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received = await self._socket.receive()
        return b"" if received is None else bytes([received[0]]) + received[1]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
