"""The end of a container's log as text, for a reader who looks at it again and again. Blocking."""

from __future__ import annotations

from typing import Final

from trio_kubelet.native.crilog import LogOptions
from trio_kubelet.server.logs.file import LogError, LogFile

LINES: Final = 300
BYTES: Final = 64 * 1024
_PIECES: Final = 16
"""Lines are at most so many pieces long that their end is still found."""


def log_tail(path: str, lines: int = LINES, limit: int = BYTES) -> str:
    """The last lines, at most `limit` bytes of them, with times; why there are none if that is so."""
    try:
        file = LogFile(path, LogOptions(timestamps=True), lines)
    except LogError as exc:
        return str(exc)
    text = b""
    try:
        for _ in range(_PIECES):
            piece = file.read()
            text = (text + piece.output)[-limit:]
            if piece.at_end or piece.done:
                break
        text = (text + file.finish())[-limit:]
    except LogError as exc:
        return str(exc)
    finally:
        file.close()
    return text.decode("utf-8", "replace")
