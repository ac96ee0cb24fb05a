"""The calls of `pure_repeats` with a clock and a socket, in a thread, so that nobody is woken for what says
nothing new. `repeats` does the same in C (`csrc/repeats_serve.c`).
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from typing import Final

from trio_kubelet.native.pure_repeats import MAX_PASSED, End, RepeatedCalls

TOGETHER: Final = 14
"""Calls that `serve` begins at one moment, unless there are so many that more have to be."""

LOOKS: Final = 8
"""Moments in each second at which it looks for answers."""

LATE_LOOKS: Final = 4
"""Of those that have not come after `LATE` seconds."""

LATE: Final = 0.25

_READS: Final = 64  # one after the other: a mebibyte at a look
_ONCE: Final = 16384  # bytes of each


class PureRepeats(RepeatedCalls):
    """Calls that may be served: `add`, `stop`, `take_passed` and `leave` may be called meanwhile, from other
    threads.
    """

    def __init__(self, headers: bytes) -> None:
        super().__init__(headers)
        self._lock = threading.RLock()
        self._wakes_at = -math.inf  # serve, which is woken for what is due earlier
        self._event = -1
        self._is_left = False

    def add(self, body: bytes, due: float, period: float, timeout: float) -> int | None:
        with self._lock:
            id = super().add(body, due, period, timeout)
            if id is not None and due < self._wakes_at:
                self._wake()
        return id

    def stop(self, id: int) -> tuple[bool, float]:
        with self._lock:
            return super().stop(id)

    def take_passed(self) -> list[tuple[int, float]]:
        with self._lock:
            return super().take_passed()

    def serve(self, socket: int, event: int, ahead: float) -> list[End]:
        """Receives, takes turns and sends, with a socket, at the moments at which there is something to do:
        until an end is to be told, a call is due and there is no connection for it, many that passed wait to
        be counted, or `leave`.

        `ahead` makes moments of the monotonic clock's. Meanwhile `add`, `stop`, `take_passed` and `leave` may
        be called, from other threads; `event`, an eventfd that does not block, is how these wake it.
        """
        with self._lock:
            self._event = event
            while True:
                now = time.monotonic() + ahead
                self._receive(socket, now)
                if self.next <= now and (self.takes_calls or self._calls):
                    self._take_turn(now, max(TOGETHER, math.ceil(self._rate / LOOKS)))
                self._transmit(socket)
                if self._is_over(now):
                    break
                self._sleep_until(self._next_look(now), event, ahead)
            self._is_left, self._event = False, -1
        return self._told()

    def leave(self) -> None:
        """Ends `serve`, now or as soon as it begins."""
        with self._lock:
            self._is_left = True
            self._wake()

    def _wake(self) -> None:
        if self._event >= 0:
            os.eventfd_write(self._event, 1)

    def _receive(self, socket: int, now: float) -> None:
        for _ in range(_READS):
            if not self._is_open:
                return
            try:
                data = os.read(socket, _ONCE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lose_connection()
            self._take(data, now)
            if len(data) < _ONCE:
                return

    def _transmit(self, socket: int) -> None:
        if not self._out or not self._is_open:
            return
        try:
            self.sent(os.write(socket, self._out))
        except BlockingIOError:
            return
        except OSError:
            self._lose_connection()

    def _next_look(self, now: float) -> float:
        """The moments are the same for all, so that one of them serves many."""
        due = self.next if self.next > now else _next_moment(now, LOOKS)
        if not self._calls and not self._out:
            return due
        return min(due, _next_moment(now, LATE_LOOKS if now - self.newest >= LATE else LOOKS))

    def _sleep_until(self, then: float, event: int, ahead: float) -> None:
        """Without the lock, unless it is woken."""
        self._wakes_at = then
        self._lock.release()
        try:
            left = max(then - time.monotonic() - ahead, 0.0)
            poll = select.poll()
            poll.register(event, select.POLLIN)
            if poll.poll(1000 * min(left, 1e6)):
                os.eventfd_read(event)
        finally:
            self._lock.acquire()
            self._wakes_at = -math.inf

    def _is_over(self, now: float) -> bool:
        """Whether somebody else has to do something."""
        wants_connection = self.next <= now and not self._calls and not self.takes_calls
        is_full = len(self._passes) >= MAX_PASSED // 2
        return self._is_left or bool(self._ends) or is_full or wants_connection


def _next_moment(now: float, each_second: int) -> float:
    return (math.floor(now * each_second) + 1) / each_second
