"""Connections that end at any point, by their client or by the server: nothing is left open behind them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
import trio

from tests.cancelling import cancelled_at_each_step, descriptors, no_socket_collected, settled
from tests.kube.certs import CA, trusting
from tests.server.test_streaming import RUNNING, FakeRuntime, OnePod, Seen, Told, pod
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import ContainerState, ContainerStatus
from trio_kubelet.server.http import serve as http
from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response
from trio_kubelet.server.http.serve import serve
from trio_kubelet.server.logs.container_logs import ContainerLogs
from trio_kubelet.server.logs.watch import LogWatch
from trio_kubelet.server.streams import upgrade
from trio_kubelet.server.streams.streaming import Streaming

HOST = b"Host: node\r\n"
SWITCHING = HOST + b"Connection: Upgrade\r\n"
WEBSOCKET = b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZQ==\r\nSec-WebSocket-Version: 13\r\n"
"""Each with what the client says, and the words after which it has what it wanted."""
EXCHANGES = {
    "exec by SPDY": (
        b"POST /exec?output=1 HTTP/1.1\r\n" + SWITCHING + b"Upgrade: SPDY/3.1\r\n\r\nfirst words",
        b"first words",
    ),
    "exec by v5": (
        b"GET /exec?output=1 HTTP/1.1\r\n"
        + SWITCHING
        + WEBSOCKET
        + b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n",
        b"\r\n\r\n\x82\x01",
    ),
    "port-forward by tunnel": (
        b"GET /port_forward?port=1 HTTP/1.1\r\n"
        + SWITCHING
        + WEBSOCKET
        + b"Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n\r\n",
        b"\r\n\r\n",
    ),
    "a followed log": (b"GET /logs?follow=true HTTP/1.1\r\n" + HOST + b"\r\n", b"hello"),
    "errors of a log": (b"GET /logs?stream=Stderr HTTP/1.1\r\n" + HOST + b"\r\n", b"0\r\n\r\n"),
}
EACH = pytest.mark.parametrize(("said", "wanted"), EXCHANGES.values(), ids=list(EXCHANGES))


class Runtime(FakeRuntime):
    """Gives the URL of a streaming server that switches protocols and says what it hears."""

    url = ""

    def _answer(self, asked: Any) -> str:
        return self.url


class Door(NamedTuple):
    """A server and how to get to it."""

    handler: Handler
    tls: ssl.SSLContext | None
    client_tls: ssl.SSLContext | None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = int(listeners[0].socket.getsockname()[1])
        doors: list[trio.abc.Listener[Any]] = list(listeners)
        if self.tls is not None:
            doors = [trio.SSLListener(listener, self.tls, https_compatible=True) for listener in listeners]
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(serve, doors, self.handler)
            except BaseException:
                for listener in listeners:
                    listener.socket.close()
                raise
            yield port
            nursery.cancel_scope.cancel()

    async def dial(self, port: int) -> trio.abc.Stream:
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        if self.client_tls is None:
            return plain
        return trio.SSLStream(plain, self.client_tls, server_hostname="127.0.0.1", https_compatible=True)


@asynccontextmanager
async def door(directory: Path, secure: bool) -> AsyncIterator[Door]:
    """Handlers over a runtime and a log that are there all the time."""
    log = directory / "0.log"
    log.write_bytes(b"2016-10-06T00:17:09.669794202Z stdout F hello\n")
    seen = ContainerStatus(id="c1", name="main", state=ContainerState.RUNNING, log_path=str(log))
    runtime, watch = Runtime(), LogWatch(period=0.01)
    service = cast(RuntimeService, runtime)
    streaming = Streaming(pods=OnePod(pod()), runtime=service)
    logs = ContainerLogs(
        pods=OnePod(pod()),
        statuses=Told(RUNNING),
        observed=Seen(seen),
        runtime=service,
        watch=watch,
        clock=SystemClock(),
    )
    pages = {"/exec": streaming.exec, "/port_forward": streaming.port_forward, "/logs": logs.get}

    async def handle(request: Request) -> Response | Hijack:
        params = {"podNamespace": "n", "podID": "p", "containerName": "main"}
        return await pages[request.path](msgspec.structs.replace(request, params=params))

    ca = CA()
    tls = ca.server_context(directory, ("127.0.0.1",)) if secure else None
    async with trio.open_nursery() as nursery:
        behind = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        runtime.url = f"http://127.0.0.1:{behind.socket.getsockname()[1]}/token"
        nursery.start_soon(trio.serve_listeners, echo, [behind])
        await nursery.start(watch.run)
        client_tls = trusting(ca.pem) if secure else None
        yield Door(handle, tls, client_tls)
        nursery.cancel_scope.cancel()


async def echo(stream: trio.SocketStream) -> None:
    """The runtime's streaming server."""
    async with stream:
        said = bytearray()
        while b"\r\n\r\n" not in said:
            if not (data := await stream.receive_some()):
                return
            said += data
        try:
            await stream.send_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"
                + said.partition(b"\r\n\r\n")[2]
            )
            async for more in stream:
                await stream.send_all(more)
        except trio.BrokenResourceError:
            pass


async def hear(stream: trio.abc.Stream, wanted: bytes) -> bytes:
    heard = b""
    while wanted not in heard:
        data = await stream.receive_some(4096)
        assert data, heard
        heard += data
    return heard


@pytest.fixture(autouse=True)
def _short_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.01)
    monkeypatch.setattr(upgrade, "_GOODBYE_SECONDS", 0.05)
    monkeypatch.setattr(upgrade, "_QUIET_SECONDS", 0.01)


@pytest.mark.parametrize("awake", [True, False], ids=["awake", "waiting"])
@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
@EACH
async def test_a_server_that_ends_at_any_point(
    said: bytes, wanted: bytes, secure: bool, awake: bool, tmp_path: Path
) -> None:
    async with door(tmp_path, secure) as to:

        async def once() -> None:
            async with to.open() as port, await to.dial(port) as stream:
                await stream.send_all(said)
                await hear(stream, wanted)

        assert await cancelled_at_each_step(once, awake) > 20


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
@EACH
async def test_a_client_that_leaves_at_any_point(
    said: bytes, wanted: bytes, secure: bool, tmp_path: Path
) -> None:
    """After each number of bytes it sent, and at each of its own steps."""
    async with door(tmp_path, secure) as to, to.open() as port:
        before = descriptors()
        for sent in range(0, len(said), 7):
            with no_socket_collected(f"after {sent} bytes"):
                async with await to.dial(port) as stream:
                    await stream.send_all(said[:sent])
        await settled(before, 0, "clients that left while they asked")

        async def once() -> None:
            async with await to.dial(port) as stream:
                await stream.send_all(said)
                await hear(stream, wanted)

        assert await cancelled_at_each_step(once, awake=False) > 5
