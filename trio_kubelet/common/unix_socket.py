"""Listening on unix sockets."""

from __future__ import annotations

import contextlib
import os
import socket


def listen_at(path: str, mode: int, backlog: int = socket.SOMAXCONN) -> socket.socket:
    """A listening socket in place of whatever was there; in one step, so that there is always one.

    Raises OSError.
    """
    fresh = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listening.fileno(), mode)  # a socket file takes its mode from here when it is bound
        listening.bind(fresh)
        listening.listen(backlog)
        os.replace(fresh, path)
    except OSError:
        listening.close()
        raise
    return listening
