"""Writes lines of a log to a stream without ever waiting for its reader.

A line that standard error cannot take at once is kept (up to `BACKLOG_BYTES`) and written with a later line;
beyond that, lines are lost and counted, and how many is told when the reader is back. A file takes
everything, but the disk may be busy for a minute: the agent has a thread write to it.
"""

from __future__ import annotations

import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Final

BACKLOG_BYTES: Final = 1 << 20
TOGETHER: Final = 0.02
"""Seconds that a thread waits between two writes to a file: one wake-up for the lines of a burst."""
# Linux reports a pipe as writable when it takes this much without blocking.
_CHUNK: Final = 4096


class LogWriter:
    """Writes to one stream, a piece at a time, in whichever thread logs."""

    def __init__(self, stream: IO[str] | None, lost: Callable[[int], str]) -> None:
        """None stands for the process's standard error, whatever `sys.stderr` is at the moment. `lost` is the
        line that tells how many were lost.
        """
        self._stream = stream
        self._lost = lost
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._fd = 2
        if stream is not None:
            try:
                self._fd = stream.fileno()
            except (OSError, ValueError):
                self._fd = -1

    def is_to_a_file(self) -> bool:
        """Whether what it writes goes to a disk."""
        try:
            return stat.S_ISREG(os.fstat(self._fd).st_mode)
        except OSError:
            return False

    def write(self, line: str) -> None:
        with self._lock:
            if self._fd < 0 and self._stream is not None:
                self._stream.write(line)
                return
            self._push(line.encode("utf-8", "backslashreplace"))
            self._drain(0)

    def flush(self, timeout: float) -> None:
        """Give the reader up to `timeout` seconds to take what is left."""
        with self._lock:
            if self._fd >= 0:
                self._drain(timeout)

    def _push(self, data: bytes) -> None:
        if self._backlog_bytes + len(data) > BACKLOG_BYTES:
            self._dropped += 1
            return
        self._backlog.append(data)
        self._backlog_bytes += len(data)

    def _drain(self, timeout: float) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        deadline = time.monotonic() + timeout
        while self._backlog:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return
            data = self._backlog.popleft()
            self._backlog_bytes -= len(data)
            try:
                written = os.write(self._fd, data[:_CHUNK])
            except BlockingIOError:
                written = 0
            except OSError:
                continue  # nobody reads any more: the line is lost, the agent goes on
            if written < len(data):
                self._backlog.appendleft(data[written:])
                self._backlog_bytes += len(data) - written
                if not written:
                    return
            if not self._backlog:
                self._tell_dropped()

    def _tell_dropped(self) -> None:
        """How many lines were lost, once there is room for that. With the lock."""
        if self._dropped:
            note = self._lost(self._dropped)
            self._dropped = 0
            self._push(note.encode())


class FileLogWriter(LogWriter):
    """Writes lines to a file, in a thread: a disk may be busy for a minute, and who writes waits for it."""

    def __init__(self, stream: IO[str] | None, lost: Callable[[int], str]) -> None:
        super().__init__(stream, lost)
        self._fd = os.dup(self._fd)  # the stream may be closed while the disk still has not taken its lines
        self._changed = threading.Condition(self._lock)
        self._writing = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def _drain(self, timeout: float) -> None:
        self._changed.notify_all()
        if timeout:
            self._changed.wait_for(lambda: not self._backlog and not self._writing, timeout)

    def _run(self) -> None:
        """The thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog)
                lines = b"".join(self._backlog)
                self._backlog.clear()
                self._backlog_bytes = 0
                self._tell_dropped()
                self._writing = True
            try:
                while lines:
                    lines = lines[os.write(self._fd, lines) :]
            except OSError:
                pass  # the disk is full, say: the lines are lost, the agent goes on
            with self._changed:
                self._writing = False
                self._changed.notify_all()
            time.sleep(TOGETHER)


def log_writer(stream: IO[str] | None, lost: Callable[[int], str], in_thread: bool) -> LogWriter:
    """Who writes to a stream; lines for a file in a thread if that is wanted."""
    writer = LogWriter(stream, lost)
    return FileLogWriter(stream, lost) if in_thread and writer.is_to_a_file() else writer
