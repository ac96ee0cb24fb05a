"""Plugins and drivers that send without a pause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from trio_kubelet.devices.plugin import GrpcPlugin
from trio_kubelet.devices.proto import plugin_pb2
from trio_kubelet.dra.driver import GrpcDriver
from trio_kubelet.dra.proto import health_pb2
from trio_kubelet.grpc.channel import Channel
from trio_kubelet.grpc.pacing import rest


class Flooding:
    """A channel whose stream always has another message, and is looked at no more after ten thousand."""

    def __init__(self, message: object) -> None:
        self._message = message
        self.taken = 0

    @asynccontextmanager
    async def stream(self, *_: object, **__: object) -> AsyncIterator[Flooding]:
        yield self

    def __aiter__(self) -> Flooding:
        return self

    async def __anext__(self) -> object:
        await trio.lowlevel.checkpoint()
        self.taken += 1
        if self.taken > 10_000:
            raise StopAsyncIteration
        return self._message


async def watch_devices(channel: Channel) -> None:
    await GrpcPlugin(channel).watch(lambda devices: None)


async def watch_health(channel: Channel) -> None:
    await GrpcDriver("d", "v1", channel, lambda *_: None).watch_health(lambda reports: None)


@pytest.mark.parametrize(
    ("watch", "message"),
    [
        (watch_devices, plugin_pb2.ListAndWatchResponse()),
        (watch_health, health_pb2.NodeWatchResourcesResponse()),
    ],
)
async def test_a_peer_that_sends_without_a_pause_is_not_all_that_is_done(
    autojump_clock: trio.testing.MockClock, watch: Callable[[Channel], Any], message: object
) -> None:
    flooding = Flooding(message)
    with trio.move_on_after(10):
        await watch(cast(Channel, flooding))
    assert 90 <= flooding.taken <= 110


async def test_who_takes_long_rests_long(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await trio.sleep(0.5)
    await rest(began)
    assert trio.current_time() - began == pytest.approx(2.5)
