"""The server's end of a WebSocket against frames a client may and may not send."""

from __future__ import annotations

import struct

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.turns import others
from trio_kubelet.server.streams.websocket import WebSocket, WebSocketError, switch_head

MASK = b"\x01\x02\x03\x04"


def frame(kind: int, payload: bytes, final: bool = True, size: int | None = None) -> bytes:
    size = len(payload) if size is None else size
    first = kind | (0x80 if final else 0)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + MASK + bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))


async def received(sent: bytes) -> tuple[list[bytes], bytes]:
    """The messages the server sees before the goodbye, and all it says itself."""
    client, server = trio.testing.memory_stream_pair()
    socket = WebSocket(server, sent[:3])
    await client.send_all(sent[3:])
    await client.send_stream.aclose()
    messages = []
    try:
        while (message := await socket.receive()) is not None:
            messages.append(message)
    finally:
        await server.send_stream.aclose()
    said = b"".join([bytes(data) async for data in client.receive_stream])
    return messages, said


def test_the_handshake_of_the_standard() -> None:
    head = switch_head("dGhlIHNhbXBsZSBub25jZQ==", "")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in head
    assert b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n" in switch_head("x", "v5.channel.k8s.io")
    assert b"Sec-WebSocket-Protocol" not in switch_head("x", "")


async def test_messages_of_every_length() -> None:
    wanted = [b"", b"x" * 125, b"y" * 126, b"z" * 70_000]
    sent = b"".join(frame(2, message) for message in wanted)
    messages, said = await received(sent + frame(8, b"\x03\xe8"))
    assert messages == wanted
    assert said == b"\x88\x02\x03\xe8"


async def test_parts_and_pings_between_them() -> None:
    sent = frame(2, b"a", final=False) + frame(9, b"hi") + frame(0, b"b", final=False) + frame(0, b"c")
    messages, said = await received(sent + frame(10, b"") + frame(8, b""))
    assert messages == [b"abc"]
    assert said == b"\x8a\x02hi" + b"\x88\x00"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\x82\x01x..", "masked"),
        (frame(0, b"x"), "unexpected CONTINUATION"),
        (frame(2, b"x", final=False) + frame(2, b"y"), "expected CONTINUATION"),
        (frame(9, b"x" * 126), "(?i)control frame"),
        (frame(9, b"x", final=False), "control frame"),
        (frame(0x42, b"x"), "Reserved bit"),
        (frame(1, b"\xff"), "utf-8"),
    ],
)
async def test_broken_rules(sent: bytes, words: str) -> None:
    with pytest.raises(WebSocketError, match=words):
        await received(sent)


async def test_a_message_has_a_bound() -> None:
    client, server = trio.testing.memory_stream_pair()
    socket = WebSocket(server, b"")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, frame(2, b"", size=1 << 40) + bytes(17 << 20))
        with pytest.raises(WebSocketError, match="message too long"):
            await socket.receive()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ahead", [True, False])
async def test_others_have_turns_between_thousands_of_frames(ahead: bool) -> None:
    """Frames that are no message are gone through 16 KiB at a time, also those that came with the request."""
    client, server = trio.testing.memory_stream_pair()
    sent = frame(10, b"") * 20_000 + frame(2, b"hi")
    socket = WebSocket(server, sent if ahead else b"")
    async with others() as turns:
        if not ahead:
            await client.send_all(sent)
        before = turns.count
        assert await socket.receive() == b"hi"
        had = turns.count - before
        assert had >= len(sent) // (16 << 10) - 2, "one may not have begun, one not come first"


async def test_nothing_is_said_after_a_goodbye() -> None:
    client, server = trio.testing.memory_stream_pair()
    socket = WebSocket(server, b"")
    await socket.send(b"last")
    await socket.close()
    await socket.close()
    await socket.send(b"late")
    await client.send_all(frame(9, b"still there?") + frame(8, b"\x03\xe8"))
    assert await socket.receive() is None
    await server.send_stream.aclose()
    said = b"".join([bytes(data) async for data in client.receive_stream])
    assert said == b"\x82\x04last" + b"\x88\x02\x03\xe8"


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_messages_come_whole_however_the_bytes_come(messages: list[bytes], size: int) -> None:
    sent = b"".join(frame(2, message) for message in messages) + frame(8, b"")

    async def check() -> None:
        client, server = trio.testing.memory_stream_pair()
        socket, seen = WebSocket(server, sent[:size]), []
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for at in range(size, len(sent), size):
                    await client.send_all(sent[at : at + size])

            nursery.start_soon(send)
            while (message := await socket.receive()) is not None:
                seen.append(message)
        assert seen == messages

    trio.run(check)


async def test_an_end_without_goodbye() -> None:
    with pytest.raises(trio.BrokenResourceError):
        await received(frame(2, b"hello")[:-1])
