"""What a client of translated streams is told of how a command ended."""

from __future__ import annotations

import struct

import msgspec
import pytest
import trio

from trio_kubelet.server.http.serve import Hijack, Request, Response, serve
from trio_kubelet.server.streams.options import StreamOptions
from trio_kubelet.server.streams.translation import told_status, translate_command


@pytest.mark.parametrize(
    "said",
    [
        b'{"metadata":{},"status":"Success"}',
        b'{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: 3",'
        b'"reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}',
        b"no JSON",
        b'["no status"]',
        b'{"status":7}',
        b'{"x":' + b"[" * 60_000,
    ],
)
def test_ends_are_passed_on_as_the_runtime_says_them(said: bytes) -> None:
    assert told_status(said) == said


def test_other_failures_are_internal_errors_in_the_words_of_the_runtime() -> None:
    words = 'error executing command in container: "/nope": not found'
    said = {"metadata": {}, "status": "Failure", "message": words, "reason": "InternalError", "code": 500}
    told = msgspec.json.decode(told_status(msgspec.json.encode(said)))
    assert told == {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {words}",
        "reason": "InternalError",
        "details": {"causes": [{"message": words}]},
        "code": 500,
    }


async def test_of_an_end_that_is_told_without_end_the_beginning_is_passed_on() -> None:
    async def runtime(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\n"
        )
        for fin in (*[0] * 15, 1):  # the stream for errors is the first that is opened
            await stream.send_all(struct.pack("!II", 1, fin << 24 | 1 << 16) + bytes(1 << 16))
        await stream.send_all(struct.pack("!II", 3, 1 << 24))
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        behind = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        url = f"http://127.0.0.1:{behind.socket.getsockname()[1]}/"

        async def handle(request: Request) -> Response | Hijack:
            return await translate_command(request, url, StreamOptions(False, True, False, False), 60)

        front = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
        nursery.start_soon(trio.serve_listeners, runtime, [behind])
        await nursery.start(serve, [front], handle)
        with trio.fail_after(60):
            client = await trio.open_tcp_stream(*front.socket.getsockname())
            async with client:
                await client.send_all(
                    b"GET / HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n"
                )
                said = b"".join([bytes(data) async for data in client])
        nursery.cancel_scope.cancel()
    assert 64 * 1024 < len(said) < 65 * 1024
