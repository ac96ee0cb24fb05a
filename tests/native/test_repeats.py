"""Repeated calls against what HTTP/2 and gRPC ask for, and the C code against the plain-Python twin."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, RemoteSettingsChanged
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from trio_kubelet.native.pure_repeats import (
    AT_ONCE,
    BLOCKS,
    MAX_ANSWER,
    MAX_BLOCK,
    MAX_BODY,
    MAX_OUT,
    MAX_PASSED,
    TOGETHER,
    End,
    PureRepeats,
    Why,
    says_success,
)
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


@BOTH
def test_hello_and_requests_are_what_a_server_reads(cls: type[PureRepeats]) -> None:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    repeats = cls(HEADERS)
    assert (repeats.is_connected, repeats.is_odd, repeats.takes_calls) == (False, False, False)
    assert repeats.out() == b""
    assert repeats.add(BODY, 5.0, 10.0, 1.0) == nth(0)
    assert repeats.connected() == []
    assert (repeats.is_connected, repeats.takes_calls) == (True, True)
    events = server.receive_data(repeats.out())
    changed = next(event for event in events if isinstance(event, RemoteSettingsChanged))
    values = {code: change.new_value for code, change in changed.changed_settings.items()}
    assert values[SettingCodes.HEADER_TABLE_SIZE] == 0
    assert values[SettingCodes.ENABLE_PUSH] == 0
    assert server.outbound_flow_control_window == 2**31 - 1
    repeats.sent(len(repeats.out()))
    assert repeats.turn(5.0, AT_ONCE) == []
    got = [type(event).__name__ for event in server.receive_data(repeats.out())]
    assert got == ["RequestReceived", "DataReceived", "StreamEnded"]
    repeats.sent(len(repeats.out()))
    server.send_headers(1, [(":status", "200")])
    server.send_data(1, PASSED)
    server.send_headers(1, [("grpc-status", "0")], end_stream=True)
    (end,) = repeats.received(server.data_to_send(), 5.5)
    assert (end.why, end.data) == (Why.ANSWERED, PASSED)
    assert end.head[:1] == b"\x20"  # the table is made smaller, once
    assert not [event for event in server.receive_data(repeats.out()) if is_error(event)]


def is_error(event: Event) -> bool:
    return type(event).__name__ in ("ConnectionTerminated", "StreamReset")


@BOTH
def test_a_life(cls: type[PureRepeats]) -> None:
    repeats = cls(HEADERS)
    repeats.connected()
    take(repeats)
    assert repeats.next == math.inf
    assert repeats.newest == -math.inf
    assert repeats.add(BODY, 100.0, 10.0, 1.0) == nth(0)
    assert repeats.next == 100.0
    assert repeats.turn(99.9, 5) == []
    assert repeats.out() == b""
    assert repeats.turn(100.25, 5) == []
    head, data = take(repeats)
    assert isinstance(head, HeadersFrame)
    assert isinstance(data, DataFrame)
    assert (head.data, head.stream_id, set(head.flags)) == (HEADERS, 1, {"END_HEADERS"})
    assert (data.data, data.stream_id, set(data.flags)) == (BODY, 1, {"END_STREAM"})
    assert (repeats.under_way, repeats.newest, repeats.next) == (1, 100.25, 101.25)
    # Nobody knows yet what these blocks say.
    assert repeats.received(answer(1), 100.5) == [End(nth(0), Why.ANSWERED, 100.25, 0, HEAD, PASSED, TAIL)]
    assert (repeats.under_way, repeats.next, repeats.passed) == (0, math.inf, 0)
    repeats.learn(HEAD, TAIL)
    assert repeats.add(BODY, 110.0, 10.0, 1.0) == nth(1, 0)  # the place that became free
    assert repeats.turn(110.5, 5) == []
    assert repeats.received(answer(3), 110.75) == []
    assert (repeats.under_way, repeats.passed) == (0, 1)
    assert repeats.next == 120.0  # the phase is kept
    assert repeats.take_passed() == [(nth(1, 0), 0.25)]
    assert repeats.passed == 0
    assert repeats.take_passed() == []


@BOTH
def test_one_that_takes_longer_than_its_period_is_followed_at_once(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 1, period=1.0, timeout=30.0)
    repeats.turn(100.0, 5)
    assert repeats.received(answer(1), 103.5) == []
    assert repeats.next == 103.5


@BOTH
@pytest.mark.parametrize("payload", [b"", b"\x0a\2ok", b"\x0a\2ok\x12\1e\x18\0", b"\x1a\1x", b"\x18\1\x18\0"])
def test_output_does_not_matter_where_the_exit_code_is_zero(cls: type[PureRepeats], payload: bytes) -> None:
    repeats = connected(cls, 1)
    repeats.turn(100.0, 5)
    assert repeats.received(answer(1, message(payload)), 100.5) == []
    assert repeats.passed == 1


@BOTH
@pytest.mark.parametrize(
    ("data", "tail"),
    [
        (message(b"\x0a\2no\x18\1"), TAIL),
        (message(b"\x18\0\x18\x7f"), TAIL),
        (message(b"\x18" + b"\xff" * 9 + b"\x01"), TAIL),
        (message(b"\x0a\5ok"), TAIL),
        (PASSED + b"\0", TAIL),
        (PASSED * 2, TAIL),
        (b"\1\0\0\0\0", TAIL),
        (b"\0\0\0\0", TAIL),
        (b"", TAIL),
        (PASSED, FAILED),
        (PASSED, b""),
    ],
)
def test_what_is_not_as_usual_is_told(cls: type[PureRepeats], data: bytes, tail: bytes) -> None:
    repeats = connected(cls, 1)
    repeats.turn(100.0, 5)
    assert repeats.received(answer(1, data, tail=tail), 100.5) == [
        End(nth(0), Why.ANSWERED, 100.0, 0, HEAD, data, tail)
    ]
    assert (repeats.passed, repeats.under_way, repeats.next) == (0, 0, math.inf)


@BOTH
def test_an_answer_of_headers_only(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 1)
    repeats.turn(100.0, 5)
    only = HeadersFrame(1, HEAD, flags=["END_HEADERS", "END_STREAM"]).serialize()
    assert repeats.received(only, 100.5) == [End(nth(0), Why.ANSWERED, 100.0, 0, HEAD, b"", b"")]


@BOTH
@pytest.mark.parametrize("size", range(1, 60))
def test_answers_in_pieces(cls: type[PureRepeats], size: int) -> None:
    repeats = connected(cls, 3)
    repeats.turn(100.0, 5)
    data = answer(5) + answer(1, message(b"\x18\1")) + PingFrame(0, b"12345678").serialize() + answer(3)
    ends = []
    for at in range(0, len(data), size):
        ends += repeats.received(data[at : at + size], 100.5)
    assert ends == [End(nth(0), Why.ANSWERED, 100.0, 0, HEAD, message(b"\x18\1"), TAIL)]
    assert repeats.take_passed() == [(nth(2), 0.5), (nth(1), 0.5)]


@BOTH
def test_data_in_several_frames(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 1)
    repeats.turn(100.0, 5)
    whole = message(b"\x0a\2ok")
    parts = b"".join(DataFrame(1, whole[i : i + 2]).serialize() for i in range(0, len(whole), 2))
    assert repeats.received(HeadersFrame(1, HEAD, flags=["END_HEADERS"]).serialize() + parts, 100.5) == []
    last = HeadersFrame(1, TAIL, flags=["END_HEADERS", "END_STREAM"]).serialize()
    assert repeats.received(last, 100.5) == []
    assert repeats.passed == 1


@BOTH
def test_overdue_calls_are_broken_off(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 2)
    repeats.turn(100.0, 1)
    repeats.turn(100.5, 1)
    take(repeats)
    assert repeats.next == 101.0
    assert repeats.turn(101.0, 5) == [end_of(nth(0), Why.OVERDUE)]
    (frame,) = take(repeats)
    assert isinstance(frame, RstStreamFrame)
    assert (frame.stream_id, frame.error_code) == (1, CANCEL)
    assert repeats.received(answer(1), 101.1) == []  # too late, for nobody
    assert (repeats.under_way, repeats.passed, repeats.next) == (1, 0, 101.5)


@BOTH
def test_too_long_answers_are_broken_off(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 2)
    repeats.turn(100.0, 5)
    take(repeats)
    most = MAX_ANSWER - len(HEAD) - len(TAIL)
    assert repeats.received(answer(1, b"x" * most), 100.5)[0].why is Why.ANSWERED
    assert repeats.received(answer(3, b"x" * (most + 1)), 100.5) == [end_of(nth(1), Why.TOO_LONG)]
    assert repeats.out() == b""  # it was over anyway
    assert repeats.add(BODY, 100.0, 10.0, 1.0) == nth(2, 1)
    repeats.turn(101.0, 5)
    take(repeats)
    (end,) = repeats.received(answer(5, b"x" * (MAX_ANSWER + 1)), 101.5)
    assert (end.id, end.why) == (nth(2, 1), Why.TOO_LONG)
    (frame,) = take(repeats)
    assert isinstance(frame, RstStreamFrame)
    assert (frame.stream_id, frame.error_code) == (5, CANCEL)
    assert repeats.is_connected


@BOTH
def test_a_reset_is_told(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 1)
    repeats.turn(100.0, 5)
    refused = RstStreamFrame(1, 7).serialize()
    assert repeats.received(refused, 100.5) == [end_of(nth(0), Why.RESET, 100.0, 7)]
    assert repeats.received(refused, 100.5) == []
    assert repeats.is_connected


@BOTH
def test_going_away(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 3)
    repeats.turn(100.0, 3)
    assert repeats.received(GoAwayFrame(0, 3).serialize(), 100.5) == [lost(nth(2))]
    assert repeats.is_connected
    assert not repeats.takes_calls
    assert repeats.received(answer(1), 100.5) == []
    assert repeats.turn(110.0, 5) == [
        end_of(nth(1), Why.OVERDUE),
        end_of(nth(0), Why.NOT_MADE, 110.0),
    ]
    repeats.connected()
    assert repeats.takes_calls


@BOTH
def test_pings_wait_for_a_request(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 4)
    repeats.received(PingFrame(0, b"11111111").serialize(), 90.0)
    repeats.received(PingFrame(0, b"other...", flags=["ACK"]).serialize(), 90.0)
    repeats.received(PingFrame(0, b"22222222").serialize(), 95.0)
    assert repeats.turn(99.9, 5) == []
    assert repeats.out() == b""
    repeats.turn(100.0, 1)
    pongs = take(repeats)[:2]
    assert [(type(f), f.opaque_data, set(f.flags)) for f in pongs] == [  # type: ignore[attr-defined]
        (PingFrame, b"11111111", {"ACK"}),
        (PingFrame, b"22222222", {"ACK"}),
    ]
    repeats.received(PingFrame(0, b"33333333").serialize(), 100.0)
    repeats.turn(105.0, 1)
    assert PingFrame not in [type(frame) for frame in take(repeats)]
    for i in range(8):
        repeats.received(PingFrame(0, b"4444444%d" % i).serialize(), 106.0)
    pongs = take(repeats)
    assert [frame.opaque_data[:1] for frame in pongs] == [b"3"] + [b"4"] * 7  # type: ignore[attr-defined]


@BOTH
def test_settings(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 3)
    repeats.received(SettingsFrame(0, {SettingsFrame.MAX_CONCURRENT_STREAMS: 2}).serialize(), 99.0)
    (frame,) = take(repeats)
    assert isinstance(frame, SettingsFrame)
    assert (set(frame.flags), frame.settings) == ({"ACK"}, {})
    repeats.received(SettingsFrame(0, flags=["ACK"]).serialize(), 99.0)
    assert repeats.turn(100.0, 5) == [end_of(nth(2), Why.NOT_MADE)]
    repeats.received(answer(1) + SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 6}).serialize(), 100.1)
    (end,) = repeats.turn(110.0, 5)[1:]
    assert (end.id, end.why) == (nth(0), Why.NOT_MADE)


@BOTH
def test_the_largest_settings(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, AT_ONCE + 1)
    repeats.received(head_of(12, 4, 0, 0) + b"\0\3\xff\xff\xff\xff" + b"\0\4\x7f\xff\xff\xff", 99.0)
    repeats.received(WindowUpdateFrame(0, 2**31 - 1 - 65535).serialize(), 99.0)
    assert repeats.is_connected
    repeats.turn(100.0, AT_ONCE)
    assert repeats.under_way == AT_ONCE
    assert [end.why for end in repeats.turn(100.0, AT_ONCE)] == [Why.NOT_MADE]


@BOTH
def test_windows_of_the_peer(cls: type[PureRepeats]) -> None:
    repeats = connected(cls)
    whole = 65535 // MAX_BODY
    for _ in range(whole + 2):
        repeats.add(bytes(MAX_BODY), 100.0, 10.0, 1.0)
    for _ in range(whole):
        assert repeats.turn(100.0, 1) == []
        take(repeats)
    repeats.received(WindowUpdateFrame(1, 70000).serialize(), 100.0)  # of a stream: all is sent there
    assert [end.why for end in repeats.turn(100.0, 1)] == [Why.NOT_MADE]
    repeats.received(WindowUpdateFrame(0, 1).serialize(), 100.0)
    assert repeats.turn(100.0, 1) == []
    assert repeats.under_way == whole + 1


@BOTH
def test_the_peer_hears_of_room(cls: type[PureRepeats]) -> None:
    repeats = connected(cls)
    chunk = DataFrame(1, bytes(16384)).serialize()
    for _ in range(63):
        repeats.received(chunk, 100.0)
    assert repeats.out() == b""
    repeats.received(chunk, 100.0)
    (frame,) = take(repeats)
    assert isinstance(frame, WindowUpdateFrame)
    assert (frame.stream_id, frame.window_increment) == (0, 1 << 20)
    for _ in range(63):
        repeats.received(chunk, 100.0)
    assert repeats.out() == b""


@BOTH
def test_together_and_in_turn(cls: type[PureRepeats]) -> None:
    """Who is due waits while others are begun, and none of them for ever."""
    repeats = connected(cls, 5, period=0.0, timeout=50.0)
    begun: list[int] = []
    for round in range(5):
        assert repeats.turn(100.0, 2) == []
        stream = 1 + 4 * round
        repeats.received(answer(stream) + answer(stream + 2), 100.0)
        begun += [id for id, _ in repeats.take_passed()]
    assert begun == [nth(added) for added in [0, 1, 2, 3, 4] * 2]
    assert repeats.turn(100.0, 0) == []
    assert repeats.under_way == 0


@BOTH
def test_so_many_at_once(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, AT_ONCE + 2)
    assert repeats.turn(100.0, 10000) == []
    assert repeats.under_way == AT_ONCE
    assert [end.id for end in repeats.turn(100.0, 10000)] == [nth(AT_ONCE), nth(AT_ONCE + 1)]
    assert repeats.lost() == [lost(nth(added)) for added in reversed(range(AT_ONCE))]
    assert (repeats.under_way, repeats.out()) == (0, b"")


@BOTH
def test_stopping(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 3)
    assert repeats.stop(nth(1)) == (True, 100.0)
    for nobody in (nth(1), nth(3), nth(0, 2), nth(2, 0), 0, 2, 2**32 - 1, 2**64 - 1):
        assert repeats.stop(nobody)[0] is False
        assert math.isnan(repeats.stop(nobody)[1])
    repeats.turn(100.5, 5)
    assert repeats.under_way == 2
    assert repeats.stop(nth(0)) == (False, 110.0)
    assert repeats.stop(nth(0)) == (False, 110.0)
    assert repeats.received(answer(1), 100.75) == [End(nth(0), Why.ANSWERED, 100.5, 0, HEAD, PASSED, TAIL)]
    assert repeats.received(answer(3), 100.75) == []
    assert repeats.stop(nth(2)) == (True, 110.0)
    places = [2, 0, 1, 3]  # the last that became free is the first
    ids = [repeats.add(BODY, 1.0, 1.0, 1.0) for _ in places]
    assert ids == [nth(3 + i, place) for i, place in enumerate(places)]
    for added in range(3):
        assert math.isnan(repeats.stop(nth(added))[1])  # its place is another's
    assert repeats.stop(nth(4, 0)) == (True, 1.0)


@BOTH
def test_limits_of_texts(cls: type[PureRepeats]) -> None:
    assert cls(bytes(MAX_BODY)).add(bytes(MAX_BODY), 1.0, 1.0, 1.0) == nth(0)
    assert cls(b"").add(bytes(MAX_BODY + 1), 1.0, 1.0, 1.0) is None
    with pytest.raises(ValueError, match="headers"):
        cls(bytes(MAX_BODY + 1))


@BOTH
def test_learning(cls: type[PureRepeats]) -> None:
    """A few blocks of each place are known, and none that are empty or long."""
    repeats = connected(cls, 1)
    streams = iter(range(1, 1000, 2))

    def passes(head: bytes, tail: bytes) -> bool:
        id = repeats.add(BODY, 50.0, 1000.0, 1.0)
        repeats.turn(60.0, 1)
        told = repeats.received(answer(next(streams), head=head, tail=tail), 60.0)
        if not told:
            assert repeats.take_passed() == [(id, 0.0)]
            assert repeats.stop(id or 0)[0]
        return not told

    assert passes(HEAD, TAIL)
    assert not passes(TAIL, HEAD)
    repeats.learn(b"h" * MAX_BLOCK, b"t" * (MAX_BLOCK + 1))
    assert passes(b"h" * MAX_BLOCK, TAIL)
    assert not passes(HEAD, b"t" * (MAX_BLOCK + 1))
    repeats.learn(HEAD, b"")
    assert not passes(HEAD, b"")
    for i in range(BLOCKS - 2):
        repeats.learn(b"%d" % i, b"")
    assert passes(HEAD, TAIL)
    repeats.learn(b"one more", b"")
    assert not passes(HEAD, TAIL)
    assert passes(b"h" * MAX_BLOCK, TAIL)


@BOTH
def test_ends_that_nobody_counts(cls: type[PureRepeats]) -> None:
    """There is room for so many; the next one is told."""
    repeats = connected(cls, AT_ONCE, period=0.0, timeout=50.0)
    stream = 1
    for _ in range(MAX_PASSED // AT_ONCE):
        assert repeats.turn(100.0, AT_ONCE) == []
        take(repeats)
        data = b"".join(answer(stream + 2 * i) for i in range(AT_ONCE))
        assert repeats.received(WindowUpdateFrame(0, 10000).serialize() + data, 100.0) == []
        stream += 2 * AT_ONCE
    assert repeats.passed == MAX_PASSED
    repeats.turn(100.0, 1)
    assert [end.why for end in repeats.received(answer(stream), 100.0)] == [Why.ANSWERED]
    passed = repeats.take_passed()
    assert [id for id, _ in passed] == [nth(added) for added in range(AT_ONCE)] * (MAX_PASSED // AT_ONCE)
    repeats.turn(100.0, 1)
    assert repeats.received(answer(stream + 2), 101.0) == []
    assert repeats.take_passed() == [(nth(1), 1.0)]


BROKEN = {
    "HTTP/1": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "data before headers": DataFrame(1, PASSED).serialize(),
    "data of nobody": head_of(0, 0, 0, 0),
    "padded": head_of(1, 0, 8, 1) + b"\0",
    "headers of nobody": head_of(0, 1, 4, 0),
    "headers in pieces": head_of(1, 1, 0, 1) + b"\x88",
    "headers with priority": head_of(6, 1, 0x24, 1) + bytes(5) + b"\x88",
    "trailers without end": head_of(1, 1, 4, 1) + b"\x88" + head_of(1, 1, 4, 1) + b"\x88",
    "continuation": head_of(0, 9, 4, 1),
    "push": head_of(4, 5, 4, 1) + bytes(4),
    "too large": head_of(16385, 6, 0, 0),
    "reset of nobody": head_of(4, 3, 0, 0) + bytes(4),
    "short reset": head_of(3, 3, 0, 1) + bytes(3),
    "settings of a stream": head_of(0, 4, 0, 1),
    "odd settings": head_of(5, 4, 0, 0) + bytes(5),
    "acknowledgement with settings": head_of(6, 4, 1, 0) + bytes(6),
    "too large a window": head_of(6, 4, 0, 0) + b"\0\4\x80\0\0\0",
    "no more window": head_of(4, 8, 0, 0) + bytes(4),
    "too much window": head_of(4, 8, 0, 0) + b"\x7f\xff\xff\xff",
    "short window": head_of(3, 8, 0, 1) + bytes(3),
    "ping of a stream": head_of(8, 6, 0, 1) + bytes(8),
    "short ping": head_of(7, 6, 0, 0) + bytes(7),
    "going away of a stream": head_of(8, 7, 0, 1) + bytes(8),
    "short going away": head_of(7, 7, 0, 0) + bytes(7),
}


@BOTH
@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_cannot_be_understood_loses_the_connection(cls: type[PureRepeats], data: bytes) -> None:
    repeats = connected(cls, 3)
    repeats.turn(100.0, 2)
    assert repeats.received(data + answer(3), 100.5) == [lost(nth(1)), lost(nth(0))]
    assert (repeats.is_connected, repeats.is_odd) == (False, True)
    assert repeats.out() == b""
    assert repeats.lost() == []
    assert repeats.is_odd
    assert repeats.received(answer(3), 100.5) == []
    assert repeats.turn(100.5, 2) == [end_of(nth(2), Why.NOT_MADE, 100.5)]
    assert repeats.connected() == []
    assert (repeats.is_connected, repeats.is_odd) == (True, False)
    assert repeats.add(BODY, 101.0, 10.0, 1.0) == nth(3, 2)
    repeats.turn(101.0, 2)
    assert [frame.stream_id for frame in take(repeats)] == [0, 0, 1, 1]
    assert repeats.received(answer(1), 101.5) == []
    assert repeats.passed == 1


@BOTH
def test_what_has_no_meaning_here_is_passed_over(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 1)
    repeats.turn(100.0, 2)
    odd = head_of(5, 2, 0, 1) + bytes(5) + head_of(3, 77, 0xFF, 9) + b"abc" + head_of(4, 8, 0, 9) + bytes(4)
    assert repeats.received(odd + answer(7) + RstStreamFrame(9, 1).serialize(), 100.5) == []
    assert repeats.is_connected
    assert repeats.received(answer(1), 100.5) == []
    assert repeats.passed == 1


@BOTH
def test_a_peer_that_does_not_read(cls: type[PureRepeats]) -> None:
    """Requests are not made where they have no room; if something else has none, the connection is lost."""
    size = len(HEADERS) + 1000 + 18
    fits = MAX_OUT // size

    def full() -> PureRepeats:
        repeats = connected(cls)
        for _ in range(fits + 1):
            repeats.add(bytes(1000), 100.0, 10.0, 1.0)
        assert [end.why for end in repeats.turn(100.0, AT_ONCE)] == [Why.NOT_MADE]
        assert repeats.under_way == fits
        return repeats

    everyone = [lost(nth(added)) for added in reversed(range(fits))]
    acks = (MAX_OUT - fits * size) // 9
    repeats = full()
    assert repeats.received(SettingsFrame(0).serialize() * acks, 100.0) == []
    assert repeats.received(SettingsFrame(0).serialize(), 100.0) == everyone
    assert not repeats.is_connected
    repeats = full()
    repeats.received(SettingsFrame(0).serialize() * acks, 100.0)
    overdue, *others = repeats.turn(200.0, AT_ONCE)
    assert (overdue.id, overdue.why, others) == (nth(fits - 1), Why.OVERDUE, everyone[1:])
    repeats = full()
    pings = PingFrame(0, bytes(8)).serialize() * 8
    repeats.received(pings + SettingsFrame(0).serialize() * acks, 100.0)
    assert repeats.received(pings, 100.0) == everyone
    repeats = full()
    repeats.received(pings + SettingsFrame(0).serialize() * acks, 90.0)
    id = repeats.add(BODY, 100.0, 10.0, 1.0)
    assert id is not None
    assert repeats.turn(100.0, 1) == [*everyone, end_of(id, Why.NOT_MADE)]
    assert repeats.out() == b""


@BOTH
def test_the_last_byte_of_room(cls: type[PureRepeats]) -> None:
    repeats = connected(cls)
    body, acks = bytes(100), (MAX_OUT - 118 - len(HEADERS)) // 9
    body += bytes((MAX_OUT - 118 - len(HEADERS)) % 9)
    repeats.received(SettingsFrame(0).serialize() * acks, 100.0)
    repeats.add(body, 100.0, 10.0, 1.0)
    assert repeats.turn(100.0, 1) == []
    assert len(repeats.out()) == MAX_OUT


@BOTH
def test_no_pings_are_answered_to_nobody(cls: type[PureRepeats]) -> None:
    repeats = connected(cls, 1)
    repeats.received(PingFrame(0, bytes(8)).serialize(), 10.0)
    repeats.lost()
    assert [end.why for end in repeats.turn(100.0, 1)] == [Why.NOT_MADE]
    assert repeats.out() == b""


def test_success() -> None:
    assert says_success(PASSED)
    assert says_success(message(b"\x18\x80\x80\x80\x80\x10"))  # the low 32 bits count
    assert not says_success(message(b"\x18\x01"))
    assert not says_success(message(b"\x1c"))


# In a thread of its own.

SOON = 3.0
"""Seconds after which something that should have happened has not."""


class Served:
    """Repeats that a thread serves, and the peer's end of their connection, whose hello was read."""

    def __init__(self, cls: type[PureRepeats], is_connected: bool = True) -> None:
        self.repeats = connected(cls) if is_connected else cls(HEADERS)
        self.here, self.peer = socket.socketpair()
        self.here.setblocking(False)
        self.peer.settimeout(SOON)
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._told: list[list[End]] = []
        self._thread = threading.Thread()
        self._heard = b""

    def start(self, ahead: float = 0.0) -> None:
        def work() -> None:
            self._told.append(self.repeats.serve(self.here.fileno(), self.event, ahead))

        self._told.clear()
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def goes_on(self, seconds: float = 0.05) -> bool:
        self._thread.join(seconds)
        return self._thread.is_alive()

    def ends(self) -> list[End]:
        """What it tells when it comes to its end."""
        assert not self.goes_on(SOON)
        (ends,) = self._told
        return ends

    def close(self) -> None:
        self.repeats.leave()
        is_over = not self._thread.ident or not self.goes_on(SOON)
        for each in (self.here, self.peer):
            each.close()
        os.close(self.event)
        assert is_over

    def add(self, wait: float = 0.0, period: float = 10.0, timeout: float = 5.0, body: bytes = BODY) -> int:
        id = self.repeats.add(body, time.monotonic() + wait, period, timeout)
        assert id is not None
        return id

    def hear(self, count: int) -> list[Frame]:
        """The next frames."""
        found: list[Frame] = []
        while len(found) < count:
            size = 9 + int.from_bytes(self._heard[:3], "big")
            if len(self._heard) < max(9, size):
                data = self.peer.recv(1 << 16)
                assert data
                self._heard += data
            else:
                found += frames_of(self._heard[:size])
                self._heard = self._heard[size:]
        return found

    def say(self, data: bytes) -> None:
        self.peer.sendall(data)

    def wait(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + SOON
        while not is_so():
            assert self.goes_on(0.005)
            assert time.monotonic() < until


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    all_served: list[Served] = []

    def begin(*args: Any) -> Served:
        all_served.append(Served(*args))
        return all_served[-1]

    yield begin
    for each in all_served:
        each.close()


Begin = Callable[..., Served]


@BOTH
@pytest.mark.parametrize("ahead", [0.0, 1000.0])
def test_serving_ends_with_an_answer_that_says_something(
    cls: type[PureRepeats], serve: Begin, ahead: float
) -> None:
    served = serve(cls)
    before = time.monotonic() + ahead
    id = served.add(ahead + 0.1)
    served.start(ahead)
    head, data = served.hear(2)
    assert (head.stream_id, head.data, data.data) == (1, HEADERS, BODY)  # type: ignore[attr-defined]
    served.say(answer(1, tail=FAILED))
    (end,) = served.ends()
    assert end == End(id, Why.ANSWERED, end.began, 0, HEAD, PASSED, FAILED)
    assert before + 0.1 <= end.began <= time.monotonic() + ahead
    assert (served.repeats.is_connected, served.repeats.is_odd) == (True, False)
    assert (served.repeats.under_way, served.repeats.out()) == (0, b"")


@BOTH
def test_serving_goes_on_while_calls_pass(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    ids = [served.add(period=0.01), served.add(period=0.01)]
    served.start()
    passed: list[tuple[int, float]] = []
    for stream in (1, 5, 9):
        assert [frame.stream_id for frame in served.hear(4)] == [stream, stream, stream + 2, stream + 2]
        served.say(answer(stream) + answer(stream + 2))
        served.wait(lambda: served.repeats.passed == 2)
        passed += served.repeats.take_passed()
        assert served.repeats.passed == 0
    assert [id for id, _ in passed] == ids * 3
    assert all(0 <= seconds < SOON for _, seconds in passed)
    served.hear(4)
    assert served.goes_on()
    served.repeats.leave()
    assert served.ends() == []
    assert served.repeats.under_way == 2  # the next to serve hears of these
    served.start()
    served.say(answer(13) + answer(15, tail=FAILED))
    assert [end.id for end in served.ends()] == ids[1:]
    assert [id for id, _ in served.repeats.take_passed()] == ids[:1]


@BOTH
def test_what_is_due_earlier_wakes_who_serves(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    served.start()
    assert served.goes_on()
    served.add(wait=100.0)  # earlier than never
    assert served.goes_on()
    served.add()
    assert [frame.stream_id for frame in served.hear(2)] == [1, 1]
    served.say(answer(1, tail=FAILED))
    assert [end.why for end in served.ends()] == [Why.ANSWERED]


@BOTH
def test_leaving(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    served.add(wait=100.0)
    served.start()
    assert served.goes_on()
    served.repeats.leave()
    assert served.ends() == []
    served.repeats.leave()  # before it begins
    served.start()
    assert served.ends() == []
    served.start()
    assert served.goes_on()  # each ends one


@BOTH
def test_serving_ends_where_a_connection_is_wanted(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls, False)
    id = served.add(wait=0.3)
    served.start()
    assert served.goes_on()
    assert served.ends() == []
    assert served.repeats.next <= time.monotonic()
    assert not served.repeats.takes_calls
    assert served.repeats.stop(id)[0]  # it is still there


@BOTH
def test_a_peer_that_closes_is_lost(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    ids = [served.add(), served.add()]
    served.start()
    served.hear(4)
    served.peer.close()
    ends = served.ends()
    assert [(end.id, end.why) for end in ends] == [(id, Why.LOST) for id in reversed(ids)]
    assert (served.repeats.is_connected, served.repeats.is_odd) == (False, False)
    assert served.repeats.out() == b""


@BOTH
def test_a_peer_that_closes_between_calls_is_lost_when_the_next_is_due(
    cls: type[PureRepeats], serve: Begin
) -> None:
    served = serve(cls)
    served.start()
    served.peer.close()
    assert served.goes_on()
    id = served.add()
    assert served.ends() == []
    assert (served.repeats.is_connected, served.repeats.is_odd) == (False, False)
    assert served.repeats.stop(id)[0]


@BOTH
@pytest.mark.parametrize("is_under_way", [False, True])
def test_odd_bytes_lose_the_connection_that_is_served(
    cls: type[PureRepeats], serve: Begin, is_under_way: bool
) -> None:
    served = serve(cls)
    id = served.add(wait=0.0 if is_under_way else 0.1)
    if is_under_way:
        served.start()
        served.hear(2)
    served.say(BROKEN["HTTP/1"])
    if not is_under_way:
        served.start()
    assert [(end.id, end.why) for end in served.ends()] == ([(id, Why.LOST)] if is_under_way else [])
    assert (served.repeats.is_connected, served.repeats.is_odd) == (False, True)
    served.repeats.connected()
    assert not served.repeats.is_odd


@BOTH
def test_overdue_calls_are_broken_off_by_who_serves(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    id = served.add(timeout=0.1)
    served.start()
    served.hear(2)
    (end,) = served.ends()
    assert end == end_of(id, Why.OVERDUE, end.began)
    assert end.began + 0.1 <= time.monotonic()
    (frame,) = served.hear(1)
    assert isinstance(frame, RstStreamFrame)
    assert (frame.stream_id, frame.error_code) == (1, CANCEL)


def fill(served: Served) -> None:
    """Nothing more can be sent."""
    served.here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    while True:
        try:
            served.here.send(head_of(0, 77, 0, 0))
        except BlockingIOError:
            return


def hear_after(served: Served, count: int) -> list[Frame]:
    """As many behind what it was filled with."""
    found: list[Frame] = []
    while len(found) < count:
        found += [frame for frame in served.hear(1) if int(frame.type or 0) in (0, 1, 3)]
    return found


@BOTH
def test_what_has_no_room_in_the_socket_is_sent_later(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    served.here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    bodies = [bytes([i]) * 3000 for i in range(3)]
    for body in bodies:
        served.add(body=body)
    served.start()
    served.wait(lambda: served.repeats.under_way == 3)
    before = time.process_time()
    assert served.goes_on(0.2)
    assert time.process_time() - before < 0.1
    served.repeats.leave()
    assert served.ends() == []
    assert len(served.repeats.out()) > 0
    served.start()
    found = served.hear(6)
    assert [frame.stream_id for frame in found] == [1, 1, 3, 3, 5, 5]
    assert [frame.data for frame in found if isinstance(frame, DataFrame)] == bodies
    served.repeats.leave()
    assert served.ends() == []
    assert served.repeats.out() == b""


@BOTH
def test_what_is_left_is_sent_also_where_nothing_is_due(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    fill(served)
    served.add(timeout=0.1)
    served.start()
    assert [end.why for end in served.ends()] == [Why.OVERDUE]
    served.start()
    before = time.process_time()
    assert served.goes_on(0.2)
    assert time.process_time() - before < 0.1
    assert [type(frame) for frame in hear_after(served, 3)] == [HeadersFrame, DataFrame, RstStreamFrame]


@BOTH
def test_stopping_while_it_is_served(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    first, other = served.add(), served.add(wait=100.0)
    served.start()
    served.hear(2)
    assert served.repeats.stop(other)[0]  # it waits, and is forgotten
    assert math.isnan(served.repeats.stop(other)[1])
    is_forgotten, due = served.repeats.stop(first)
    assert not is_forgotten
    assert due > time.monotonic() + 5
    assert served.goes_on()
    served.say(answer(1))
    assert [(end.id, end.why, end.tail) for end in served.ends()] == [(first, Why.ANSWERED, TAIL)]
    assert (served.repeats.next, served.repeats.passed) == (math.inf, 0)


@BOTH
def test_many_that_are_due_are_begun_one_part_after_the_other(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    ids = [served.add() for _ in range(TOGETHER + 2)]
    served.start()
    served.hear(2 * len(ids))
    served.peer.close()
    ends = served.ends()[::-1]
    assert [end.id for end in ends] == ids
    began = [end.began for end in ends]
    assert len(set(began[:TOGETHER])) == 1
    assert began[0] < began[TOGETHER] == began[-1]


@BOTH
@pytest.mark.parametrize("period", [0.0, 1e-320, 0.001])
def test_more_are_begun_together_where_there_are_so_many(
    cls: type[PureRepeats], serve: Begin, period: float
) -> None:
    served = serve(cls)
    for _ in range(TOGETHER + 2):
        served.add(period=period)
    served.start()
    served.hear(2 * (TOGETHER + 2))
    served.peer.close()
    assert len({end.began for end in served.ends()}) == 1


@BOTH
def test_many_that_wait_to_be_counted_end_serving(cls: type[PureRepeats], serve: Begin) -> None:
    served = serve(cls)
    repeats, now = served.repeats, time.monotonic()
    for _ in range(AT_ONCE):
        served.add(wait=-1.0, period=0.0)
    stream = 1
    for _ in range(MAX_PASSED // 2 // AT_ONCE):
        repeats.turn(now, AT_ONCE)
        repeats.sent(len(repeats.out()))
        repeats.received(b"".join(answer(stream + 2 * i) for i in range(AT_ONCE)), now)
        stream += 2 * AT_ONCE
    served.start()
    assert served.ends() == []
    assert len(repeats.take_passed()) == MAX_PASSED // 2


@BOTH
def test_others_add_stop_and_count_while_it_is_served(cls: type[PureRepeats], serve: Begin) -> None:
    """None is lost or counted twice, whatever meets."""
    served = serve(cls)

    def answer_all() -> None:
        while True:
            try:
                for frame in served.hear(2)[1:]:
                    served.say(answer(frame.stream_id))
            except (OSError, AssertionError):
                return

    peer = threading.Thread(target=answer_all, daemon=True)
    peer.start()
    waiting, under_way, told = set[int](), set[int](), set[int]()
    served.start()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        id = served.add(period=0.01)
        waiting.add(id)
        if len(waiting) > 20:
            for each in list(waiting)[::3]:
                waiting.remove(each)
                if not served.repeats.stop(each)[0]:
                    under_way.add(each)
        served.repeats.take_passed()
        if not served.goes_on(0.001):
            told |= {end.id for end in served.ends()}
            served.start()
    while under_way - told:
        told |= {end.id for end in served.ends()}
        served.start()
    assert told == under_way
    assert all(not math.isnan(served.repeats.stop(each)[1]) for each in waiting)
    served.peer.shutdown(socket.SHUT_RDWR)
    peer.join(SOON)
    assert not peer.is_alive()


# Both at once.

sizes = st.sampled_from([0, 7, 7, 7, 300, MAX_BODY, MAX_BODY + 1])
seconds = st.sampled_from([0.0, 0.25, 1.0, 3.5, 10.0, 30.0])
heads = st.sampled_from([HEAD, HEAD, HEAD, b"\x20" + HEAD, b"", b"h" * MAX_BLOCK, b"h" * (MAX_BLOCK + 1)])
tails = st.sampled_from([TAIL, TAIL, TAIL, FAILED, b"", b"t" * MAX_BLOCK, b"t" * 1000])
fields = st.sampled_from(
    [b"\x18\0", b"\x18\1", b"\x0a\2ok", b"\x1a\1x", b"\x13\x14", b"\x18\x80\x80\x80\x80\x10"]
)
datas = st.one_of(
    st.just(PASSED),
    st.just(PASSED),
    st.lists(fields | st.binary(max_size=3), max_size=4).map(b"".join).map(message),
    st.binary(max_size=12),
    st.sampled_from([bytes(MAX_ANSWER), bytes(1500), b""]),
)
whens = st.tuples(st.booleans(), st.integers(0, 300))
"""Of which stream: one of those under way, or any."""
raw_frames = st.builds(
    lambda kind, flags, payload: lambda stream: head_of(len(payload), kind, flags, stream) + payload,
    st.integers(0, 10),
    st.sampled_from([0, 1, 4, 5, 5, 8, 0x20]),
    st.one_of(
        st.sampled_from(
            [b"", bytes(4), b"\0\0\0\7", bytes(8), b"\0\3\0\0\0\2", b"\0\4\0\0\x10\0", PASSED, HEAD, TAIL]
        ),
        st.binary(max_size=20),
    ),
)
OF_NO_STREAM = [
    SettingsFrame(0).serialize(),
    SettingsFrame(0, flags=["ACK"]).serialize(),
    head_of(6, 4, 0, 0) + b"\0\3\0\0\0\3",
    head_of(12, 4, 0, 0) + b"\0\3\0\0\4\0\0\4\0\0\0\7",
    head_of(6, 4, 0, 0) + b"\0\4\0\1\0\0",
    PingFrame(0, b"12345678").serialize(),
    PingFrame(0, b"abcdefgh").serialize(),
    WindowUpdateFrame(0, 65536).serialize(),
    WindowUpdateFrame(0, 1 << 30).serialize(),
    DataFrame(2, bytes(16384)).serialize(),
]
of_no_stream = st.integers(0, len(OF_NO_STREAM) - 1)  # hypothesis writes strategies out, and these are large
times = st.sampled_from([1, 1, 1, 1, 9, 64, 2000])


class Said:
    """One thing that the peer says, once it is known which streams there are."""

    def __init__(
        self, which: tuple[bool, int], say: Callable[[int], bytes], times: int, cut: int | None, flip: int
    ):
        self.which, self.say, self.times, self.cut, self.flip = which, say, times, cut, flip

    def __repr__(self) -> str:
        return f"Said({self.which}, {self.say(1)!r}, {self.times}, {self.cut}, {self.flip})"

    def bytes(self, streams: list[int]) -> bytes:
        is_one, number = self.which
        stream = streams[number % len(streams)] if is_one and streams else number
        data = self.say(stream) * self.times
        if self.flip and data:
            at = self.flip % len(data)
            data = data[:at] + bytes([data[at] ^ (1 << self.flip % 8)]) + data[at + 1 :]
        return data[: self.cut]


def answers(data: bytes, head: bytes, tail: bytes) -> Callable[[int], bytes]:
    return lambda stream: answer(stream, data, head, tail)


def always(data: bytes) -> Callable[[int], bytes]:
    return lambda stream: data


def of_none(number: int) -> Callable[[int], bytes]:
    return always(OF_NO_STREAM[number])


often = st.tuples(st.just(True), st.integers(0, 300))
whole = st.just(None)
said = st.one_of(
    st.builds(Said, often, st.just(answer), st.just(1), whole, st.just(0)),
    st.builds(Said, often, st.builds(answers, datas, heads, tails), st.just(1), whole, st.just(0)),
    st.builds(Said, often, raw_frames, st.just(1), whole, st.just(0)),
    st.builds(Said, whens, st.builds(of_none, of_no_stream), times, whole, st.just(0)),
    st.builds(
        Said,
        whens,
        st.sampled_from(
            [
                lambda stream: RstStreamFrame(max(stream, 1), 7).serialize(),
                lambda stream: GoAwayFrame(0, stream).serialize(),
            ]
        ),
        st.just(1),
        whole,
        st.just(0),
    ),
    st.builds(
        Said, whens, raw_frames | st.just(answer), st.just(1), whole | st.integers(0, 40), st.integers(0, 500)
    ),
    st.builds(Said, whens, st.builds(always, st.binary(max_size=30)), st.just(1), whole, st.just(0)),
)


class BothAtOnce(RuleBasedStateMachine):
    """Whatever is done to them, both show the same."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.quick = PureRepeats(HEADERS), Repeats(HEADERS)
        self.now = 100.0
        self.ids: list[int] = []  # of all that were added

    def do(self, name: str, *args: Any) -> Any:
        expected, got = getattr(self.slow, name)(*args), getattr(self.quick, name)(*args)
        assert repr(got) == repr(expected)  # NaN is NaN
        assert self.quick.out() == self.slow.out()
        for shown in ("next", "newest", "under_way", "passed", "is_connected", "is_odd", "takes_calls"):
            assert getattr(self.quick, shown) == getattr(self.slow, shown), shown
        return expected

    def add(self, size: int, wait: float, period: float, timeout: float) -> None:
        id = self.do("add", bytes(size), self.now + wait, period, timeout)
        if id is not None:
            self.ids.append(id)

    @initialize(is_usual=st.booleans())
    def begin(self, is_usual: bool) -> None:
        self.do("connected")
        if is_usual:
            self.do("learn", HEAD, TAIL)
            for _ in range(5):
                self.add(7, 0.0, 1.0, 30.0)

    @rule(size=sizes, wait=seconds, period=seconds, timeout=seconds)
    def add_one(self, size: int, wait: float, period: float, timeout: float) -> None:
        self.add(size, wait, period, timeout)

    @rule(count=st.sampled_from([3, 20, 300]), period=seconds, timeout=seconds, size=sizes)
    def add_many(self, count: int, period: float, timeout: float, size: int) -> None:
        for i in range(count):
            self.add(size, i % 3 * 0.25, period, timeout)

    @rule(number=st.integers(0, 12) | st.just(400), is_old=st.booleans())
    def stop(self, number: int, is_old: bool) -> None:
        """One of the first or of the last that were added, which may be gone, or what never was there."""
        ids = self.ids if is_old else self.ids[::-1]
        self.do("stop", ids[number] if number < len(ids) else number)

    @precondition(lambda self: not self.slow.takes_calls)
    @rule()
    def connect(self) -> None:
        self.do("connected")

    @rule(how=st.sampled_from(["connected", "lost"]))
    def lose(self, how: str) -> None:
        self.do(how)

    @rule(wait=seconds, together=st.sampled_from([0, 1, 3, 10, 256, 1000]))
    def turn(self, wait: float, together: int) -> None:
        self.now += wait
        self.do("turn", self.now, together)

    @rule(
        wait=st.sampled_from([0.0, 0.125]),
        things=st.lists(said, min_size=1, max_size=4),
        parts=st.integers(1, 3),
    )
    def receive(self, wait: float, things: list[Said], parts: int) -> None:
        self.now += wait
        streams = [call.stream for call in self.slow._calls.values()]
        data = b"".join(each.bytes(streams) for each in things)
        step = max(1, -(-len(data) // parts))
        for at in range(0, len(data), step):
            self.do("received", data[at : at + step], self.now)

    @rule(how_many=st.integers(1, 300), data=datas)
    def answer_many(self, how_many: int, data: bytes) -> None:
        """The way to many that pass."""
        streams = [call.stream for call in self.slow._calls.values()][:how_many]
        self.do("received", b"".join(answer(stream, data) for stream in streams), self.now)

    @rule(size=st.sampled_from([0, 1, 9, 1000, MAX_OUT, MAX_OUT + 1]))
    def send(self, size: int) -> None:
        self.do("sent", size)

    @rule(head=heads, tail=tails)
    def learn(self, head: bytes, tail: bytes) -> None:
        self.do("learn", head, tail)

    @rule()
    def count(self) -> None:
        self.do("take_passed")


@pytest.mark.skipif(Repeats is PureRepeats, reason="the extension is not built")
def test_c_and_python_agree() -> None:
    run_state_machine_as_test(
        BothAtOnce,
        settings=settings(
            max_examples=200,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
