"""Commands that are run again and again until one of them has something to say: exec probes that pass.

All of them share one HTTP/2 connection and one task. What is due and what the answers say is C's
(`native.repeats`); Python wakes it at a few moments of each second, reads and writes the socket, and hears of
those that ended otherwise than before. To be woken is most of what a small call costs, and the interpreter's
own work with cold caches the rest.
"""

from __future__ import annotations

import functools
import math
import socket
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio
from hpack import Decoder, HPACKError

from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.answers import MAX_MESSAGE, reset_error, text_of
from trio_kubelet.cri.caller import PATHS
from trio_kubelet.cri.connection import request_headers
from trio_kubelet.cri.direct import messages_of
from trio_kubelet.cri.doors import Repeat
from trio_kubelet.cri.errors import Unavailable
from trio_kubelet.grpc import framing
from trio_kubelet.native.pure_repeats import End, Why
from trio_kubelet.native.repeats import Repeats

log = get_logger(__name__)

METHOD: Final = "ExecSync"
_TOGETHER: Final = 14
"""Calls that are begun at one moment, unless there are so many that more have to be."""
_LOOKS: Final = 8  # moments in each second at which answers are looked for
_LATE_LOOKS: Final = 4  # of those that have not come after
_LATE: Final = 0.25  # seconds
_SETTLED_AFTER: Final = 1.0
"""Seconds for which a call that passed may wait to be counted: many are at once, with warm caches."""
_PAUSE: Final = 60.0
"""Seconds for which nothing is repeated after a connection that could not be understood."""
_CHUNK: Final = 1 << 16
_READS: Final = 4  # one after the other

Answer = Callable[[], Sequence[bytes]]
"""All messages of an answer that nobody waited for; raises as the call would have."""

Passed = Callable[[float], None]
"""A call passed after so many seconds."""

EndOfCall = Callable[[Answer | None, float], None]
"""A call ended otherwise, and is not repeated any more: its answer, and when it began. None: it is to be made
in some other way, for there was no room for it or for what it said.
"""


class _Each(NamedTuple):
    """What is repeated."""

    period: float
    passed: Passed
    end: EndOfCall


