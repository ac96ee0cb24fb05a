"""What systemd hears from the agent, on a socket that the test listens to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from trio_kubelet.common.service import ServiceManager


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def heard(ear: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(ear.recv(4096).decode())
        except BlockingIOError:
            return messages


def service(ear: socket.socket, **more: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": ear.getsockname(), **more})


def test_life_of_a_service(ear: socket.socket) -> None:
    manager = service(ear)
    manager.ready()
    manager.status("3 pods")
    manager.status("3 pods")
    manager.reloading()
    manager.stopping()
    ready, status, reloading, stopping = heard(ear)
    assert (ready, status, stopping) == ("READY=1", "STATUS=3 pods", "STOPPING=1")
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert reloading.partition("USEC=")[2].isdecimal()


def test_without_systemd_nothing_is_said() -> None:
    ServiceManager({}).ready()
    ServiceManager({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready()


async def test_the_watchdog_is_fed_while_all_is_well(
    ear: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    problem: list[str | None] = [None]
    manager = service(ear, WATCHDOG_USEC="10000000", WATCHDOG_PID=str(os.getpid()))
    assert manager.watchdog == 10
    async with trio.open_nursery() as nursery:
        checks = {"ping": lambda: None, "syncloop": lambda: problem[0]}
        nursery.start_soon(manager.look_after, checks, lambda: problem[0] or "well")
        await trio.sleep(11)
        assert heard(ear) == ["STATUS=well", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]
        problem[0] = "hangs"
        await trio.sleep(20)
        assert heard(ear) == ["STATUS=hangs"]
        problem[0] = None
        await trio.sleep(5)
        assert heard(ear) == ["STATUS=well", "WATCHDOG=1"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("text", ["1000000", "0", "soon"])
def test_a_watchdog_that_makes_no_sense(ear: socket.socket, text: str) -> None:
    with pytest.raises(ValueError, match="configure watchdog"):
        service(ear, WATCHDOG_USEC=text)


def test_a_watchdog_of_another_process(ear: socket.socket) -> None:
    assert service(ear, WATCHDOG_USEC="10000000", WATCHDOG_PID="1").watchdog == 0
