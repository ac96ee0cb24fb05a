"""Calls that are made again and again, in C: exec probes, most of what a node at rest does.

One that passes costs some hundred and fifty calls of functions with cold caches in Python; here all that are
due together cost three.
"""

from __future__ import annotations

from typing import Any

from trio_kubelet.native.library import core
from trio_kubelet.native.pure_repeats import MAX_PASSED, End, Why
from trio_kubelet.native.pure_serving import PureRepeats

Repeats: type[PureRepeats]
"""What repeats calls here: the C one where the extension is built."""

if core is not None:
    _ffi, _lib = core.ffi, core.lib

    class CRepeats(PureRepeats):
        """See `PureRepeats`; one thread at a time, but for what may be called while another one serves."""

        def __init__(self, headers: bytes) -> None:
            state = _lib.tk_repeats_new(headers, len(headers))
            if state == _ffi.NULL:
                raise ValueError("the headers of the calls are too long")
            self._state = _ffi.gc(state, _lib.tk_repeats_free)
            self._view = _lib.tk_repeats_look(state)
            self._id, self._due = _ffi.new("uint64_t *"), _ffi.new("double *")
            self._passed = _ffi.new("tk_pass[]", MAX_PASSED)

        def add(self, body: bytes, due: float, period: float, timeout: float) -> int | None:
            code = _lib.tk_repeats_add(self._state, body, len(body), due, period, timeout, self._id)
            return int(self._id[0]) if code == 0 else None

        def stop(self, id: int) -> tuple[bool, float]:
            is_forgotten = bool(_lib.tk_repeats_stop(self._state, id, self._due))
            return is_forgotten, float(self._due[0])

        def connected(self) -> list[End]:
            _lib.tk_repeats_connected(self._state)
            return self._told()

        def lost(self) -> list[End]:
            _lib.tk_repeats_lost(self._state)
            return self._told()

        def received(self, data: bytes, now: float) -> list[End]:
            _lib.tk_repeats_received(self._state, data, len(data), now)
            return self._told()

        def turn(self, now: float, together: int) -> list[End]:
            _lib.tk_repeats_turn(self._state, now, together)
            return self._told()

        def out(self) -> bytes:
            return bytes(_ffi.buffer(self._view.out, self._view.out_size))

        def sent(self, size: int) -> None:
            _lib.tk_repeats_sent(self._state, size)

        def learn(self, head: bytes, tail: bytes) -> None:
            _lib.tk_repeats_learn(self._state, 0, head, len(head))
            _lib.tk_repeats_learn(self._state, 1, tail, len(tail))

        def take_passed(self) -> list[tuple[int, float]]:
            count = _lib.tk_repeats_passed(self._state, self._passed, MAX_PASSED)
            return [(each.id, each.seconds) for each in self._passed[0:count]]

        def serve(self, socket: int, event: int, ahead: float) -> list[End]:
            _lib.tk_repeats_serve(self._state, socket, event, ahead)
            return self._told()

        def leave(self) -> None:
            _lib.tk_repeats_leave(self._state)

        @property
        def next(self) -> float:
            return float(self._view.next)

        @property
        def newest(self) -> float:
            return float(self._view.newest)

        @property
        def under_way(self) -> int:
            return int(self._view.under_way)

        @property
        def passed(self) -> int:
            return int(self._view.passed)

        @property
        def is_connected(self) -> bool:
            return bool(self._view.is_connected)

        @property
        def is_odd(self) -> bool:
            return bool(self._view.is_odd)

        @property
        def takes_calls(self) -> bool:
            return bool(self._view.takes_calls)

        def _told(self) -> list[End]:
            """The ends that the last function told."""
            view = self._view
            return [_end(each) for each in view.ends[0 : view.end_count]] if view.end_count else []

    def _end(told: Any) -> End:
        """One end, copied: C keeps it until its next function."""
        answer = b""
        if told.answer != _ffi.NULL:
            answer = bytes(_ffi.buffer(told.answer, told.head + told.data + told.tail))
        data, tail = told.head, told.head + told.data
        return End(
            told.id, Why(told.why), told.began, told.code, answer[:data], answer[data:tail], answer[tail:]
        )

    Repeats = CRepeats
else:
    Repeats = PureRepeats
