"""Drivers that have registered: what their sockets see of the agent."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import wait_all_tasks_blocked

from tests.dra.sample_driver import SampleDriver
from trio_kubelet.dra import drivers as module
from trio_kubelet.dra.drivers import DraDrivers
from trio_kubelet.dra.health import Key
from trio_kubelet.dra.metrics import DraMetrics
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.states import PluginInfo

PATIENT = 60.0


class Entrance:
    """A socket that leads to another one, and counts who comes."""

    def __init__(self, path: Path, behind: Path) -> None:
        self.path, self._behind = path, behind
        self.came = 0

    async def run(self, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.path))
            listening.listen()
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            await trio.serve_listeners(self._lead, [listener], task_status=task_status)

    async def _lead(self, comer: trio.SocketStream) -> None:
        self.came += 1
        driver = await trio.open_unix_socket(str(self._behind))
        async with comer, driver, trio.open_nursery() as nursery:
            nursery.start_soon(_relay, comer, driver)
            nursery.start_soon(_relay, driver, comer)


async def _relay(source: trio.SocketStream, target: trio.SocketStream) -> None:
    async for data in source:
        await target.send_all(data)
    await target.send_eof()


@asynccontextmanager
async def running(
    health_changed: Callable[[str, frozenset[Key]], None],
) -> AsyncIterator[tuple[AsyncioLoop, DraDrivers]]:
    """Drivers can register."""
    with trio.fail_after(PATIENT):
        async with open_asyncio_loop() as loop, trio.open_nursery() as nursery:
            known = DraDrivers(
                loop=loop,
                metrics=DraMetrics(CollectorRegistry(), dict),
                objects=None,
                health_changed=health_changed,
            )
            nursery.start_soon(known.run)
            await wait_all_tasks_blocked()
            yield loop, known
            nursery.cancel_scope.cancel()


async def test_one_connection_is_for_calls_and_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked after all the time; its devices' health and a call come over the same connection."""
    monkeypatch.setattr(module, "LOOK_PERIOD", 0.001)
    driver = SampleDriver("gpu.example.com", str(tmp_path / "driver.sock"))
    entrance = Entrance(tmp_path / "entrance.sock", tmp_path / "driver.sock")
    heard = trio.Event()

    def health_changed(name: str, keys: frozenset[Key]) -> None:
        heard.set()

    async with running(health_changed) as (loop, known), trio.open_nursery() as nursery:
        await nursery.start(partial(driver.serve, loop))
        await nursery.start(entrance.run)
        plugin = PluginInfo(
            type="DRAPlugin",
            name=driver.name,
            endpoint=str(entrance.path),
            versions=(driver.service,),
        )
        await known.register(plugin)
        with pytest.raises(PluginError, match="already registered for DRA driver plugin"):
            await known.register(plugin)
        for health in (1, 2) * 20:
            driver.now(gpu=health)
            await heard.wait()
            heard = trio.Event()
        await known.get(driver.name).prepare([])
        assert driver.diary == [("prepare", ())]
        assert entrance.came == 1
        nursery.cancel_scope.cancel()


async def test_names_without_end_take_no_memory(tmp_path: Path) -> None:
    """Nothing is kept of a driver that has gone, whatever it called itself."""
    endpoint = str(tmp_path / "nobody.sock")
    async with running(lambda name, keys: None) as (_, known):
        tracemalloc.start()
        try:
            for number in range(100):
                name = f"{number}.example.com-" + "x" * 100_000
                plugin = PluginInfo(
                    type="DRAPlugin", name=name, endpoint=endpoint, versions=("v1.DRAPlugin",)
                )
                await known.register(plugin)
                await wait_all_tasks_blocked()
                await known.deregister(plugin)
                await wait_all_tasks_blocked()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 5_000_000
