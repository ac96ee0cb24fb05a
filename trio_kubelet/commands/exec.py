"""`trio-kubelet exec POD -- COMMAND`: a command in a container, over the agent's local socket.

The protocol is the API's own, v5.channel.k8s.io: a WebSocket whose messages begin with a stream's number.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final
from urllib.parse import urlencode

import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, HandshakeError, wrap_client_stream
from trio_websocket import WebSocketConnection as Connection

from trio_kubelet.commands.client import AgentUnreachable
from trio_kubelet.commands.logs import choose_container, default_container, path_of
from trio_kubelet.commands.output import complain, escaped
from trio_kubelet.commands.queries import NotThere, the_pod
from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.log import describe_error

PROTOCOL: Final = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = b"\0", 1, 2, 3, b"\4", b"\xff"
_READ = 64 * 1024
_CONNECT_SECONDS = 30.0


def run_in_container(options: argparse.Namespace, socket_path: str) -> int:
    """Runs the command; returns its exit code.

    Raises AgentUnreachable, NotThere; OSError when our output cannot be written, as when its reader left;
    KeyboardInterrupt when Ctrl-C broke it off.
    """
    pod = the_pod(options.pod, options.namespace, socket_path)
    if (phase := pod.get("status", {}).get("phase")) in ("Succeeded", "Failed"):
        raise NotThere(f"cannot exec into a container in a completed pod; current phase is {phase}")
    wanted = options.container or default_container(pod)
    path = path_of(pod, choose_container(pod, wanted, quiet=options.quiet), "exec")
    terminal = options.tty and options.stdin and sys.stdin.isatty()
    if options.tty and options.stdin and not terminal and not options.quiet:
        complain("Unable to use a TTY - input is not a terminal or the right kind of file")
    query = [("command", word) for word in options.words] + [("output", "1")]
    query += [("input", "1")] if options.stdin else []
    query += [("tty", "1")] if terminal else [("error", "1")]
    target = f"{path}?{urlencode(query)}"
    with _raw_terminal(terminal):
        try:
            return trio.run(_run, socket_path, target, options.stdin, terminal)
        except BaseExceptionGroup as group:
            raise _reason(group) from None


def _reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a group means: tasks fail beside each other, but there is one thing to say."""
    for each in leaves(group):
        if isinstance(each, ConnectionRejected):  # raised by the task that reads, when the answer has a body
            said = (each.body or b"").decode("utf-8", "replace").strip()
            return AgentUnreachable(said or f"the agent answered {each.status_code}")
        if isinstance(each, HandshakeError):
            return AgentUnreachable(f"the agent did not answer as it should ({each})")
        if isinstance(each, AgentUnreachable | OSError | KeyboardInterrupt):
            return each
    return group


@contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    """Keys go to the container as they are pressed, Ctrl-C too."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def _run(socket_path: str, target: str, stdin: bool, terminal: bool) -> int:
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        # Copies that do not block; what they set is put back when they are closed.
        in_, out, err = [
            await stack.enter_async_context(trio.lowlevel.FdStream(os.dup(number))) for number in range(3)
        ]
        try:
            with trio.fail_after(_CONNECT_SECONDS):
                stream = await trio.open_unix_socket(socket_path)
                connection = await wrap_client_stream(
                    nursery, stream, "agent", target, subprotocols=[PROTOCOL]
                )
        except (OSError, trio.TooSlowError) as exc:
            why = describe_error(exc)
            raise AgentUnreachable(f"no answer at {socket_path} ({why}); is the agent running?") from exc
        if stdin:
            nursery.start_soon(_send_input, in_, connection)
        if terminal and sys.stdout.isatty():
            nursery.start_soon(_send_size, connection)
        code = await _receive(connection, out, err)
        nursery.cancel_scope.cancel()
    return code


async def _receive(connection: Connection, out: trio.abc.SendStream, err: trio.abc.SendStream) -> int:
    code, told = 1, False
    try:
        while True:
            message = await connection.get_message()
            data = message.encode() if isinstance(message, str) else message
            if data[:1] in (bytes([_STDOUT]), bytes([_STDERR])):
                await _print(out if data[0] == _STDOUT else err, data[1:])
            elif data[:1] == bytes([_STATUS]):
                code, why = exit_code(data[1:])
                told = True
                if why:
                    await err.send_all(f"trio-kubelet: {escaped(why)}\n".encode())
    except ConnectionClosed as exc:
        if not told:
            raise AgentUnreachable(f"the connection ended before the command did ({exc.reason})") from exc
    return code


async def _print(stream: trio.abc.SendStream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError as exc:
        raise exc.__cause__ or exc from None


def exit_code(status: bytes) -> tuple[int, str]:
    """The exit code a status stands for, and why where it is no code of the command's own."""
    try:
        found = json.loads(status)
        if found.get("status") == "Success":
            return 0, ""
        if found.get("reason") == "NonZeroExitCode":
            causes = found["details"]["causes"]
            return next(int(each["message"]) for each in causes if each["reason"] == "ExitCode"), ""
        return 1, str(found.get("message", "the command failed"))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return 1, "the agent's last word is not understood"


async def _send_input(stream: trio.abc.ReceiveStream, connection: Connection) -> None:
    try:
        while data := bytes(await stream.receive_some(_READ)):
            await connection.send_message(_STDIN + data)
        await connection.send_message(_CLOSE + _STDIN)
    except ConnectionClosed:
        return  # the command has ended, which the receiver tells


async def _send_size(connection: Connection) -> None:
    """The size of the terminal, now and whenever it changes."""
    with trio.open_signal_receiver(signal.SIGWINCH) as changes:
        while True:
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
            try:
                await connection.send_message(
                    _RESIZE + json.dumps({"Width": columns, "Height": lines}).encode()
                )
            except ConnectionClosed:
                return
            await anext(aiter(changes))
