"""What the other end of repeated calls says and reads."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hyperframe.frame import Frame

from trio_kubelet.native.pure_repeats import End, Why
from trio_kubelet.native.pure_serving import PureRepeats
from trio_kubelet.native.repeats import Repeats

BOTH = pytest.mark.parametrize("cls", [PureRepeats, Repeats], ids=["python", "c"])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/runtime.v1.RuntimeService/ExecSync"),
    (":authority", "localhost"),
]
BODY = b"\0\0\0\0\2\x0a\0"
PASSED = b"\0\0\0\0\0"
CANCEL = 8
HTTP_1 = b"HTTP/1.1 400 Bad Request\r\n\r\n"


def block(*headers: tuple[str, str]) -> bytes:
    """As a peer writes it that may use no table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    encoder.encode([])  # which takes the change of the table's size away
    encoder.encode([("a", "b")])
    return encoder.encode(headers)


HEADERS = block(*REQUEST)
HEAD = block((":status", "200"), ("content-type", "application/grpc"))
TAIL = block(("grpc-status", "0"), ("grpc-message", ""))
FAILED = block(("grpc-status", "2"), ("grpc-message", "no such container"))


def message(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4, "big") + payload


def head_of(size: int, kind: int, flags: int, stream: int) -> bytes:
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")


def answer(stream: int, data: bytes = PASSED, head: bytes = HEAD, tail: bytes = TAIL) -> bytes:
    """A whole answer, each part a frame; also for a stream that hyperframe would refuse."""
    return (
        head_of(len(head), 1, 4, stream)
        + head
        + (head_of(len(data), 0, 0, stream) + data if data else b"")
        + head_of(len(tail), 1, 5, stream)
        + tail
    )


def frames_of(data: bytes) -> list[Frame]:
    """What was put out; all of it has to be whole frames."""
    view, found = memoryview(data.removeprefix(PREFACE)), []
    while view:
        frame, size = Frame.parse_frame_header(view[:9])
        frame.parse_body(view[9 : 9 + size])
        assert len(view) >= 9 + size
        found.append(frame)
        view = view[9 + size :]
    return found


def take(repeats: PureRepeats) -> list[Frame]:
    """Sends what there is."""
    out = repeats.out()
    repeats.sent(len(out))
    assert repeats.out() == b""
    return frames_of(out)


def connected(
    cls: type[PureRepeats], calls: int = 0, period: float = 10.0, timeout: float = 1.0
) -> PureRepeats:
    """With a connection whose hello is sent, which knows the usual blocks, and calls due at 100."""
    repeats = cls(HEADERS)
    assert repeats.connected() == []
    take(repeats)
    repeats.learn(HEAD, TAIL)
    for added in range(calls):
        assert repeats.add(BODY, 100.0, period, timeout) == nth(added)
    return repeats


def nth(added: int, place: int | None = None) -> int:
    """The id of what was added after so many others, in a place of its own unless told."""
    return (added + 1) << 32 | (added if place is None else place)


def end_of(id: int, why: Why, began: float = 100.0, code: int = 0) -> End:
    """One without an answer."""
    return End(id, why, began, code, b"", b"", b"")


def lost(id: int) -> End:
    return end_of(id, Why.LOST)
