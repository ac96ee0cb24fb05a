"""Repeated calls: the C code and the plain-Python twin show the same, whatever is done to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
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

from tests.native.repeats_peer import FAILED, HEAD, HEADERS, PASSED, TAIL, answer, head_of, message
from trio_kubelet.native.pure_repeats import MAX_ANSWER, MAX_BLOCK, MAX_BODY, MAX_OUT
from trio_kubelet.native.pure_serving import PureRepeats
from trio_kubelet.native.repeats import Repeats

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
