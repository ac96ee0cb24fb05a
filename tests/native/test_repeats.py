"""Repeated calls against what HTTP/2 and gRPC ask for, in C and in plain Python."""

from __future__ import annotations

import math

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, RemoteSettingsChanged
from h2.settings import SettingCodes
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.native.repeats_peer import (
    BODY,
    BOTH,
    CANCEL,
    FAILED,
    HEAD,
    HEADERS,
    HTTP_1,
    PASSED,
    TAIL,
    answer,
    connected,
    end_of,
    head_of,
    lost,
    message,
    nth,
    take,
)
from trio_kubelet.native.pure_repeats import (
    AT_ONCE,
    BLOCKS,
    MAX_ANSWER,
    MAX_BLOCK,
    MAX_BODY,
    MAX_OUT,
    MAX_PASSED,
    End,
    Why,
    says_success,
)
from trio_kubelet.native.pure_serving import PureRepeats


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
    "HTTP/1": HTTP_1,
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
