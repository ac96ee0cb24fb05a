"""What is told of claims' use: by their drivers, by their filesystems, and when a driver does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from tests.storage.drivers import DriverProcess
from tests.storage.world import DRIVER, Claims, pod_of, running_world
from trio_kubelet.common.clock import Clock
from trio_kubelet.machine.node_reader import filesystem_of
from trio_kubelet.machine.values import Filesystem
from trio_kubelet.storage import loop


async def test_a_driver_tells_how_full_its_volume_is(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c")
    (place / "there").mkdir()
    claims.claim("dir", {"local": {"path": str(place / "there")}})
    pod = pod_of("p", "c", "dir")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        took: dict[str, float] = {}
        found = {use.claim: use for use in await world.room.usage.of(pod, took.__setitem__)}
        assert took.keys() == {DRIVER, "statfs"}
        assert found["c"].namespace == "default"
        assert 8 << 20 < found["c"].capacity <= 16 << 20
        assert found["c"].inodes == found["c"].inodes_free + found["c"].inodes_used
        assert found["dir"].capacity > 16 << 20
        await world.tear_down(pod)
        assert await world.room.usage.of(pod) == []


async def test_of_devices_their_size_is_told(place: Path, driver: DriverProcess) -> None:
    """By the driver, or by the device; of paths of the node nothing is."""
    image = place / "disk.img"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    disk = loop.attach(str(image))
    claims = Claims()
    claims.driver()
    claims.claim("raw", mode="Block")
    claims.claim("disk", {"local": {"path": disk}}, mode="Block")
    claims.claim("path", {"hostPath": {"path": str(place)}})
    pod = pod_of("p", "path", devices=("raw", "disk"))
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted, world.events
        took: dict[str, float] = {}
        uses = await world.room.usage.of(pod, took.__setitem__)
        assert took.keys() == {DRIVER, "block"}
        found = {use.claim: (use.capacity, use.used) for use in uses}
        assert found == {"raw": (16 << 20, 0), "disk": (8 << 20, 0)}
        await world.tear_down(pod)


async def test_a_driver_that_does_not_answer_is_left_alone_for_a_while(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.storage.usage.DEADLINE", 0.3)
    claims = Claims()
    claims.driver()
    claims.claim("a")
    claims.claim("b")
    pod = pod_of("p", "a", "b")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        driver.fail(NodeGetVolumeStats={"hang": 60})
        with trio.fail_after(30):
            assert await world.room.usage.of(pod) == []
            assert await world.room.usage.of(pod) == []
        assert driver.methods("begin").count("NodeGetVolumeStats") == 1
        driver.fail()
        await world.tear_down(pod)


async def test_a_server_that_does_not_answer_is_left_alone_for_a_while(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.storage.usage.DEADLINE", 0.3)
    claims = Claims()
    for name in ("away", "there"):
        (place / name).mkdir()
        claims.claim(name, {"local": {"path": str(place / name)}})
    pod = pod_of("p", "away", "there")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        answers, away = threading.Event(), str(world.path(pod, "away"))

        def filesystem(path: str, clock: Clock) -> Filesystem | None:
            if path == away:
                answers.wait()
            return filesystem_of(path, clock)

        monkeypatch.setattr("trio_kubelet.storage.usage.filesystem_of", filesystem)
        asked: list[str] = []
        try:
            with trio.fail_after(30):
                for _ in range(3):
                    uses = await world.room.usage.of(pod, lambda source, seconds: asked.append(source))
                    assert [use.claim for use in uses] == ["there"]
        finally:
            answers.set()
        assert len(asked) == 2 + 1 + 1
        await world.tear_down(pod)


async def test_a_driver_tells_that_its_volume_is_not_well(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c")
    pod = pod_of("p", "c")
    able = ["STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS"]
    sick = {"abnormal": True, "message": "the disk is dying"}
    driver.set(capabilities=able, condition=sick)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        (use,) = await world.room.usage.of(pod)
        assert use.abnormal is None  # it does not say that it knows
    driver.set(capabilities=[*able, "VOLUME_CONDITION"], condition=sick)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        (use,) = await world.room.usage.of(pod)
        assert use.abnormal
        assert world.reasons("VolumeConditionAbnormal") == ["Volume c: the disk is dying"]
        driver.set(capabilities=able, condition={})
        (use,) = await world.room.usage.of(pod)
        assert use.abnormal is False
        assert len(world.reasons("VolumeConditionAbnormal")) == 1
        await world.tear_down(pod)
