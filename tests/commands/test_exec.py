"""`trio-kubelet exec` as a process of its own, against a socket that answers as the agent does."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, wrap_server_stream

from tests.commands.test_render import POD
from trio_kubelet.commands.exec import _print, exit_code

Execute = Callable[[WebSocketRequest], Awaitable[None]]


@asynccontextmanager
async def executing(path: Path, execute: Execute, *options: str) -> AsyncIterator[trio.Process]:
    """The command, asking an agent whose answer is `execute`; its input, output and errors are pipes."""
    connections = itertools.count()

    async def answer(stream: trio.SocketStream) -> None:
        if next(connections) == 0:
            body = json.dumps({"items": [POD]}).encode()
            await stream.receive_some(4096)
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await stream.aclose()
            return
        async with trio.open_nursery() as nursery:
            await execute(await wrap_server_stream(nursery, stream))

    bound = trio.socket.socket(trio.socket.AF_UNIX)
    await bound.bind(str(path))
    bound.listen()
    words = ["exec", "web", "-c", "c", *options, "--socket", str(path), "--", "yes"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [trio.SocketListener(bound)])
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "trio_kubelet", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # As in a terminal, whatever runs the tests.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        with trio.fail_after(60):
            yield process
        nursery.cancel_scope.cancel()


async def writes_for_ever(request: WebSocketRequest) -> None:
    connection = await request.accept(subprotocol="v5.channel.k8s.io")
    try:
        while True:
            await connection.send_message(b"\x01y\n")
    except ConnectionClosed:
        return


async def all_of(process: trio.Process) -> bytes:
    """What it wrote to standard error, to the end."""
    assert process.stderr is not None
    said = b""
    async for piece in process.stderr:
        said += piece
    return said


async def test_a_refusal_is_said_in_its_own_words(tmp_path: Path) -> None:
    async def refuse(request: WebSocketRequest) -> None:
        await request.reject(500, body=b'container not found ("c")')

    async with executing(tmp_path / "s", refuse) as process:
        assert await all_of(process) == b'trio-kubelet: container not found ("c")\n'
        assert await process.wait() == 1


async def test_a_reader_that_leaves_ends_it_quietly(tmp_path: Path) -> None:
    async with executing(tmp_path / "s", writes_for_ever) as process:
        assert process.stdout is not None
        assert (await process.stdout.receive_some(2)) == b"y\n"
        await process.stdout.aclose()
        assert await all_of(process) == b""
        assert await process.wait() == 128 + signal.SIGPIPE


async def test_an_output_that_cannot_be_written_is_an_error() -> None:
    async with trio.lowlevel.FdStream(os.open("/dev/full", os.O_WRONLY)) as full:
        with pytest.raises(OSError, match="No space left"):
            await _print(full, b"y")


async def test_ctrl_c_breaks_it_off_quietly(tmp_path: Path) -> None:
    async with executing(tmp_path / "s", writes_for_ever) as process:
        assert process.stdout is not None
        await process.stdout.receive_some(2)
        os.kill(process.pid, signal.SIGINT)
        async for _ in process.stdout:
            pass
        assert await all_of(process) == b""
        assert await process.wait() == 128 + signal.SIGINT


async def test_a_terminal_is_asked_for_where_there_is_one(tmp_path: Path) -> None:
    asked = ""

    async def refuse(request: WebSocketRequest) -> None:
        nonlocal asked
        asked = request.path
        await request.reject(500, body=b"\x1b[2Jno")

    async with executing(tmp_path / "s", refuse, "-it") as process:
        assert (await all_of(process)).splitlines() == [
            b"Unable to use a TTY - input is not a terminal or the right kind of file",
            b"trio-kubelet: \\x1b[2Jno",
        ]
        assert await process.wait() == 1
    assert asked.endswith("?command=yes&output=1&input=1&error=1")


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        ({"status": "Success"}, 0, ""),
        (
            {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
            },
            7,
            "",
        ),
        ({"status": "Failure", "reason": "InternalError", "message": "no such file"}, 1, "no such file"),
        ({"status": "Failure", "reason": "NonZeroExitCode"}, 1, "not understood"),
        ([], 1, "not understood"),
    ],
)
def test_exit_codes(status: object, code: int, why: str) -> None:
    found, said = exit_code(json.dumps(status).encode())
    assert found == code
    assert why in said
