"""What the CRI channel costs: list answers of 2,000 pods × 5 containers, and small calls, over a unix socket.

The runtime is the simulated one in a process of its own. Figures are CPU time of this process, client side
only; `decoded` is the baseline of a client that makes protobuf objects of everything.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
from pytest_benchmark.fixture import BenchmarkFixture

from trio_kubelet.cri.connect import CRIServices, open_cri
from trio_kubelet.cri.errors import Unavailable

PODS, CONTAINERS = 2000, 5
_SIM = "import sys; from trio_kubelet.sim import main; sys.exit(main(sys.argv[1:]))"

cpu = pytest.mark.benchmark(group="cri", timer=time.process_time, min_rounds=10, max_time=0.5)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A simulated runtime with its pods running."""
    path = tmp_path_factory.mktemp("sim") / "sim.sock"
    arguments = ["--socket", str(path), "--pods", str(PODS), "--containers", str(CONTAINERS)]
    process = subprocess.Popen([sys.executable, "-c", _SIM, *arguments], stderr=subprocess.DEVNULL)
    try:
        yield str(path)
    finally:
        process.terminate()
        process.wait()


class Client:
    """A CRI client whose Trio loop runs in a thread, so that a benchmark can call it."""

    def __init__(self, endpoint: str, **options: Any) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run, endpoint, options))
        self._thread.start()
        self._ready.wait()

    async def _run(self, endpoint: str, options: dict[str, Any]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with open_cri(endpoint, **options) as self.services:
            with trio.fail_after(60):
                while not await _is_up(self.services):  # noqa: ASYNC110
                    await trio.sleep(0.1)
            self._ready.set()
            await self._stop.wait()

    def call(self, function: Callable[[CRIServices], Awaitable[Any]]) -> Any:
        """The result of an async function of the services."""
        return trio.from_thread.run(function, self.services, trio_token=self._token)

    def close(self) -> None:
        """Ends the loop."""
        self._token.run_sync_soon(self._stop.set)
        self._thread.join()


async def _is_up(services: CRIServices) -> bool:
    try:
        await services.runtime.version()
    except Unavailable:
        return False
    return True


@pytest.fixture
def client(endpoint: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client with the options that the test's parameter names."""
    client = Client(endpoint, **request.param)
    yield client
    client.close()


WAYS = {
    "grpclib": {"use_streaming": False},
    "grpclib-streaming": {},
    "direct": {"use_streaming": False, "direct": True},
    "direct-streaming": {"direct": True},
}


@cpu
@pytest.mark.parametrize("client", WAYS.values(), ids=WAYS, indirect=True)
def test_raw_container_list(client: Client, benchmark: BenchmarkFixture) -> None:
    async def list_raw(services: CRIServices) -> int:
        return sum(map(len, await services.runtime.list_containers_raw()))

    size = benchmark(client.call, list_raw)
    benchmark.extra_info["megabytes"] = size / 1e6
    assert size > 7_000_000


@cpu
@pytest.mark.parametrize("client", [WAYS["grpclib"]], ids=["grpclib"], indirect=True)
def test_decoded_container_list(client: Client, benchmark: BenchmarkFixture) -> None:
    async def list_decoded(services: CRIServices) -> int:
        return len(await services.runtime.list_containers())

    assert benchmark(client.call, list_decoded) == PODS * CONTAINERS


@cpu
@pytest.mark.parametrize("client", [WAYS["grpclib"]], ids=["grpclib"], indirect=True)
def test_small_call(client: Client, benchmark: BenchmarkFixture) -> None:
    async def version(services: CRIServices) -> str:
        return (await services.runtime.version()).version

    assert benchmark(client.call, version)
