"""Requests and watches that are given up in the middle leave no connection behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.cancelling import cancelled_at_each_step
from tests.kube.apiserver import APIServer, serving
from tests.kube.certs import CA
from tests.kube.test_reflector import a_pod
from tests.kube.test_shared_watches import Server
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube import network
from trio_kubelet.kube.credentials import Credentials
from trio_kubelet.kube.doors import APIRequest, EventStream
from trio_kubelet.kube.kubeconfig import ClientConfig, Source
from trio_kubelet.kube.network import NetworkDoor
from trio_kubelet.kube.shared_watches import SharedWatches
from trio_kubelet.server.http import serve as http

PODS = "/api/v1/pods"


@pytest.fixture(autouse=True)
def _a_server_that_notices_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER_SECONDS", 0.01)


async def ask(door: NetworkDoor) -> None:
    answer = await door.request(APIRequest("GET", PODS), timeout=60)
    assert answer.status == 200


async def watch(door: NetworkDoor) -> None:
    async with door.watch(PODS, {}, 15) as events:
        assert await events.next_event() is not None


async def watch_over_plain_http(door: NetworkDoor) -> None:
    door._no_websocket_until = float("inf")
    await watch(door)


async def watch_and_ask(door: NetworkDoor) -> None:
    await watch_over_plain_http(door)
    await ask(door)
    await ask(door)  # over the same connection


@asynccontextmanager
async def api_server(directory: Path, secure: bool) -> AsyncIterator[ClientConfig]:
    server = APIServer()
    server.store.create("pods", "d", a_pod("a"))
    ca = CA()
    tls = ca.server_context(directory, ("127.0.0.1",)) if secure else None
    async with serving(server, tls) as url:
        yield ClientConfig(server=url, ca=Source(data=ca.pem) if secure else Source())


OPERATIONS = [ask, watch, watch_and_ask]
PLAIN = pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
AWAKE = pytest.mark.parametrize("awake", [True, False], ids=["awake", "waiting"])


@AWAKE
@PLAIN
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_door_that_is_given_up_with_its_operation(
    operation: Callable[[NetworkDoor], Awaitable[None]], secure: bool, awake: bool, tmp_path: Path
) -> None:
    async with api_server(tmp_path, secure) as config:
        credentials = Credentials(config, SystemClock())
        await credentials.identity()  # files are read in a thread, whose end is not at a fixed step

        async def once() -> None:
            async with network._connected(NetworkDoor(credentials, {})) as door:
                await operation(door)

        assert await cancelled_at_each_step(once, awake) > 5


@AWAKE
@PLAIN
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operation_that_is_given_up_while_its_door_stays(
    operation: Callable[[NetworkDoor], Awaitable[None]], secure: bool, awake: bool, tmp_path: Path
) -> None:
    """The connections of one operation may stay for the next one, never more."""
    async with api_server(tmp_path, secure) as config:
        credentials = Credentials(config, SystemClock())
        await credentials.identity()
        async with network._connected(NetworkDoor(credentials, {})) as door:

            async def once() -> None:
                await operation(door)

            await cancelled_at_each_step(once, awake, kept=2)  # both ends are here


@AWAKE
async def test_a_shared_watch_that_is_given_up(awake: bool, tmp_path: Path) -> None:
    """As the first of its connection, and while another one holds that."""
    server, watches = Server(tmp_path), SharedWatches()
    async with server.running() as url:

        def opened(name: str) -> AbstractAsyncContextManager[EventStream]:
            return watches.open(f"{url}/{name}?watch=1", {}, server.client, "", 60)

        async def send(name: str, event: bytes) -> None:
            with trio.CancelScope(shield=True):  # what the server does is not cancelled
                peer, number = server.watches[f"/{name}?watch=1"]
                await peer.send(number, event + b"\n")

        async def once() -> None:
            async with opened("w") as events:
                await send("w", b"1")
                assert await events.next_event() == b"1"

        assert await cancelled_at_each_step(once, awake) > 10
        async with opened("other") as events:
            assert await cancelled_at_each_step(once, awake) > 5
            await send("other", b"2")
            assert await events.next_event() == b"2"
            assert len(server.connections) == 1
