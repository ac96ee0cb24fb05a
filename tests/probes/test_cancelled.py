"""Probes that are given up at any point leave no connection behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cancelling import cancelled_at_each_step
from tests.kube.certs import CA
from trio_kubelet.api import v1
from trio_kubelet.net.http import build_request, probe_http
from trio_kubelet.probes.grpc import probe_grpc
from trio_kubelet.probes.runners import probe_tcp
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.http.serve import serve

HOST = "127.0.0.1"


async def ask(port: int) -> object:
    action = v1.HTTPGetAction(port=port, host=HOST, scheme="HTTPS")
    return await probe_http(build_request(action, v1.Container(name="c"), HOST), 60)


async def get(port: int) -> object:
    action = v1.HTTPGetAction(port=port, host=HOST, scheme="HTTP")
    return await probe_http(build_request(action, v1.Container(name="c"), HOST), 60)


async def connect(port: int) -> object:
    return await probe_tcp(HOST, port, 60)


async def call(port: int) -> object:
    """It is not understood, which takes it to the end of the connection."""
    return await probe_grpc(HOST, port, "", 60)


@pytest.mark.parametrize("awake", [True, False], ids=["awake", "waiting"])
@pytest.mark.parametrize(("probe", "steps"), [(ask, 3), (get, 2), (connect, 1), (call, 3)])
async def test_a_probe_that_is_given_up(
    probe: Callable[[int], Awaitable[object]], steps: int, awake: bool, tmp_path: Path
) -> None:
    async def answer(request: Request) -> Response | Hijack:
        return text(200, "x" * 20_000)

    tls = CA().server_context(tmp_path, (HOST,))
    listener = (await trio.open_tcp_listeners(0, host=HOST))[0]
    port = listener.socket.getsockname()[1]
    door: Any = trio.SSLListener(listener, tls, https_compatible=True) if probe is ask else listener
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, [door], answer)
        assert await cancelled_at_each_step(lambda: probe(port), awake) >= steps
        nursery.cancel_scope.cancel()
