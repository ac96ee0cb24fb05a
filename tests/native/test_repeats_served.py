"""Repeated calls that a thread serves, in C and in plain Python."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame, RstStreamFrame

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
    frames_of,
    head_of,
)
from tests.slowness import within_cpu
from trio_kubelet.native.pure_repeats import AT_ONCE, MAX_PASSED, End, Why
from trio_kubelet.native.pure_serving import TOGETHER, PureRepeats

SOON = 10.0
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
    served.say(HTTP_1)
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
    for _ in within_cpu(0.1):
        assert served.goes_on(0.2)
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
    for _ in within_cpu(0.1):
        assert served.goes_on(0.2)
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
