"""Container logs at the speed of memory: CRI lines of the usual shape are copied in C.

Whatever else stands in a log (the first line, which settles the format, Docker's JSON, times written in an
unusual way, broken lines) goes through the plain-Python twin line by line, on the same state.
"""

from __future__ import annotations

from trio_kubelet.native.library import core
from trio_kubelet.native.pure_crilog import Copied, LogOptions, PureLogFilter

_NANOS = 1_000_000_000

LogFilter: type[PureLogFilter]
"""What reads logs here: the C one where the extension is built."""

if core is not None:
    _ffi, _lib = core.ffi, core.lib

    class CLogFilter(PureLogFilter):
        """See `PureLogFilter`; one thread at a time."""

        def __init__(self, options: LogOptions) -> None:
            super().__init__(options)
            state = self._state = _ffi.new("tk_log_copy *")
            state.want_stdout = options.stdout
            state.want_stderr = options.stderr
            state.timestamps = options.timestamps
            if options.since_ns is not None:
                state.has_since = 1
                state.since_seconds, state.since_nanos = divmod(options.since_ns, _NANOS)

        def copy(self, data: bytes, final: bool = False) -> Copied:
            output: list[bytes] = []
            at = 0
            # A stamp is at most two bytes longer than what a line loses.
            room = bytearray(len(data) + len(data) // 8 + 64)
            given, taken = _ffi.from_buffer(data), _ffi.from_buffer(room)
            while not self.done and at < len(data):
                if self.is_cri:
                    at += self._copy_quick(given + at, len(data) - at, taken, room, output)
                    if self.done or self._code == _lib.TK_LOG_FULL:
                        continue
                end = data.find(b"\n", at) + 1 or (len(data) if final else 0)
                if end == 0 or at == len(data):
                    break
                output.append(self.take(data[at:end]))
                at = end
            return Copied(b"".join(output), at, self.done)

        def _copy_quick(
            self, given: object, size: int, taken: object, room: bytearray, output: list[bytes]
        ) -> int:
            """Copies what C can; returns how much of the piece that was."""
            state = self._state
            state.lines_left, state.bytes_left = self.lines_left, self.bytes_left
            state.new_line = self.new_line
            self._code = _lib.tk_log_copy_lines(state, given, size, taken, len(room))
            self.lines_left, self.bytes_left = int(state.lines_left), int(state.bytes_left)
            self.new_line = bool(state.new_line)
            with memoryview(room) as view:
                output.append(bytes(view[: state.written]))
            return int(state.consumed)

    LogFilter = CLogFilter
else:
    LogFilter = PureLogFilter
