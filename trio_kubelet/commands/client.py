"""Asking the agent over its local socket, by the standard library alone, and finding that socket."""

from __future__ import annotations

import glob
import http.client
import json
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from trio_kubelet.common.go_words import error_words

if TYPE_CHECKING:  # the agent imports this module too
    import argparse

T = TypeVar("T")

SOCKET_NAME = "trio-kubelet.sock"
TIMEOUT = 10.0
DEFAULT_ROOT_DIR = "/var/lib/kubelet"
STANDALONE_BASE = "/var/lib/trio-kubelet-standalone"
"""Where nodes of `trio-kubelet standalone` live, each in a directory of its name."""
SIMULATED_PREFIX = "trio-kubelet-"
"""How the temporary directories of those with a simulated runtime begin."""
AGENT_DIR = "kubelet"
"""The agent's root directory in a standalone node's."""
_PIECE = 64 * 1024
_REFUSAL = 4096


class AgentUnreachable(Exception):
    """No answer from the agent; the text says what to do."""


class AgentRefused(AgentUnreachable):
    """The agent answered with an error; `status` is that of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


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
    return b"".join(follow(socket_path, target))


def ask_json(socket_path: str, target: str, kind: type[T]) -> T:
    """The object or list that the agent answers. Raises AgentUnreachable."""
    try:
        found = json.loads(ask(socket_path, target))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind):
        raise AgentUnreachable(f"{socket_path}: no agent answers there, or one of another version ({target})")
    return found


def follow(socket_path: str, target: str, *, patient: bool = False) -> Iterator[bytes]:
    """The body of the agent's answer piece by piece, as it comes. Raises AgentUnreachable.

    `patient`: the answer has begun, but what follows may take any time (a log that is followed).
    """
    with closing(_UnixConnection(socket_path)) as connection:
        try:
            connection.request("GET", target)
            sock = connection.sock  # which the connection hands to an answer that ends it
            answer = connection.getresponse()
            if answer.status != 200:
                said = answer.read(_REFUSAL).decode("utf-8", "replace").strip()
                why = said or f"{target}: the agent answered {answer.status} {answer.reason}"
                raise AgentRefused(answer.status, why)
            if patient:
                sock.settimeout(None)
            while piece := answer.read1(_PIECE):
                yield piece
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
        except http.client.IncompleteRead as exc:
            raise AgentUnreachable(f"{socket_path}: the agent's answer broke off ({target})") from exc
        except PermissionError as exc:
            raise AgentUnreachable(f"{socket_path}: permission denied; ask as the agent's user") from exc
        except (OSError, http.client.HTTPException) as exc:
            hint = "is the agent running, and is its --root-dir the one given here?"
            raise AgentUnreachable(f"no answer at {socket_path} ({error_words(exc)}); {hint}") from exc


def add_where(parser: argparse.ArgumentParser) -> None:
    """The options that say which agent is meant, for `find_socket`."""
    parser.add_argument("--root-dir", help=f"the agent's --root-dir (default {DEFAULT_ROOT_DIR})")
    parser.add_argument(
        "--socket",
        help=f"the agent's socket (default {SOCKET_NAME} in the root directory, or that of the standalone "
        "node of this machine where no agent answers there)",
    )


def find_socket(given: str | None, root_dir: str | None) -> str:
    """The socket to ask: that given, that of the root directory given, that of this machine's agent, or that
    of the one standalone node of this user. Raises AgentUnreachable when several could be meant, or when
    there is only a standalone node of somebody else.
    """
    if given or root_dir:
        return given or os.path.join(root_dir or "", SOCKET_NAME)
    usual = os.path.join(DEFAULT_ROOT_DIR, SOCKET_NAME)
    answers = _answers(usual)
    if answers:
        return usual
    found = standalone_sockets()
    if len(found) > 1:
        raise AgentUnreachable(
            f"several standalone nodes run here: choose with --socket {' or '.join(found)}"
        )
    if not found and answers is False and (others := _nodes_of_others()):
        path, owner = others[0]
        raise AgentUnreachable(
            f"no agent of this user runs here, but {path} may be a standalone node of user {owner}: "
            "ask as that user, as with sudo"
        )
    return found[0] if found else usual


def standalone_sockets() -> list[str]:
    """The sockets of the standalone nodes of this machine that answer and belong to this user."""
    candidates = [os.path.join(node, AGENT_DIR, SOCKET_NAME) for node in _node_directories()]
    return [path for path in sorted(candidates) if _is_own(path) and _answers(path)]


def _node_directories() -> list[str]:
    temporary = os.path.join(glob.escape(tempfile.gettempdir()), f"{SIMULATED_PREFIX}*")
    return [*glob.glob(os.path.join(STANDALONE_BASE, "*", "")), *glob.glob(os.path.join(temporary, ""))]


def _nodes_of_others() -> list[tuple[str, str]]:
    """What look like directories of other users' nodes, and whose they are."""
    found = []
    for path in _node_directories():
        try:
            uid = os.stat(path).st_uid
        except OSError:
            continue  # gone meanwhile
        if uid != os.geteuid():
            found.append((path, _user(uid)))
    return found


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_own(path: str) -> bool:
    """Whether the socket is this user's: in a directory that all may write to anybody may put one."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _answers(path: str) -> bool | None:
    """Whether somebody listens there; None when this user must not know."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as attempt:
        attempt.settimeout(TIMEOUT)
        try:
            attempt.connect(path)
        except PermissionError:
            return None
        except OSError:
            return False
    return True
