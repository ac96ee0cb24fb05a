"""The agent, or the driver, is killed at random moments while pods with claims come and go. Afterwards
nothing is mounted, every stage has had its unstage, and no data is lost.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections import Counter
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.room_process import CLAIMS, run_room
from trio_kubelet.storage import loop

KILLS = 12
SOAK_KILLS = 50
SOAK_SEEDS = range(2, 12)
SOAK = pytest.mark.soak
_PATIENCE = 120.0


class Scene:
    """The directory of a run, and the process that is killed."""

    def __init__(self, directory: Path, driver: DriverProcess, seed: int) -> None:
        self.directory = directory
        self.driver = driver
        self.random = random.Random(seed)
        self.version = 0
        self.process: ForkProcess | None = None
        (directory / "expected").mkdir()
        self.want({})

    def want(self, pods: dict[str, list[str]]) -> None:
        """These pods are to be there."""
        self.version += 1
        fresh = self.directory / "pods.new"
        fresh.write_text(json.dumps({"version": self.version, **pods}))
        fresh.rename(self.directory / "pods.json")

    def any_pods(self) -> dict[str, list[str]]:
        """Some pods with some claims; a name has the same claims for as long as it is used."""
        names = self.random.sample(range(6), self.random.randrange(5))
        return {
            f"p{number}": [claim for at, claim in enumerate(CLAIMS) if (number + 1) >> at & 1] or ["one"]
            for number in names
        }

    def start(self) -> None:
        """A fork, for to import everything anew takes longer than what is tested."""
        self.process = multiprocessing.get_context("fork").Process(
            target=run_room, args=(self.directory,), daemon=True
        )
        self.process.start()
        self.until(self.directory / "started", str(self.process.pid))

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.is_alive(), self.log()
        self.process.kill()
        self.process.join()

    def log(self) -> str:
        """The last words of the room."""
        return (self.directory / "room.log").read_text()[-6000:]

    def until_settled(self) -> None:
        self.until(self.directory / "settled", str(self.version))

    def until(self, path: Path, text: str) -> None:
        """The process has written that text."""
        deadline = time.monotonic() + _PATIENCE
        while not (path.exists() and path.read_text() == text):
            assert self.process is not None
            assert self.process.is_alive(), self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.005)

    def check_mounts(self) -> None:
        """Nothing is mounted twice."""
        twice = [path for path, n in Counter(mounted_below(self.directory / "root")).items() if n > 1]
        assert twice == []

    def finish(self) -> None:
        """All pods go; nothing of them is left."""
        self.driver.fail()
        self.want({})
        self.until_settled()
        root = self.directory / "root"
        deadline = time.monotonic() + _PATIENCE
        while left := [*mounted_below(root), *files_below(root / "plugins")]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        self.kill()
        staged: dict[str, str] = {}
        for call in self.driver.calls("end"):
            if call["method"] in ("NodeStageVolume", "NodeUnstageVolume"):
                staged[call["volume"]] = call["method"]
        assert set(staged.values()) <= {"NodeUnstageVolume"}, staged
        for claim in CLAIMS:
            assert loop.devices_of(str(self.driver.directory / f"{claim}.img")) == []


def files_below(directory: Path) -> list[str]:
    """Files there; directories may be removed while they are looked at."""
    return [f"{parent}/{name}" for parent, _, names in os.walk(directory) for name in names]


BOTH = [
    (KILLS, 0),
    (KILLS, 1),
    *(pytest.param(SOAK_KILLS, seed, marks=SOAK) for seed in SOAK_SEEDS),
]


@pytest.mark.parametrize(("kills", "seed"), BOTH)
def test_the_agent_is_killed_at_any_moment(place: Path, driver: DriverProcess, kills: int, seed: int) -> None:
    driver.start()
    scene = Scene(place, driver, seed)
    for _ in range(kills):
        scene.start()
        for _ in range(scene.random.randrange(1, 4)):
            scene.want(scene.any_pods())
            time.sleep(scene.random.random() * 0.4)
        scene.check_mounts()
        scene.kill()
        scene.check_mounts()
    scene.start()
    scene.finish()


@pytest.mark.parametrize(("kills", "seed"), BOTH)
def test_the_driver_is_killed_at_any_moment(
    place: Path, driver: DriverProcess, kills: int, seed: int
) -> None:
    driver.start()
    scene = Scene(place, driver, seed)
    scene.start()
    for _ in range(kills):
        for _ in range(scene.random.randrange(1, 3)):
            scene.want(scene.any_pods())
            time.sleep(scene.random.random() * 0.5)
        method = scene.random.choice(("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume"))
        when = scene.random.choice(("before", "after"))
        driver.fail(**{method: {"crash": True, "when": when, "times": 1}})
        scene.want(scene.any_pods())
        time.sleep(scene.random.random() * 0.3)
        driver.kill()
        driver.fail()
        scene.check_mounts()
        driver.start()
    scene.finish()