class RepeatedExecs:
    """The commands that are repeated. Seconds and moments are of Trio's clock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._repeats = Repeats(request_headers(PATHS[METHOD]))
        self._each: dict[int, _Each] = {}
        self._rate = 0.0  # calls a second
        self._socket: socket.socket | None = None
        self._settled = -math.inf
        self._not_before = -math.inf
        self._wakes_at = math.inf
        self._sleep = trio.CancelScope()  # until then

    def close(self) -> None:
        """Closes the connection; nobody is told of what was under way."""
        self._each.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def under_way(self) -> int:
        """How many calls wait for their answer."""
        return self._repeats.under_way

    def add(
        self, request: bytes, due: float, period: float, timeout: float, passed: Passed, end: EndOfCall
    ) -> Repeat | None:
        """A call from `due` on. None if it cannot be repeated here."""
        if trio.current_time() < self._not_before:
            return None
        number = self._repeats.add(framing.frame(request), due, period, timeout)
        if number is None:
            return None
        self._each[number] = _Each(period, passed, end)
        self._rate += 1 / period
        if due < self._wakes_at:
            self._wakes_at = self._sleep.deadline = due
        return _Repeat(self, number)

    def stop(self, number: int) -> float | None:
        """Ends it; see `_Repeat.stop`."""
        self._settle()
        is_forgotten, due = self._repeats.stop(number)
        if not is_forgotten:
            return None
        self._forget(number)
        return due

    async def run(self) -> None:
        """Makes the calls, until cancelled."""
        while True:
            self._wakes_at = self._next(trio.current_time())
            with trio.CancelScope(deadline=self._wakes_at) as self._sleep:
                await trio.sleep_forever()
            self._turn(trio.current_time())

    def _next(self, now: float) -> float:
        """When there is something to do. Answers are looked for at moments that are the same for all."""
        repeats = self._repeats
        due = repeats.next if repeats.next > now else _next_moment(now, _LOOKS)
        if not repeats.under_way:
            return due
        return min(due, _next_moment(now, _LOOKS if now - repeats.newest < _LATE else _LATE_LOOKS))

    def _turn(self, now: float) -> None:
        ended = self._read(now)
        if self._repeats.next <= now:
            if not self._repeats.takes_calls and not self._repeats.under_way:
                self._connect()
            ended += self._repeats.turn(now, max(_TOGETHER, math.ceil(self._rate / _LOOKS)))
        ended += self._write()
        if not self._repeats.is_connected:
            self._disconnect()
        if ended or now - self._settled >= _SETTLED_AFTER or self._repeats.next - now >= _SETTLED_AFTER:
            self._settle()
            self._settled = now
        # All are forgotten before the first is told: who hears of one may have another repeated in its place.
        for each, end in [(self._forget(end.id), end) for end in ended]:
            self._tell(each, end)

    # The connection.

    def _connect(self) -> None:
        """A unix socket has a connection at once or not at all; without one, calls are not made."""
        self._disconnect()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return
        self._socket = connection
        self._repeats.connected()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _read(self, now: float) -> list[End]:
        """Takes what has come; the ends that it told."""
        ended: list[End] = []
        for _ in range(_READS if self._socket is not None else 0):
            assert self._socket is not None
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            ended += self._repeats.received(chunk, now) if chunk else self._repeats.lost()
            if not self._repeats.is_connected:
                if chunk:
                    self._give_up(now, "the runtime sent frames that have no place there")
                self._disconnect()
                break
            if len(chunk) < _CHUNK:
                break
        return ended

    def _write(self) -> list[End]:
        """Sends what can be sent; what cannot waits for the next turn."""
        if self._socket is None or not (data := self._repeats.out()):
            return []
        try:
            self._repeats.sent(self._socket.send(data))
        except BlockingIOError:
            return []
        except OSError:
            return self._repeats.lost()
        return []

    def _give_up(self, now: float, reason: str) -> None:
        log.warning("Commands of probes are run one by one for a minute", reason=reason)
        self._not_before = now + _PAUSE

    # Ends.

    def _settle(self) -> None:
        """Counts the calls that passed."""
        if self._repeats.passed:
            each = self._each
            for number, seconds in self._repeats.take_passed():
                each[number].passed(seconds)

    def _forget(self, number: int) -> _Each:
        each = self._each.pop(number)
        self._rate -= 1 / each.period
        return each

    def _tell(self, each: _Each, end: End) -> None:
        if end.why in (Why.NOT_MADE, Why.TOO_LONG):
            each.end(None, end.began)
        else:
            each.end(functools.partial(self._messages, end), end.began)

    def _messages(self, end: End) -> Sequence[bytes]:
        """The messages of an answer; raises what it says instead, or what ended its call."""
        if end.why is Why.OVERDUE:
            raise trio.TooSlowError
        if end.why is Why.LOST:
            raise Unavailable("connection error: Connection lost", METHOD)
        if end.why is Why.RESET:
            raise reset_error(end.code)
        reader = framing.MessageReader(MAX_MESSAGE)
        reader.feed(memoryview(end.data))
        try:
            said = {**_fields(end.head), **_fields(end.tail)}
        except HPACKError as exc:
            self._give_up(trio.current_time(), f"the runtime's headers are broken: {exc}")
            raise Unavailable(f"connection error: the runtime's headers are broken: {exc}", METHOD) from exc
        messages = messages_of(METHOD, (reader.take(), said))
        self._repeats.learn(end.head, end.tail)
        return messages


class _Repeat(Repeat):
    """One of the commands that are repeated."""

    __slots__ = ("_execs", "_number")

    def __init__(self, execs: RepeatedExecs, number: int) -> None:
        self._execs, self._number = execs, number

    def stop(self) -> float | None:
        """It is not run again. When it would have been; None if it is under way, whose end is told."""
        return self._execs.stop(self._number)


def _next_moment(now: float, each_second: int) -> float:
    return (math.floor(now * each_second) + 1) / each_second


def _fields(block: bytes) -> dict[str, str]:
    """What a block of headers says that refers to no table of the connection's. Raises HPACKError."""
    return {text_of(name): text_of(value) for name, value in Decoder().decode(block)}
