"""Calls that are made again and again over one HTTP/2 connection, in plain Python: decides what is right.

Exec probes are such calls, and their answers nearly always say nothing new. Bytes and moments go in; bytes
to be sent, and ends that somebody has to hear of, come out. Pure; `pure_serving` has the clock and the
socket.

The peer is told to use no table of headers, so a block of them always says the same, and which blocks say
that a call succeeded is learnt from who can read them. An answer passes if its blocks are such ones and its
message is an `ExecSyncResponse` with the exit code 0. An end that is told takes its call out of the repeats.
`repeats` does the same in C (`csrc/repeats.c`, `csrc/repeats_answers.c`).
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from trio_kubelet.native.pure_wire import VARINT, WireError, fields, read_varint

AT_ONCE: Final = 256
"""Calls that may wait for their answer."""

MAX_BODY: Final = 4096
"""Bytes of a request, prefix and all; and of the block of headers before it."""

MAX_ANSWER: Final = 2048
"""Bytes of an answer that are kept."""

MAX_BLOCK: Final = 128
"""Bytes of a block of headers that can be learnt."""

BLOCKS: Final = 4
"""As many are known of each place."""

MAX_PASSED: Final = 4096
"""Ends that can wait to be counted."""

MAX_OUT: Final = 65536
"""Bytes that can wait to be sent."""

_ACK, _END_STREAM, _END_HEADERS, _PADDED, _HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_HEAD: Final = 9  # bytes of a frame before what it carries
_MAX_FRAME: Final = 16384
_FIRST_WINDOW: Final = 65535  # of a connection and of a stream, before anything was said
_MAX_WINDOW: Final = 2**31 - 1
_LAST_STREAM: Final = 2**30
_ROOM: Final = 1 << 20  # bytes that came after which the peer is told that there is room for more
_PONG_PAUSE: Final = 10.0  # see PONG_PAUSE in cri/answers.py
_PONGS: Final = 8  # as many pings wait; one more, and all are answered
_CANCEL: Final = 8
_LEAST_PERIOD: Final = 0.001  # seconds, where calls a second are reckoned
_MAX_STREAMS_SETTING, _WINDOW_SETTING = 3, 4
_PREFIX: Final = 5  # bytes before a message
_EXIT_CODE: Final = 3


class Why(enum.IntEnum):
    """Why a call's end is told."""

    ANSWERED = 0
    """With the blocks and the data there were."""
    TOO_LONG = 1
    """The answer is; it was broken off."""
    RESET = 2
    """By the peer, for the reason in `code`."""
    OVERDUE = 3
    """Broken off."""
    LOST = 4
    """With its connection."""
    NOT_MADE = 5
    """It was due, and no call can be made now."""


class End(NamedTuple):
    """A call's end. `began`: for one not made, when that was found. The answer only where there is one."""

    id: int
    why: Why
    began: float
    code: int
    head: bytes
    data: bytes
    tail: bytes


class _Kind(enum.IntEnum):
    DATA = 0
    HEADERS = 1
    RST = 3
    SETTINGS = 4
    PUSH = 5
    PING = 6
    GOAWAY = 7
    WINDOW = 8
    CONTINUATION = 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


# What is sent first: no table of headers, no pushes, and the largest window there is.
_HELLO: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(_Kind.SETTINGS, 0, 0, b"\0\1" + bytes(4) + b"\0\2" + bytes(4))
    + frame(_Kind.WINDOW, 0, 0, (_MAX_WINDOW - _FIRST_WINDOW).to_bytes(4, "big"))
)


def says_success(data: bytes) -> bool:
    """Whether this is one whole message that says that the command succeeded."""
    if len(data) < _PREFIX or data[0] != 0 or _number(data[1:_PREFIX]) != len(data) - _PREFIX:
        return False
    exit_code = 0
    try:
        for _, start, end in fields(data, _PREFIX, len(data), {_EXIT_CODE: VARINT}):
            exit_code = read_varint(data, start, end)[0]
    except WireError:
        return False
    return exit_code & 0xFFFFFFFF == 0


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


class _BrokenError(Exception):
    """The connection cannot go on: what came has no place there, or nobody reads what is sent."""


@dataclass(slots=True)
class _Repeat:
    """What is repeated. `due`: infinite while a call is under way, when the next one is due in `after`."""

    id: int  # its row, and above it a number that nothing had before
    body: bytes
    due: float
    period: float
    timeout: float
    after: float = 0.0
    is_under_way: bool = False
    is_stopped: bool = False


