"""The storage room in a process of its own, to be killed: makes the volumes of the pods that a file names.

`pods.json` in the directory maps pods to their claims and is looked at all the time. A pod that is there gets
its volumes, and counts up a number in each; one that has a directory and is not there loses them. `settled`
names the version of the file that has been brought about, `started` the process that is at work.
"""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import Any

import trio

from tests.storage.drivers import DriverProcess
from tests.storage.world import DRIVER, Claims, World, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.volumes.errors import VolumeError

CLAIMS = ("one", "two", "three", "raw")


def known_claims() -> Claims:
    """The same objects in every process."""
    claims = Claims()
    claims.driver()
    for name in CLAIMS:
        claims.claim(name, modes=("ReadWriteMany",), mode="Block" if name == "raw" else "Filesystem")
    return claims


def pod_for(name: str, wanted: list[str]) -> v1.Pod:
    """A pod of the file."""
    mounts = tuple(claim for claim in wanted if claim != "raw")
    return pod_of(name, *mounts, devices=("raw",) if "raw" in wanted else ())


class Keeper:
    """Brings about what the file says."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.directory = directory
        self.done: dict[str, list[str]] = {}

    async def run(self) -> None:
        while True:
            wanted: dict[str, Any] = json.loads((self.directory / "pods.json").read_text())
            version = wanted.pop("version")
            there = {path.name.removeprefix("uid-") for path in (self.world.root / "pods").glob("uid-*")}
            async with trio.open_nursery() as nursery:
                for name in (there | self.done.keys()) - wanted.keys():
                    nursery.start_soon(self.end, name)
                for name, claims in wanted.items():
                    if name not in self.done:
                        nursery.start_soon(self.begin, name, claims)
            if self.done.keys() == wanted.keys() and not any(
                (self.world.root / "pods" / f"uid-{name}").exists() for name in there - wanted.keys()
            ):
                fresh = self.directory / "settled.new"
                fresh.write_text(str(version))
                fresh.rename(self.directory / "settled")
            await trio.sleep(0.005)

    async def begin(self, name: str, claims: list[str]) -> None:
        pod = pod_for(name, claims)
        (self.world.root / "pods" / f"uid-{name}").mkdir(parents=True, exist_ok=True)
        if (await self.world.set_up(pod, patience=5)).unmounted:
            return
        for claim in claims:
            if claim != "raw":
                count(self.world.path(pod, claim) / "count", self.directory / "expected" / claim)
        self.done[name] = claims

    async def end(self, name: str) -> None:
        try:
            await self.world.room.volumes.tear_down(f"uid-{name}")
        except VolumeError:
            return
        self.done.pop(name, None)
        directory = self.world.root / "pods" / f"uid-{name}"
        for path in sorted(directory.rglob("*"), reverse=True):
            assert path.is_dir(), f"{path} was left behind"
            path.rmdir()
        directory.rmdir()


def count(path: Path, expected: Path) -> None:
    """Counts on; the number in the volume must not be older than the one outside."""
    number = int(path.read_text()) if path.exists() else 0
    known = int(expected.read_text()) if expected.exists() else 0
    assert number >= known, f"{path} lost its data: {number} instead of {known}"
    for target in (path, expected):
        fresh = target.with_suffix(f".{os.getpid()}.new")
        with fresh.open("w") as file:
            file.write(str(number + 1))
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(target)


async def main(directory: Path) -> None:
    """Runs until it is killed."""
    driver = DriverProcess(DRIVER, directory / "driver")
    driver.attach()
    async with (
        running_world(directory, claims=known_claims(), driver=driver, register=False) as world,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stay_registered, world)
        (directory / "started").write_text(str(os.getpid()))
        await Keeper(world, directory).run()


async def stay_registered(world: World) -> None:
    """Registers the driver whenever its socket is new."""
    known: int | None = None
    while True:
        try:
            now: int | None = world.process.socket.stat().st_ino
        except FileNotFoundError:
            now = None
        if now != known:
            if known is not None:
                await world.deregister()
            if now is not None and not await world.try_register():
                now = None
            known = now
        await trio.sleep(0.01)


def run_room(directory: Path) -> None:
    """The process: runs until it is killed, and writes its log into a file."""
    log = os.open(directory / "room.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        trio.run(main, directory)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
