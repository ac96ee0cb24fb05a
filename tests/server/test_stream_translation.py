"""What a client of translated streams is told of how a command ended."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable

import msgspec
import pytest
import trio

from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.serve import serve
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


SPDY_HEAD = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n"
FIN = 1 << 24


async def translated(runtime: Callable[[trio.SocketStream], Awaitable[None]]) -> bytes:
    """What a client of version 5 gets of a command whose output it wants, by such a runtime."""
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
    return said


async def test_of_an_end_that_is_told_without_end_the_beginning_is_passed_on() -> None:
    async def runtime(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(SPDY_HEAD + b"\r\n")
        for fin in (*[0] * 15, FIN):  # the stream for errors is the first that is opened
            await stream.send_all(struct.pack("!II", 1, fin | 1 << 16) + bytes(1 << 16))
        await stream.send_all(struct.pack("!II", 3, FIN))
        await trio.sleep_forever()

    assert 64 * 1024 < len(await translated(runtime)) < 65 * 1024


@pytest.mark.parametrize(
    ("version", "status", "told"),
    [
        ("v4", b"", b"the connection to the runtime ended before the command did"),
        ("v4", b'{"status":"Success"}', b'{"status":"Success"}'),
        ("v3", b"", None),  # which tells no success
    ],
)
async def test_a_command_whose_runtime_goes_has_not_succeeded(
    version: str, status: bytes, told: bytes | None
) -> None:
    """For a client that hears nothing of its end it has: `kubectl exec` ended with 0."""

    async def runtime(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(
            SPDY_HEAD + f"X-Stream-Protocol-Version: {version}.channel.k8s.io\r\n\r\n".encode()
        )
        await stream.send_all(struct.pack("!II", 1, len(status)) + status)
        await stream.send_eof()
        async for _ in stream:
            pass

    said = await translated(runtime)
    assert said.endswith(b"\x88\x02\x03\xe8")  # a goodbye in good order
    assert (b"\x03{" in said) is (told is not None)
    assert told is None or told in said