@dataclass(slots=True)
class _Call:
    """One that is under way, with its answer so far; no `head` at all before the headers came."""

    row: int
    stream: int
    began: float
    deadline: float
    head: bytes | None = None
    data: bytes = b""
    tail: bytes = b""

    @property
    def size(self) -> int:
        return len(self.head or b"") + len(self.data) + len(self.tail)


class RepeatedCalls:
    """The calls, and the client's side of their connection, which may be another one after a loss.

    Each method that something can end in returns the ends to be told.
    """

    def __init__(self, headers: bytes) -> None:
        """`headers`: the block of every request, which refers to no table. Raises ValueError."""
        if len(headers) > MAX_BODY:
            raise ValueError("the headers of the calls are too long")
        self._headers = headers
        self._repeats: list[_Repeat | None] = []  # the rows
        self._free: list[int] = []  # rows, the one freed last at the end
        self._added = 0
        self._cursor = 0  # where to look for what is due first
        self._calls: dict[int, _Call] = {}  # by place: the lowest free one is taken
        self._heads: deque[bytes] = deque(maxlen=BLOCKS)
        self._tails: deque[bytes] = deque(maxlen=BLOCKS)
        self._passes: deque[tuple[int, float]] = deque()
        self._ends: list[End] = []
        self._is_open = False
        self._begin_connection()

    def _begin_connection(self) -> None:
        self._is_odd = False
        self._is_going_away = False
        self._next_stream = 1
        self._most = AT_ONCE  # calls at once, for the peer
        self._peer_window = _FIRST_WINDOW  # for bytes of one request, and of all
        self._window = _FIRST_WINDOW
        self._taken = 0  # bytes of data that came, and the peer was not told of
        self._pinged = 0.0  # when the first ping came that is not answered
        self._pongs: list[bytes] = []
        self._in = b""  # the beginning of a frame
        self._out = b""

    @property
    def next(self) -> float:
        """When something is due or overdue; infinite if nothing is."""
        dues = [repeat.due for repeat in self._repeats if repeat is not None]
        return min(dues + [call.deadline for call in self._calls.values()], default=math.inf)

    @property
    def newest(self) -> float:
        """When the last of the calls under way began; minus infinity if there is none."""
        return max((call.began for call in self._calls.values()), default=-math.inf)

    @property
    def _rate(self) -> float:
        """Calls a second."""
        return sum(1 / max(_LEAST_PERIOD, repeat.period) for repeat in self._repeats if repeat is not None)

    @property
    def under_way(self) -> int:
        return len(self._calls)

    @property
    def passed(self) -> int:
        """Ends that wait to be counted."""
        return len(self._passes)

    @property
    def is_connected(self) -> bool:
        """False once the connection was lost, or said what cannot be understood."""
        return self._is_open

    @property
    def is_odd(self) -> bool:
        """That is why it was lost."""
        return self._is_odd

    @property
    def takes_calls(self) -> bool:
        """False as well where the peer is going away: what is under way may still end."""
        return self._is_open and not self._is_going_away and self._next_stream <= _LAST_STREAM

    def add(self, body: bytes, due: float, period: float, timeout: float) -> int | None:
        """A call at `due` and every `period` seconds after, each for at most `timeout` of them; its id.

        One that takes longer than the period is followed by the next at once. None: the body, which has its
        prefix, is too long.
        """
        if len(body) > MAX_BODY:
            return None
        if not self._free:
            self._free.append(len(self._repeats))
            self._repeats.append(None)
        row = self._free.pop()
        self._added += 1
        id = self._added << 32 | row
        self._repeats[row] = _Repeat(id, body, due, period, timeout)
        return id

    def stop(self, id: int) -> tuple[bool, float]:
        """No more calls of that one; whether none is under way, and when the next would have been made.

        If one is, its end will be told. NaN for what is not there.
        """
        row = id & 0xFFFFFFFF
        repeat = self._repeats[row] if row < len(self._repeats) else None
        if repeat is None or repeat.id != id:
            return False, math.nan
        if repeat.is_under_way:
            repeat.is_stopped = True
            return False, repeat.after
        self._forget(row)
        return True, repeat.due

    def connected(self) -> list[End]:
        """There is a new connection, on which nothing has been sent. What was under way is lost."""
        ends = self.lost()
        self._begin_connection()
        self._is_open = True
        self._out = _HELLO
        return ends

    def lost(self) -> list[End]:
        """There is no connection any more."""
        self._lose_connection()
        return self._told()

    def received(self, data: bytes, now: float) -> list[End]:
        """What came. If it cannot be understood, the connection is lost."""
        self._take(data, now)
        return self._told()

    def turn(self, now: float, together: int) -> list[End]:
        """Ends calls that are overdue, and begins those that are due, `together` at most.

        Those that cannot be made are told, and among these. The connection of a peer that has not read for
        long is lost.
        """
        self._take_turn(now, together)
        return self._told()

    def _take(self, data: bytes, now: float) -> None:
        if self._is_open:
            self._in += data
            try:
                self._take_frames(now)
            except _BrokenError:
                self._is_odd = True
                self._lose_connection()

    def _take_turn(self, now: float, together: int) -> None:
        try:
            for place, call in sorted(self._calls.items(), reverse=True):
                if call.deadline <= now:
                    self._break_off(place, Why.OVERDUE)
        except _BrokenError:
            self._lose_connection()
        left = min(together, AT_ONCE)
        for row in [*range(self._cursor, len(self._repeats)), *range(self._cursor)]:
            repeat = self._repeats[row]
            if left == 0:
                break
            if repeat is None or not repeat.due <= now or repeat.is_under_way:
                continue
            left -= 1
            self._cursor = row + 1
            self._pong_if_long_ago(now)
            if not self._begin(row, repeat, now):
                self._tell(row, Why.NOT_MADE, now)

    def out(self) -> bytes:
        """What is to be sent."""
        return self._out

    def sent(self, size: int) -> None:
        """The first bytes of what was to be sent are."""
        self._out = self._out[size:]

    def learn(self, head: bytes, tail: bytes) -> None:
        """Blocks that say of a call that it succeeds. The oldest goes when there are too many."""
        for block, known in ((head, self._heads), (tail, self._tails)):
            if 0 < len(block) <= MAX_BLOCK and block not in known:
                known.append(block)

    def take_passed(self) -> list[tuple[int, float]]:
        """Ids and seconds of the calls that passed since the last time, the oldest first."""
        passed = list(self._passes)
        self._passes.clear()
        return passed

    def _told(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    def _forget(self, row: int) -> None:
        self._repeats[row] = None
        self._free.append(row)

    def _tell(self, row: int, why: Why, began: float, code: int = 0, answer: _Call | None = None) -> None:
        """Somebody is to hear of this end, and the call is no longer repeated."""
        parts = (answer.head or b"", answer.data, answer.tail) if answer else (b"", b"", b"")
        repeat = self._repeats[row]
        assert repeat is not None
        self._ends.append(End(repeat.id, why, began, code, *parts))
        self._forget(row)

    def _fail(self, place: int, why: Why, code: int = 0) -> None:
        """A call ended without an answer."""
        call = self._calls.pop(place)
        self._tell(call.row, why, call.began, code)

    def _break_off(self, place: int, why: Why) -> None:
        stream = self._calls[place].stream
        self._fail(place, why)
        self._put(frame(_Kind.RST, 0, stream, _CANCEL.to_bytes(4, "big")))

    def _lose_calls(self, last_stream: int) -> None:
        """Those behind that stream; the call of the highest place is the first to be told."""
        for place, call in sorted(self._calls.items(), reverse=True):
            if call.stream > last_stream:
                self._fail(place, Why.LOST)

    def _lose_connection(self) -> None:
        self._lose_calls(0)
        self._is_open = False
        self._pongs.clear()
        self._out = b""

    def _put(self, frames: bytes) -> None:
        if len(self._out) + len(frames) > MAX_OUT:
            raise _BrokenError
        self._out += frames

    def _answer_pings(self) -> None:
        self._put(b"".join(frame(_Kind.PING, _ACK, 0, ping) for ping in self._pongs))
        self._pongs.clear()

    def _pong_if_long_ago(self, now: float) -> None:
        """With a request, which wakes the peer anyway."""
        if self._pongs and now - self._pinged >= _PONG_PAUSE:
            try:
                self._answer_pings()
            except _BrokenError:
                self._lose_connection()

    def _begin(self, row: int, repeat: _Repeat, now: float) -> bool:
        """Begins the call that is due; false if that cannot be now."""
        size = len(repeat.body)
        if (
            not self.takes_calls
            or len(self._calls) >= self._most
            or size > min(self._peer_window, self._window)
        ):
            return False
        stream = self._next_stream
        try:
            self._put(
                frame(_Kind.HEADERS, _END_HEADERS, stream, self._headers)
                + frame(_Kind.DATA, _END_STREAM, stream, repeat.body)
            )
        except _BrokenError:
            return False
        self._next_stream += 2
        self._window -= size
        place = next(i for i in range(AT_ONCE) if i not in self._calls)
        self._calls[place] = _Call(row, stream, began=now, deadline=now + repeat.timeout)
        repeat.is_under_way = True
        repeat.after = repeat.due + repeat.period
        repeat.due = math.inf
        return True

    def _take_frames(self, now: float) -> None:
        """Takes the whole frames at the beginning of what came."""
        at = 0
        while len(self._in) - at >= _HEAD:
            start = at + _HEAD
            size = _number(self._in[at : at + 3])
            if size > _MAX_FRAME:
                raise _BrokenError
            if len(self._in) - start < size:
                break
            kind, flags = self._in[at + 3], self._in[at + 4]
            stream = _number(self._in[at + 5 : start]) & 0x7FFFFFFF
            self._take_frame(kind, flags, stream, self._in[start : start + size], now)
            at = start + size
        self._in = self._in[at:]

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes, now: float) -> None:
        """What comes for a call that was broken off is passed over."""
        match kind:
            case _Kind.DATA | _Kind.HEADERS:
                self._take_part(kind, flags, stream, payload, now)
            case _Kind.RST:
                _expect(stream != 0 and len(payload) == 4)
                place = self._place(stream)
                if place is not None:
                    self._fail(place, Why.RESET, _number(payload))
            case _Kind.SETTINGS:
                _expect(stream == 0)
                self._take_settings(flags, payload)
            case _Kind.PING:
                _expect(stream == 0 and len(payload) == 8)
                if not flags & _ACK:
                    self._take_ping(payload, now)
            case _Kind.GOAWAY:
                _expect(stream == 0 and len(payload) >= 8)
                self._is_going_away = True
                self._lose_calls(_number(payload[:4]) & 0x7FFFFFFF)
            case _Kind.WINDOW:
                _expect(len(payload) == 4)
                if stream == 0:  # what was asked on others has been sent
                    more = _number(payload) & 0x7FFFFFFF
                    self._window += more
                    _expect(more > 0 and self._window <= _MAX_WINDOW)
            case _Kind.PUSH | _Kind.CONTINUATION:
                raise _BrokenError

    def _place(self, stream: int) -> int | None:
        return next((place for place, call in self._calls.items() if call.stream == stream), None)

    def _take_part(self, kind: int, flags: int, stream: int, payload: bytes, now: float) -> None:
        """The next bytes of an answer: headers, data, trailers."""
        _expect(stream != 0 and not flags & (_PADDED | _HAS_PRIORITY))
        if kind == _Kind.DATA:
            self._make_room(len(payload))
        else:
            _expect(bool(flags & _END_HEADERS))
        place = self._place(stream)
        if place is None:
            return
        call, is_last = self._calls[place], bool(flags & _END_STREAM)
        _expect(call.head is None or kind == _Kind.DATA or is_last)
        _expect(call.head is not None or kind == _Kind.HEADERS)
        if call.size + len(payload) > MAX_ANSWER:
            if is_last:
                self._fail(place, Why.TOO_LONG)
            else:
                self._break_off(place, Why.TOO_LONG)
            return
        if kind == _Kind.DATA:
            call.data += payload
        elif call.head is None:
            call.head = payload
        else:
            call.tail = payload
        if is_last:
            self._end(place, now)

    def _end(self, place: int, now: float) -> None:
        """The answer is there, all of it."""
        call = self._calls.pop(place)
        repeat = self._repeats[call.row]
        assert repeat is not None
        is_usual = call.head in self._heads and call.tail in self._tails and says_success(call.data)
        if repeat.is_stopped or len(self._passes) == MAX_PASSED or not is_usual:
            self._tell(call.row, Why.ANSWERED, call.began, answer=call)
            return
        self._passes.append((repeat.id, now - call.began))
        repeat.is_under_way = False
        repeat.due = max(repeat.after, now)

    def _take_settings(self, flags: int, payload: bytes) -> None:
        _expect(len(payload) % 6 == 0)
        if flags & _ACK:
            _expect(not payload)
            return
        for at in range(0, len(payload), 6):
            setting, value = _number(payload[at : at + 2]), _number(payload[at + 2 : at + 6])
            if setting == _MAX_STREAMS_SETTING:
                self._most = min(value, AT_ONCE)
            elif setting == _WINDOW_SETTING:
                _expect(value <= _MAX_WINDOW)
                self._peer_window = value
        self._put(frame(_Kind.SETTINGS, _ACK, 0))

    def _take_ping(self, payload: bytes, now: float) -> None:
        if len(self._pongs) == _PONGS:
            self._answer_pings()
        if not self._pongs:
            self._pinged = now
        self._pongs.append(payload)

    def _make_room(self, taken: int) -> None:
        self._taken += taken
        if self._taken >= _ROOM:
            self._put(frame(_Kind.WINDOW, 0, 0, self._taken.to_bytes(4, "big")))
            self._taken = 0


def _expect(is_so: bool) -> None:
    if not is_so:
        raise _BrokenError
