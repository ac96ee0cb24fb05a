"""What a container says about its own end: the termination message file, or the end of its log.

The file is mounted into the container (`terminationMessagePath`); at most its last 4096 bytes count. With
`FallbackToLogsOnError` an empty message of a failed container is replaced by the end of the log: 80
lines, of which the last 2048 bytes. Functions with `read` in their name touch files and are to be
called in a thread.
"""

from __future__ import annotations

import os
import re

from trio_kubelet.common import utf8
from trio_kubelet.common.container_files import open_regular
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import go_quote

MAX_MESSAGE_BYTES = 4096
MAX_LOG_BYTES = 2048
MAX_LOG_LINES = 80
FALLBACK_TO_LOGS = "FallbackToLogsOnError"

_BLOCK = 64 * 1024
_MOST_READ = 4 * 1024 * 1024  # of 80 lines, which runtimes cut into pieces of 16 KiB


class UnknownLogFormat(ValueError):
    """A log of which the first line has no format of logs."""


def read_termination_message(file_path: str, log_path: str, fallback_to_logs: bool) -> str:
    """The message of a container that has ended; "" if it left none.

    `file_path` is the message file on the host ("" for none). Problems with reading are told in the
    message itself, as the kubelet does: there is no better place for an operator to see them.
    """
    message = b""
    if file_path:
        try:
            message = read_tail(file_path, MAX_MESSAGE_BYTES)
        except FileNotFoundError:
            pass
        except OSError as error:
            return f"Error on reading termination log {file_path}: {error_words(error, 'open')}"
    if not message and fallback_to_logs:
        try:
            message = read_log_tail(log_path)
        except (OSError, UnknownLogFormat) as error:
            return f"Error on reading termination message from logs: {_log_words(error, log_path)}"
    return utf8.decode(message)


def _log_words(error: Exception, path: str) -> str:
    """Why a log cannot be read; of one that is missing the first part of its path that is."""
    if isinstance(error, FileNotFoundError):
        while (above := os.path.dirname(error.filename)) and not os.path.lexists(above):
            error.filename = above
        return f"failed to try resolving symlinks in path {go_quote(path)}: {error_words(error, 'lstat')}"
    words = error_words(error, "open")
    return f"failed to open log file {go_quote(path)}: {words}" if isinstance(error, OSError) else words


def read_tail(path: str, limit: int) -> bytes:
    """The last `limit` bytes of a file. Raises OSError."""
    with open(open_regular(path), "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - limit))
        return file.read(limit)


def read_log_tail(path: str) -> bytes:
    """The text of the last lines of a log, cut to its last bytes. Raises OSError, UnknownLogFormat."""
    with open(open_regular(path), "rb") as file:
        position = file.seek(0, 2)
        data = b""
        while position > 0 and data.count(b"\n") <= MAX_LOG_LINES and len(data) < _MOST_READ:
            start = max(0, position - _BLOCK)
            file.seek(start)
            data = file.read(position - start) + data
            position = start
    if position > 0 and data.count(b"\n") <= MAX_LOG_LINES:
        data = data[data.find(b"\n") + 1 :]  # it begins within a line
    return log_tail(data, MAX_LOG_LINES)[-MAX_LOG_BYTES:]


def log_tail(data: bytes, lines: int) -> bytes:
    """The joined text of the last `lines` complete lines (fewer: of all lines) of a log's data.

    Lines that make no sense are skipped; if the very first one does, this is another format. Raises
    UnknownLogFormat.
    """
    from trio_kubelet.native.crilog import LogFilter  # containers that fail without a word are few
    from trio_kubelet.native.pure_crilog import LogOptions, UnsupportedLog

    ends = [match.end() for match in re.finditer(b"\n", data)]
    start = ends[-lines - 1] if len(ends) > lines else 0
    try:
        return LogFilter(LogOptions(lines=lines)).copy(data[start:], final=True).output
    except UnsupportedLog as error:
        raise UnknownLogFormat(str(error)) from None
