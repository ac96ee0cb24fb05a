"""The words spoken with logind, over a real socket: variants, a file descriptor, signals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import trio

from tests.containerd.harness import wait_until
from tests.dbus.fake_bus import FakeBus
from tests.node.world import Said
from tests.nodeshutdown.test_manager import PERIODS, Pods
from trio_kubelet.dbus.bus import MessageBus
from trio_kubelet.nodeshutdown.manager import NodeShutdown


async def test_a_shutdown_over_a_socket(tmp_path: Path) -> None:
    locks: list[int] = []
    given: list[int] = []
    asked: list[str] = []

    async def answer(name: str, arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
        await trio.lowlevel.checkpoint()
        what = arguments[1] if name == "Get" else name
        asked.append(what)
        if what == "InhibitDelayMaxUSec":
            return "v", (("t", 60_000_000),)
        if what == "PreparingForShutdown":
            for number in given:  # it has arrived: from now on it is the agent's alone
                os.close(number)
            given.clear()
            return "v", (("b", False),)
        assert what == "Inhibit"
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        locks.append(reading)
        given.append(writing)
        return "h", (writing,)

    fake = FakeBus(tmp_path / "bus", answer)
    bus = MessageBus(str(tmp_path / "bus"))
    pods, said = Pods(web=0.1), Said()
    shutdown = NodeShutdown(PERIODS, events=said)
    async with trio.open_nursery() as nursery:
        pods.nursery = nursery
        await nursery.start(fake.run)
        await nursery.start(bus.run)
        nursery.start_soon(shutdown.run, bus, pods)
        await wait_until(lambda: asked[-1:] == ["PreparingForShutdown"], 10, "logind was asked")
        await fake.signal(
            "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", "b", (True,)
        )
        await wait_until(lambda: all(map(is_closed, locks)), 10, "logind may go on")
        assert pods.stopped == {"web"}
        assert shutdown.errors() == ["node is shutting down"]
        await fake.signal(
            "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", "b", (False,)
        )
        await wait_until(lambda: not shutdown.errors(), 10, "it was called off")
        nursery.cancel_scope.cancel()
    for lock in locks:
        os.close(lock)


def is_closed(reading: int) -> bool:
    try:
        return os.read(reading, 1) == b""
    except BlockingIOError:
        return False
