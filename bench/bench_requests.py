"""What a request to the API server costs the agent (`python -m bench.bench_requests`): CPU of the client.

Status patches over TLS, one or more at a time, minima; the server is a process of its own that looks at
nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry

from tests.kube.certs import CA
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube.client import STRATEGIC_MERGE_PATCH
from trio_kubelet.kube.credentials import Credentials
from trio_kubelet.kube.doors import APIRequest
from trio_kubelet.kube.kubeconfig import ClientConfig, Source
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.network import NetworkDoor

REQUESTS, ROUNDS = 320, 5
AT_A_TIME = (1, 4, 16)
PATH = "/api/v1/namespaces/default/pods/a-pod/status"
PATCH = b'{"metadata":{"uid":"%s"},"status":{"message":"%s"}}' % (b"u" * 36, b"x" * 1200)
BODY = b'{"metadata":{"name":"a-pod"},"status":{"message":"%s"}}' % (b"x" * 3000)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)


async def answer(stream: trio.abc.Stream) -> None:
    """Takes whatever ends as a patch does for a request; a client may go without a farewell."""
    said = b""
    try:
        while piece := await stream.receive_some(1 << 16):
            said += piece
            if said.endswith(PATCH):
                said = b""
                await stream.send_all(HEAD + BODY)
    except trio.BrokenResourceError:
        return


async def serve(directory: str) -> None:
    """Tells the certificate's authority in `directory` and the port on its output."""
    ca, place = CA(), Path(directory)
    context = ca.server_context(place, ("127.0.0.1",))
    (place / "ca.pem").write_bytes(ca.pem)
    [listener] = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1", https_compatible=True)
    inner = listener.transport_listener
    assert isinstance(inner, trio.SocketListener)
    print(inner.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(answer, [listener])


async def ask(door: NetworkDoor, times: int) -> None:
    """Patches, one after the other."""
    for _ in range(times):
        got = await door.request(APIRequest("PATCH", PATH, {}, PATCH, STRATEGIC_MERGE_PATCH), 60)
        assert got.body == BODY


async def measure(config: ClientConfig, at_a_time: int) -> float:
    """CPU seconds a request."""
    door = NetworkDoor(Credentials(config, SystemClock()), {}, None, KubeMetrics(CollectorRegistry()))
    took = []
    for times in (5, *[REQUESTS // at_a_time] * ROUNDS):
        began = time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(at_a_time):
                nursery.start_soon(ask, door, times)
        took.append((time.process_time() - began) / (times * at_a_time))
    await door.aclose()
    return min(took[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "bench.bench_requests", directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            config = ClientConfig(
                server=f"https://127.0.0.1:{port}", ca=Source(data=(Path(directory) / "ca.pem").read_bytes())
            )
            for at_a_time in AT_A_TIME:
                seconds = trio.run(measure, config, at_a_time)
                print(f"{at_a_time:3} at a time {1000 * seconds:6.3f} ms a request")
            server.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(partial(serve, sys.argv[1]))
    else:
        main()
