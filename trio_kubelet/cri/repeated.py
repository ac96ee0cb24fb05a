"""Commands that are run again and again until one of them has something to say: exec probes that pass.

All of them share one HTTP/2 connection and one thread, which is C's (`native.repeats`): it makes the calls
that are due and reads what is answered. The event loop hears of those that ended otherwise than before, and
gives the thread a new connection when it wants one. At rest it is not even woken, which is most of what a
small call costs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import trio
from hpack import Decoder, HPACKError
from outcome import Outcome

from trio_kubelet.common.clock import sleep_with_others
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.threads import THREADS
from trio_kubelet.cri.answers import MAX_MESSAGE, reset_error, text_of
from trio_kubelet.cri.caller import PATHS
from trio_kubelet.cri.connection import request_headers
from trio_kubelet.cri.direct import messages_of
from trio_kubelet.cri.doors import Repeat
from trio_kubelet.cri.errors import Unavailable
from trio_kubelet.grpc import framing
from trio_kubelet.native.pure_repeats import End, Why
from trio_kubelet.native.pure_serving import TOGETHER
from trio_kubelet.native.repeats import Repeats

T = TypeVar("T")

log = get_logger(__name__)

METHOD: Final = "ExecSync"
_PAUSE: Final = 60.0
"""Seconds for which nothing is repeated after a connection that could not be understood."""
_LEFT_WITHIN: Final = 5.0
"""Seconds that the thread has to come to its end; it needs none."""

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

    passed: Passed
    end: EndOfCall


class RepeatedExecs:
    """The commands that are repeated. Seconds and moments are of Trio's clock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._repeats = Repeats(request_headers(PATHS[METHOD]))
        self._each: dict[int, _Each] = {}
        self._socket: socket.socket | None = None
        self._not_before = -math.inf

    def close(self) -> None:
        """Nobody is told of what was under way; the connection ends with `run`."""
        self._each.clear()

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
        self._each[number] = _Each(passed, end)
        return _Repeat(self, number)

    def stop(self, number: int) -> float | None:
        """Ends it; see `_Repeat.stop`."""
        is_forgotten, due = self._repeats.stop(number)
        self._settle()
        if not is_forgotten:
            return None
        self._each.pop(number, None)
        return due

    async def run(self) -> None:
        """Makes the calls, until cancelled."""
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._count)
                while True:
                    await self._serve(event)
        finally:
            self._disconnect()
            os.close(event)

    async def _count(self) -> None:
        """Counts what has passed now and then, with what else is done then."""
        while True:
            await sleep_with_others(1)
            self._settle()

    async def _serve(self, event: int) -> None:
        """Has the thread work until it wants something."""
        ahead = trio.current_time() - time.monotonic()
        ended = self._end_what_was_given_up()
        number = self._socket.fileno() if self._socket is not None else -1
        if not ended:
            serve = functools.partial(self._repeats.serve, number, event, ahead)
            ended = await _in_thread(serve, self._repeats.leave)
        now = trio.current_time()
        if self._socket is not None and not self._repeats.is_connected:
            self._disconnect()
            if self._repeats.is_odd:
                self._give_up(now, "the runtime sent frames that have no place there")
        if self._repeats.next <= now and not self._repeats.takes_calls and not self._repeats.under_way:
            self._connect()
            if self._socket is None:
                ended += self._repeats.turn(now, TOGETHER)
        self._settle()
        for end in ended:
            if (each := self._each.pop(end.id, None)) is not None:
                self._tell(each, end)

    # The connection.

    def _connect(self) -> None:
        """A unix socket has a connection at once or not at all; without one, calls are not made."""
        self._disconnect()
        if trio.current_time() < self._not_before:
            return
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

    def _give_up(self, now: float, reason: str) -> None:
        log.warning("Commands of probes are run one by one for a minute", reason=reason)
        self._not_before = now + _PAUSE

    def _end_what_was_given_up(self) -> list[End]:
        """The connection whose headers could not be read is still there."""
        if self._socket is None or trio.current_time() >= self._not_before:
            return []
        self._disconnect()
        return self._repeats.lost()

    # Ends.

    def _settle(self) -> None:
        """Counts the calls that passed."""
        for number, seconds in self._repeats.take_passed():
            if (each := self._each.get(number)) is not None:
                each.passed(seconds)

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


async def _in_thread(work: Callable[[], T], leave: Callable[[], None]) -> T:
    """What `work` returns, from a thread; cancelled, it is asked to leave, and waited for."""
    token, done, came = trio.lowlevel.current_trio_token(), trio.Event(), list[Outcome[T]]()

    def deliver(outcome: Outcome[T]) -> None:
        came.append(outcome)
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(done.set)

    THREADS.start_soon(work, deliver)
    try:
        await done.wait()
    finally:
        if not came:
            leave()
            with trio.move_on_after(_LEFT_WITHIN, shield=True):
                await done.wait()
    return came[0].unwrap()


def _fields(block: bytes) -> dict[str, str]:
    """What a block of headers says that refers to no table of the connection's. Raises HPACKError."""
    return {text_of(name): text_of(value) for name, value in Decoder().decode(block)}
