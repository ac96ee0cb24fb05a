"""The words spoken with logind, over a real socket: variants, a file descriptor, signals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.containerd.harness import wait_until
from tests.dbus.fake_bus import FakeBus
from tests.node.world import Said
from tests.nodeshutdown.test_manager import PERIODS, Pods
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.dbus.bus import MessageBus
from trio_kubelet.nodeshutdown import logind, manager
from trio_kubelet.nodeshutdown.manager import ShutdownManager
from trio_kubelet.nodeshutdown.state import NodeShutdown


@pytest.mark.parametrize("sender", ["", ":1.666"], ids=["by logind", "by another"])
async def test_a_shutdown_over_a_socket(tmp_path: Path, sender: str) -> None:
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
    shutdown = NodeShutdown()
    follower = ShutdownManager(PERIODS, bus=bus, node=shutdown, pods=pods, times=None, events=said)
    async with trio.open_nursery() as nursery:
        pods.nursery = nursery
        await nursery.start(fake.run)
        await nursery.start(bus.run)
        nursery.start_soon(follower.run)
        await wait_until(lambda: asked[-1:] == ["PreparingForShutdown"], 10, "logind was asked")
        path, interface = "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
        await fake.signal(path, interface, "PrepareForShutdown", "b", (True,), sender)
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


async def test_a_slow_logind_and_one_that_gives_a_number_for_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delay that comes too late is given back at once, for nobody would end it. A number that is none of
    its descriptors is left alone: it is another file of the agent.
    """
    monkeypatch.setattr(logind, "_SECONDS", 0.3)
    monkeypatch.setattr(manager, "RECONNECTS", Pauses(0.05, 0.05))
    locks: list[int] = []
    given: list[int] = []
    innocent, other_end = os.pipe()
    inhibits = 0

    async def answer(name: str, arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | None:
        nonlocal inhibits
        await trio.lowlevel.checkpoint()
        if name == "Get":
            of = {"InhibitDelayMaxUSec": ("t", 60_000_000), "PreparingForShutdown": ("b", False)}
            return "v", (of[arguments[1]],)
        inhibits += 1
        if inhibits == 2:
            return "u", (other_end,)
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        locks.append(reading)
        given.append(writing)
        if inhibits == 1:
            await trio.sleep(0.6)
        return "h", (writing,)

    fake = FakeBus(tmp_path / "bus", answer)
    bus = MessageBus(str(tmp_path / "bus"))
    follower = ShutdownManager(PERIODS, bus=bus, node=NodeShutdown(), pods=Pods(), times=None, events=Said())
    async with trio.open_nursery() as nursery:
        await nursery.start(fake.run)
        await nursery.start(bus.run)
        nursery.start_soon(follower.run)
        await wait_until(lambda: fake.calls[-1:] and fake.calls[-1][1][-1] == "PreparingForShutdown", 10)
        assert inhibits == 3
        await trio.sleep(0.7)
        for number in given:
            os.close(number)
        late, held = locks
        await wait_until(lambda: is_closed(late), 10, "what came too late is closed")
        assert not is_closed(held)
        os.fstat(other_end)
        nursery.cancel_scope.cancel()
    assert is_closed(held)
    for number in (*locks, innocent, other_end):
        os.close(number)


def is_closed(reading: int) -> bool:
    try:
        return os.read(reading, 1) == b""
    except BlockingIOError:
        return False
