"""Asking the agent over its local socket: one GET, by the standard library alone."""

from __future__ import annotations

import http.client
import socket

SOCKET_NAME = "trio-kubelet.sock"
TIMEOUT = 10.0


class AgentUnreachable(Exception):
    """No answer from the agent; the text says what to do."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("agent", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self._path)


def ask(socket_path: str, target: str) -> bytes:
    """The body of the agent's answer. Raises AgentUnreachable."""
    connection = _UnixConnection(socket_path)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read()
    except PermissionError as exc:
        raise AgentUnreachable(f"{socket_path}: permission denied; ask as the agent's user") from exc
    except (OSError, http.client.HTTPException) as exc:
        hint = "is the agent running, and is its --root-dir the one given here?"
        raise AgentUnreachable(f"no answer at {socket_path} ({exc}); {hint}") from exc
    finally:
        connection.close()
    if answer.status != 200:
        raise AgentUnreachable(f"{target}: the agent answered {answer.status} {answer.reason}")
    return body
