"""What HTTP, TCP and gRPC probes cost the agent, in CPU time: `python -m bench.bench_net_probes`.

Ends with JSON. The probe manager as the agent runs it, against a server in another process that answers as
Go's do: 50 probes with a period of a second each. The baseline in the same run exchanges the same bytes at
the same pace on Trio's sockets and does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import h2.config
import h2.connection
import trio

from bench.bench_probe import PROBES, Nobody, add_pods, cpu_of, cpu_of_each
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.grpc.framing import CONTENT_TYPE, frame
from trio_kubelet.probes.grpc import ask
from trio_kubelet.probes.manager import ProbeManager
from trio_kubelet.probes.metrics import ProbeMetrics

KINDS = ("http", "tcp", "grpc")
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
ANSWER = (
    b"HTTP/1.1 200 OK\r\nDate: Fri, 27 Nov 2026 10:00:00 GMT\r\nContent-Length: 2\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nok"
)
SERVER = r"""
import socket, sys
listener = socket.create_server(("127.0.0.1", 0), backlog=256)
print(listener.getsockname()[1], flush=True)
answer = bytes.fromhex(sys.argv[1])
while True:
    with listener.accept()[0] as connection:
        try:
            if connection.recv(65536):
                connection.sendall(answer)
        except OSError:
            pass
"""


def spoken() -> tuple[bytes, bytes]:
    """What client and server of a health check send each other."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    client.initiate_connection()
    call = ask(client, "127.0.0.1", "")
    asked = client.data_to_send()
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(asked)
    server.send_headers(call, [(":status", "200"), ("content-type", CONTENT_TYPE)])
    server.send_data(call, frame(b"\x08\x01"))
    server.send_headers(call, [("grpc-status", "0"), ("grpc-message", "")], end_stream=True)
    return asked, server.data_to_send()


@contextmanager
def serving(answer: bytes) -> Iterator[int]:
    """The port of a process that says one thing to everybody."""
    command = [sys.executable, "-c", SERVER, answer.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(server.stdout.readline()) if server.stdout is not None else 0
        finally:
            server.kill()


async def _no_exec(container: str, command: Sequence[str], timeout: float, enough: int) -> ExecResult:
    raise NotImplementedError


async def probing(probe: v1.Probe, seconds: float) -> float:
    """CPU seconds for each probe of the manager's."""
    metrics = ProbeMetrics()
    manager = ProbeManager(
        exec_sync=_no_exec,
        repeat_exec=lambda *_: None,
        recorder=Nobody(),
        clock=SystemClock(),
        metrics=metrics,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        add_pods(manager, probe, map(str, range(PROBES)))
        await trio.sleep(5)
        share = await cpu_of(seconds)
        nursery.cancel_scope.cancel()
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    results = {sample.labels["result"] for sample in samples if "result" in sample.labels and sample.value}
    if results != {"successful"}:
        raise SystemExit(f"probes were {', '.join(results) or 'not made'}")
    return share / PROBES


async def bare(port: int, said: bytes, seconds: float) -> float:
    """CPU seconds for each exchange that nobody schedules."""
    made = 0

    async def exchange_for_ever() -> None:
        nonlocal made
        while True:
            await trio.sleep(1 / PROBES)
            connection = trio.socket.socket()
            await connection.connect(("127.0.0.1", port))
            if said:
                await connection.send(said)
                await connection.recv(16 * 1024)
            connection.close()
            made += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange_for_ever)
        await trio.sleep(0.5)
        each = await cpu_of_each(lambda: made, seconds)
        nursery.cancel_scope.cancel()
    return each


async def figures(port: int, grpc_port: int, asked: bytes, seconds: float, rounds: int) -> dict[str, float]:
    """Microseconds of each, the least of some rounds in turn."""
    get = v1.HTTPGetAction(path="/healthz", port=port, host="127.0.0.1", scheme="HTTP")
    tcp = v1.TCPSocketAction(port=port, host="127.0.0.1")
    grpc = v1.GRPCAction(port=grpc_port)
    often = partial(v1.Probe, period_seconds=1, timeout_seconds=5)
    works: dict[str, Callable[[], Awaitable[float]]] = {
        "http_us": lambda: probing(often(http_get=get), seconds),
        "bare_http_us": lambda: bare(port, REQUEST, seconds),
        "tcp_us": lambda: probing(often(tcp_socket=tcp), seconds),
        "bare_tcp_us": lambda: bare(port, b"", seconds),
        "grpc_us": lambda: probing(often(grpc=grpc), seconds),
        "bare_grpc_us": lambda: bare(grpc_port, asked, seconds),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(1e6 * await work())
    least = {name: round(min(each), 1) for name, each in found.items()}
    ratios = {f"{kind}_ratio": round(least[f"{kind}_us"] / least[f"bare_{kind}_us"], 2) for kind in KINDS}
    return {**least, **ratios, "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    asked, answered = spoken()
    with serving(ANSWER) as port, serving(answered) as grpc_port:
        print(json.dumps(trio.run(figures, port, grpc_port, asked, options.seconds, options.rounds)))


if __name__ == "__main__":
    main()
