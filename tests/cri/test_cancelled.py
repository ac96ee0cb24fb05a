"""Calls and event streams that are given up at any point leave nothing open but what the client keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.cancelling import cancelled_at_each_step, descriptors, settled
from tests.cri.test_grpc import served, subscribed
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.sim.populate import Population

KEPT = 8
"""Both ends of the connections that a client keeps, of its own loop, and of its events."""


async def look(runtime: RuntimeService) -> None:
    await runtime.version()
    assert len(await runtime.list_containers()) == 4


async def hear(runtime: RuntimeService) -> None:
    async with runtime.container_events():
        await runtime.version()


@pytest.mark.parametrize("awake", [True, False], ids=["awake", "waiting"])
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpclib"])
@pytest.mark.parametrize("operation", [look, hear])
async def test_whatever_is_given_up_is_closed(
    operation: Callable[[RuntimeService], Awaitable[None]], direct: bool, awake: bool, tmp_path: Path
) -> None:
    socket = tmp_path / "cri.sock"
    async with served(socket) as service:
        Population(service.runtime).add_pods(1, 4, 1)
        async with open_cri(f"unix://{socket}", direct=direct) as (runtime, _):
            await look(runtime)  # the server's own loop is made with its first connection
        before = descriptors()
        async with open_cri(f"unix://{socket}", direct=direct) as (runtime, _):
            await operation(runtime)
            assert await cancelled_at_each_step(lambda: operation(runtime), awake, KEPT) > 3
            await subscribed(service, 0)
            await look(runtime)  # it works as before
        await settled(before, 0, "the client is closed")
