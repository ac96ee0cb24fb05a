"""Exec's data path: an upgraded connection passed through the node's server to a runtime that echoes it.

Runtime and client are processes of their own. The baseline is the same client talking to the same runtime
without a node in between.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import trio
from pytest_benchmark.fixture import BenchmarkFixture

from tests.kube.certs import CA
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.serve import ServerLimits, serve
from trio_kubelet.server.streams.upgrade import pass_to_runtime

SENT = 200_000_000

RUNTIME = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
while True:
    s, _ = listening.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += s.recv(4096)
    s.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: SPDY/3.1\\r\\n\\r\\n")
    room = bytearray(1 << 18)
    view = memoryview(room)
    while n := s.recv_into(room):
        s.sendall(view[:n])
    s.close()
"""

CLIENT = """
import socket, ssl, sys, threading
port, kind, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
s = socket.create_connection(("127.0.0.1", port))
if kind == "tls":
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    s = context.wrap_socket(s)
s.sendall(b"POST /exec HTTP/1.1\\r\\nHost: n\\r\\nConnection: Upgrade\\r\\nUpgrade: SPDY/3.1\\r\\n\\r\\n")
head = b""
while b"\\r\\n\\r\\n" not in head:
    head += s.recv(1)
piece = bytes(1 << 18)
def send():
    left = size
    while left:
        part = piece[:min(left, len(piece))]
        s.sendall(part)
        left -= len(part)
threading.Thread(target=send, daemon=True).start()
room, total = bytearray(1 << 18), 0
while total < size:
    total += s.recv_into(room)
print(total)
"""


@pytest.mark.parametrize("way", ["direct", "tcp", "tls"])
def test_pass_through(benchmark: BenchmarkFixture, tmp_path: pathlib.Path, way: str) -> None:
    """200 MB up and down again; `direct` is the baseline."""
    benchmark.group = "streaming: 200 MB each way"
    benchmark.extra_info["bytes"] = SENT
    total = benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: trio.run(_exchange, way, tmp_path), rounds=3
    )
    assert total == SENT


async def _exchange(way: str, directory: pathlib.Path) -> int:
    """Bytes that came back to the client."""
    async with trio.open_nursery() as nursery:
        runtime = await trio.lowlevel.open_process([sys.executable, "-c", RUNTIME], stdout=subprocess.PIPE)
        try:
            assert runtime.stdout is not None
            told = b""
            while not told.endswith(b"\n"):
                told += await runtime.stdout.receive_some()
            port = int(told)
            url = f"http://127.0.0.1:{port}/exec/token"

            async def handle(request: Request) -> Response | Hijack:
                return await pass_to_runtime(request, url, 60)

            if way != "direct":
                plain = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
                port = plain.socket.getsockname()[1]
                listener: trio.abc.Listener[trio.abc.Stream] = plain
                if way == "tls":
                    context = CA().server_context(directory, ("127.0.0.1",))
                    listener = trio.SSLListener(plain, context)
                await nursery.start(serve, [listener], handle, ServerLimits())
            ended = await trio.run_process(
                [sys.executable, "-c", CLIENT, str(port), way, str(SENT)],
                capture_stdout=True,
                stderr=subprocess.DEVNULL,
            )
        finally:
            runtime.kill()
            with trio.CancelScope(shield=True):
                await runtime.wait()
                if runtime.stdout is not None:
                    await runtime.stdout.aclose()
        nursery.cancel_scope.cancel()
    return int(ended.stdout)
