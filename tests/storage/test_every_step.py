"""60987, 45464, 101378: kill -9 at every step of mount and unmount. The next agent brings all to its end,
nothing is mounted twice or left, and the log has one line for a cause.

A step is whatever changes something: a system call on a file, directory, link or loop device, a mount, and
a call to the driver, before it is made, while the driver is at work, and when its answer has come. The first
agent mounts a volume for a pod, of a filesystem also a part, and takes it away again; it is killed at its
first step, another one at its second, and so on until one comes to its end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import DRIVER, Claims, World, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.storage import loop
from trio_kubelet.storage.csi.driver import CSIDriverClient
from trio_kubelet.storage.names import pod_subpaths
from trio_kubelet.volumes import linux
from trio_kubelet.volumes.subpath import SubPath, bind_sub_path

CHANGES = ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.symlink", "os.chmod", "fcntl.ioctl")
WRITING = os.O_WRONLY | os.O_RDWR
MOST_STEPS = 200
PARTS = ("filesystem", "directory")
FEWEST_STEPS = {"filesystem": 25, "device": 20, "inline": 15, "directory": 10}
Work = Callable[[Path, DriverProcess], Awaitable[None]]


class Killer:
    """Ends its process by kill -9 at the step of this number."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._lock = threading.RLock()

    def step(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: the interpreter tells of what it is about to do."""
        if event in CHANGES or (event == "open" and arguments[2] & WRITING):
            self.step()

    def watch(self, driver: DriverProcess) -> None:
        """From now on steps are counted."""
        check, call = linux._check, CSIDriverClient.call

        def checked(result: int, path: str) -> None:
            check(result, path)
            self.step()

        async def called(client: CSIDriverClient, *arguments: Any, **named: Any) -> Any:
            self.step()
            begun, answers = len(driver.calls()), []

            async def ask() -> None:
                answers.append(await call(client, *arguments, **named))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                while len(driver.calls()) == begun:  # noqa: ASYNC110 - what another process does tells nobody
                    await trio.sleep(0.001)
                self.step()
            self.step()
            return answers[0]

        linux._check = checked
        CSIDriverClient.call = called  # type: ignore[assignment, method-assign]
        sys.addaudithook(self.hear)


def in_process(place: Path, driver: DriverProcess, work: Work) -> int | None:
    """The exit code of a process that does some work; its log is in `room.log`."""

    def run() -> None:
        log = os.open(place / "room.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        driver.attach()  # it is the parent's
        try:
            trio.run(work, place, driver)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"it hangs: {(place / 'room.log').read_text()[-4000:]}")
    return process.exitcode


def claim_and_pod(kind: str, place: Path) -> tuple[Claims, v1.Pod]:
    claims = Claims()
    claims.driver()
    local = {"local": {"path": str(place / "local")}} if kind == "directory" else None
    claims.claim("c", local, mode="Block" if kind == "device" else "Filesystem", size="4Mi")
    if kind == "device":
        return claims, pod_of("p", devices=("c",))
    if kind == "inline":
        return claims, pod_of("p", "c", volumes=[{"name": "c", "csi": {"driver": DRIVER}}])
    return claims, pod_of("p", "c")


async def bind_part(world: World, pod: v1.Pod) -> None:
    """A container of the pod mounts a part of the volume."""
    target = f"{pod_subpaths(str(world.root), pod.metadata.uid, 'pv-c')}/main/0"
    part = SubPath("c", str(world.path(pod, "c")), "a/part", target)
    await trio.to_thread.run_sync(bind_sub_path, part)


@pytest.mark.parametrize("then", ["the pod stays", "the pod is gone"])
@pytest.mark.parametrize("kind", FEWEST_STEPS)
def test_an_agent_is_killed_at_every_step(place: Path, driver: DriverProcess, kind: str, then: str) -> None:
    driver.set(size=4 << 20)
    driver.start()
    (place / "local").mkdir()
    root, image = place / "root", str(driver.directory / "c.img")

    async def come_and_go(place: Path, driver: DriverProcess) -> None:
        """The volume is mounted and taken away; steps are counted."""
        claims, pod = claim_and_pod(kind, place)
        async with running_world(place, claims=claims, driver=driver) as world:
            killer.watch(driver)
            assert not (await world.set_up(pod)).unmounted
            if kind in PARTS:
                await bind_part(world, pod)
            await world.tear_down(pod)
            await world.until(lambda: not world.left() and not mounted_below(world.root))

    async def go_on(place: Path, driver: DriverProcess) -> None:
        """The next agent."""
        claims, pod = claim_and_pod(kind, place)
        async with running_world(place, claims=claims, driver=driver) as world:
            if then == "the pod stays":
                assert not (await world.set_up(pod)).unmounted
                if kind in PARTS:
                    await bind_part(world, pod)
                assert most(Counter(mounted_below(root))) == 1
            await world.tear_down(pod)
            await world.until(lambda: not world.left() and not mounted_below(world.root))

    for number in range(1, MOST_STEPS):
        killer = Killer(number)
        code = in_process(place, driver, come_and_go)
        log = (place / "room.log").read_text()
        if code == 0:
            break
        assert code == -signal.SIGKILL, (number, log)
        assert most(Counter(mounted_below(root))) <= 1, number
        assert in_process(place, driver, go_on) == 0, (number, log, (place / "room.log").read_text())
        causes = [text for text in (place / "room.log").read_text().splitlines() if text[:1] in "EW"]
        assert most(Counter(text.partition("] ")[2] for text in causes)) <= 1, (number, causes)
        assert loop.devices_of(image) == [], number
        last = [call["method"] for call in driver.calls("end") if "tageVolume" in call["method"]][-1:]
        assert last in ([], ["NodeUnstageVolume"]), number
    else:
        raise AssertionError(log)
    assert number > FEWEST_STEPS[kind], "most steps were not seen"


def most(counted: Counter[str]) -> int:
    """How often the most frequent is there."""
    return max(counted.values(), default=0)
