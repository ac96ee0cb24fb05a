"""Container logs: lines copied in C and in plain Python, and a log streamed through the node's server.

Each is measured in bytes of the log file, against reading the file and, for the server, against sending the
file as it is to the same client, a process of its own.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
import trio
from pytest_benchmark.fixture import BenchmarkFixture

from tests.kube.certs import CA
from trio_kubelet.native.crilog import LogFilter
from trio_kubelet.native.pure_crilog import LogOptions, PureLogFilter
from trio_kubelet.server.http.messages import Hijack, Request
from trio_kubelet.server.http.serve import ServerLimits, serve
from trio_kubelet.server.logs.file import PIECE, LogFile
from trio_kubelet.server.logs.reader import read_log

MEGABYTE = 1_000_000
LOG_BYTES = 200 * MEGABYTE
LINE = (
    b"2016-10-06T00:17:09.669794202Z stdout F "
    + b"a line of an ordinary log, of ordinary length: " * 2
    + b"\n"
)

CLIENT = """
import socket, ssl, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2] == "tls":
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    s = context.wrap_socket(s)
s.sendall(b"GET / HTTP/1.1\\r\\nHost: node\\r\\n\\r\\n")
room, total = bytearray(1 << 18), 0
while n := s.recv_into(room):
    total += n
print(total)
"""


@pytest.fixture(scope="module")
def log_path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("logs") / "0.log"
    with path.open("wb") as file:
        piece = LINE * 10_000
        for _ in range(LOG_BYTES // len(piece)):
            file.write(piece)
    return path


@pytest.mark.parametrize("timestamps", [False, True], ids=["plain", "timestamps"])
@pytest.mark.parametrize("cls", [LogFilter, PureLogFilter], ids=["c", "python"])
def test_lines(benchmark: BenchmarkFixture, cls: type[PureLogFilter], timestamps: bool) -> None:
    data = LINE * (PIECE // len(LINE))
    benchmark.group = "logs: a piece of lines"
    benchmark.extra_info["bytes"] = len(data)
    options = LogOptions(timestamps=timestamps)
    copied = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: cls(options).copy(data), rounds=20, warmup_rounds=1
    )
    assert copied.consumed == len(data)


def test_reading_the_file(benchmark: BenchmarkFixture, log_path: pathlib.Path) -> None:
    """The floor: the bytes of the file, in pieces of the same size."""

    def read() -> int:
        with log_path.open("rb", buffering=0) as file:
            return sum(map(len, iter(lambda: file.read(PIECE), b"")))

    benchmark.group = "logs: a whole file"
    benchmark.extra_info["bytes"] = log_path.stat().st_size
    assert benchmark.pedantic(read, rounds=3) == log_path.stat().st_size  # type: ignore[no-untyped-call]


def test_reading_the_log(benchmark: BenchmarkFixture, log_path: pathlib.Path) -> None:
    """As `/containerLogs` reads it, piece by piece in a worker thread."""

    async def read() -> int:
        file = LogFile(str(log_path), LogOptions())
        try:
            return sum([len(piece) async for piece in read_log(file, "u")])
        finally:
            file.close()

    benchmark.group = "logs: a whole file"
    benchmark.extra_info["bytes"] = log_path.stat().st_size
    assert benchmark.pedantic(lambda: trio.run(read), rounds=3) > 0  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("encrypted", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("content", ["log", "file"])
def test_streaming(
    benchmark: BenchmarkFixture, log_path: pathlib.Path, content: str, encrypted: bool
) -> None:
    """Through the server to a client; `file` sends the file's bytes as they are."""
    benchmark.group = "logs: streamed over " + ("TLS" if encrypted else "TCP")
    benchmark.extra_info["bytes"] = log_path.stat().st_size
    send = _send_log if content == "log" else _send_file
    total = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: trio.run(_streamed, str(log_path), send, encrypted), rounds=3
    )
    assert total > LOG_BYTES // 3


Send = Callable[[trio.abc.Stream, str], Awaitable[None]]


async def _send_log(stream: trio.abc.Stream, path: str) -> None:
    file = LogFile(path, LogOptions())
    try:
        async for piece in read_log(file, "u"):
            await stream.send_all(b"%x\r\n%b\r\n" % (len(piece), piece))
    finally:
        file.close()


async def _send_file(stream: trio.abc.Stream, path: str) -> None:
    file = await trio.to_thread.run_sync(os.open, path, os.O_RDONLY)
    try:
        while data := await trio.to_thread.run_sync(os.read, file, PIECE):
            await stream.send_all(data)
    finally:
        os.close(file)


async def _streamed(path: str, send: Send, encrypted: bool) -> int:
    """Bytes that arrived at the client."""

    async def handle(request: Request) -> Hijack:
        async def take(stream: trio.abc.Stream, already_read: bytes) -> None:
            await send(stream, path)
            await stream.aclose()

        return Hijack(take)

    listeners: list[trio.abc.Listener[trio.abc.Stream]] = []
    plain = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = plain.socket.getsockname()[1]
    listeners.append(
        trio.SSLListener(plain, CA().server_context(pathlib.Path(path).parent, ("127.0.0.1",)))
        if encrypted
        else plain
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, handle, ServerLimits())
        ended = await trio.run_process(
            [sys.executable, "-c", CLIENT, str(port), "tls" if encrypted else "tcp"],
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
        )
        nursery.cancel_scope.cancel()
    return int(ended.stdout)
