"""The server's end of a WebSocket against frames a client may and may not send."""

from __future__ import annotations

import struct

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.server.streams.websocket import WebSocket, WebSocketError, accept_key, masked, switch_head

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
    return head + MASK + masked(payload, MASK)


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
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n" in switch_head("x", "v5.channel.k8s.io")
    assert b"Sec-WebSocket-Protocol" not in switch_head("x", "")


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_masks(data: bytes, mask: bytes) -> None:
    assert masked(data, mask) == bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


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
        (frame(0, b"x"), "out of order"),
        (frame(2, b"x", final=False) + frame(2, b"y"), "out of order"),
        (frame(9, b"x" * 126), "control frame"),
        (frame(9, b"x", final=False), "control frame"),
        (frame(0x42, b"x"), "extension"),
        (frame(2, b"", size=1 << 25), "too long"),
    ],
)
async def test_broken_rules(sent: bytes, words: str) -> None:
    with pytest.raises(WebSocketError, match=words):
        await received(sent)


async def test_an_end_without_goodbye() -> None:
    with pytest.raises(trio.BrokenResourceError):
        await received(frame(2, b"hello")[:-1])
