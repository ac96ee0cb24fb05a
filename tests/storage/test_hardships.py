"""Machines and drivers at their worst: a full or read-only disk, a device that is gone, ten thousand mounts,
a driver that lies. The pod waits and says why, others go on, nothing is lost or left.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import Claims, World, pod_of, running_world
from trio_kubelet.common.mountinfo import mount_point, mounts
from trio_kubelet.storage import loop
from trio_kubelet.volumes.linux import MS_BIND, MS_RDONLY, MS_REMOUNT, mount, mount_at, mount_tmpfs, unmount

MANY_MOUNTS = 10_000
CLONE_NEWNS = 0x20000
MS_PRIVATE, MS_REC = 1 << 18, 1 << 14


def claims_of(place: Path, *names: str, mode: str = "Filesystem") -> Claims:
    """Claims of the driver, and `dir`, which is a directory of the node."""
    claims = Claims()
    claims.driver()
    for name in names:
        claims.claim(name, modes=("ReadWriteMany",), mode=mode)
    (place / "dir").mkdir()
    claims.claim("dir", {"hostPath": {"path": str(place / "dir")}})
    return claims


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A filesystem of its own at a directory."""
    path.mkdir(parents=True)
    mount_tmpfs(str(path), 1 << 20)
    try:
        yield
    finally:
        while mount_at(str(path)) is not None:
            unmount(str(path))


async def until_well(world: World, *pods: str) -> None:
    """These pods get their volumes now, and give them up without a trace."""
    for name in pods:
        pod = pod_of(name, "c")
        assert not (await world.set_up(pod)).unmounted, world.events
        await world.tear_down(pod)
    await world.until(lambda: not mounted_below(world.root / "plugins"))


async def test_a_full_disk(place: Path, driver: DriverProcess) -> None:
    with small_disk(place / "root/plugins"):
        filler = place / "root/plugins/filler"
        async with running_world(place, claims=claims_of(place, "c"), driver=driver) as world:
            with filler.open("wb") as file, pytest.raises(OSError, match="No space left"):
                file.write(b"x" * (2 << 20))
            waiting = pod_of("p", "c")
            assert (await world.gives_up(waiting)).unmounted == ("c",)
            text = world.reasons("FailedMount")[0]
            assert text.startswith('MountVolume.MountDevice failed for volume "pv-c" : ')
            assert ": no space left on device" in text
            assert driver.methods("begin") == []
            assert not (await world.set_up(pod_of("q", "dir"))).unmounted
            filler.unlink()
            assert not (await world.set_up(waiting)).unmounted
            await world.tear_down(waiting)
            await until_well(world, "again")


async def test_a_read_only_filesystem(place: Path, driver: DriverProcess) -> None:
    with small_disk(place / "root/plugins"):
        async with running_world(place, claims=claims_of(place, "c"), driver=driver) as world:
            mount("", str(place / "root/plugins"), flags=MS_REMOUNT | MS_RDONLY)
            waiting = pod_of("p", "c")
            assert (await world.gives_up(waiting)).unmounted == ("c",)
            assert ": read-only file system" in world.reasons("FailedMount")[0]
            assert not (await world.set_up(pod_of("q", "dir"))).unmounted
            mount("", str(place / "root/plugins"), flags=MS_REMOUNT)
            assert not (await world.set_up(waiting)).unmounted
            await world.tear_down(waiting)
            await until_well(world, "again")


async def test_a_filesystem_that_becomes_read_only_while_it_is_used_is_given_up(
    place: Path, driver: DriverProcess
) -> None:
    with small_disk(place / "root/plugins"):
        async with running_world(place, claims=claims_of(place, "c"), driver=driver) as world:
            pod = pod_of("p", "c")
            assert not (await world.set_up(pod)).unmounted
            mount("", str(place / "root/plugins"), flags=MS_REMOUNT | MS_RDONLY)
            await world.tear_down(pod)
            await world.until(lambda: "NodeUnstageVolume" in driver.methods())
            assert mounted_below(world.root / "pods") == []
            mount("", str(place / "root/plugins"), flags=MS_REMOUNT)
            await until_well(world, "again")


async def test_a_device_that_vanishes(place: Path, driver: DriverProcess) -> None:
    """Before its pod has it, and while it has it."""
    image = place / "disk.img"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    disk = loop.attach(str(image))
    claims = claims_of(place, "c")
    claims.claim("raw", {"local": {"path": disk}}, mode="Block")
    claims.claim("gone", {"local": {"path": str(place / "link"), "fsType": "ext4"}})
    (place / "link").symlink_to("/dev/none")
    async with running_world(place, claims=claims, driver=driver) as world:
        waiting, using = pod_of("p", "gone"), pod_of("q", devices=("raw",))
        assert (await world.gives_up(waiting)).unmounted == ("gone",)
        assert "does not exist" in world.reasons("FailedMount")[0]
        assert not (await world.set_up(using)).unmounted
        loop.detach(str(image))
        image.unlink()
        await world.tear_down(using)
        assert not any(path.name == "pv-raw" for path in (world.root / "pods").rglob("*"))
        await world.tear_down(waiting)
        await world.until(lambda: not mounted_below(world.root))
        await world.until(lambda: not world.left())
        await until_well(world, "again")


@pytest.mark.parametrize("method", ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume"])
async def test_a_driver_that_answers_garbage(place: Path, driver: DriverProcess, method: str) -> None:
    driver.fail(**{method: {"garbage": True, "when": "after", "times": 2}})
    async with running_world(place, claims=claims_of(place, "c"), driver=driver) as world:
        pod = pod_of("p", "c")
        assert not (await world.set_up(pod)).unmounted
        if method != "NodeUnpublishVolume":
            assert len(world.reasons("FailedMount")) == 2
        assert mounted_below(world.root / "pods") == [str(world.path(pod, "c"))]
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_whoever_speaks_no_grpc_at_a_drivers_socket(place: Path, driver: DriverProcess) -> None:
    async with running_world(place, claims=claims_of(place, "c"), driver=driver) as world:
        driver.kill()
        driver.socket.unlink()
        listener = trio.socket.socket(trio.socket.AF_UNIX)
        await listener.bind(str(driver.socket))
        listener.listen()

        async def babble() -> None:
            while True:
                peer, _ = await listener.accept()
                with peer:
                    await peer.send(b"HTTP/1.1 418 I'm a teapot\r\n\r\n" + bytes(range(256)))

        pod = pod_of("p", "c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(babble)
            assert (await world.gives_up(pod)).unmounted == ("c",)
            assert not (await world.set_up(pod_of("q", "dir"))).unmounted
            nursery.cancel_scope.cancel()
        assert "rpc error: code = " in world.reasons("FailedMount")[0]
        listener.close()
        driver.start()
        await world.deregister()
        await world.register()
        assert not (await world.set_up(pod)).unmounted
        await world.tear_down(pod)
        await world.until(lambda: not world.left())


async def test_a_driver_that_mounts_at_another_volumes_path(place: Path, driver: DriverProcess) -> None:
    """The other pod's volume is not unmounted with the wrong one, and its data stays what it was."""
    async with running_world(place, claims=claims_of(place, "good", "bad"), driver=driver) as world:
        good, bad = pod_of("g", "good"), pod_of("b", "bad")
        assert not (await world.set_up(good)).unmounted
        path = world.path(good, "good")
        (path / "mine").write_text("mine")
        driver.set(lie={"volume": "bad", "target": str(path)})
        assert not (await world.set_up(bad)).unmounted
        driver.set()
        await world.tear_down(bad)
        assert mounted_below(world.root / "pods") == [str(path), str(path)]
        unmount(str(path))
        assert (path / "mine").read_text() == "mine"
        await world.tear_down(good)
        await world.until(lambda: not mounted_below(world.root / "pods"))


@pytest.mark.parametrize("file", [True, False])
async def test_a_driver_that_publishes_no_device(place: Path, driver: DriverProcess, file: bool) -> None:
    claims = claims_of(place, "raw", mode="Block")
    driver.set(lie={"volume": "raw", "file": file})
    async with running_world(place, claims=claims, driver=driver) as world:
        pod = pod_of("p", devices=("raw",))
        assert (await world.gives_up(pod, "FailedMapVolume")).unmounted == ("raw",)
        text = world.reasons("FailedMapVolume")[0]
        target = world.root / "plugins/kubernetes.io/csi/volumeDevices/publish/pv-raw/uid-p"
        said = {
            True: f'MapVolume.MapBlockVolume failed for volume "pv-raw" : {target}: block device required',
            False: f'MapVolume.EvalHostSymlinks failed for volume "pv-raw" : lstat {target}: no such file or '
            "directory",
        }
        assert text == said[file]
        driver.set()
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_a_driver_that_publishes_nothing_leaves_nothing(place: Path, driver: DriverProcess) -> None:
    driver.set(lie={"volume": "c"})
    async with running_world(place, claims=claims_of(place, "c"), driver=driver) as world:
        pod = pod_of("p", "c")
        assert not (await world.set_up(pod)).unmounted
        await world.tear_down(pod)
        await world.until(lambda: not world.left())


async def test_limits_are_told_anew_after_each_period(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEP-4876: `nodeAllocatableUpdatePeriodSeconds`."""
    monkeypatch.setattr("trio_kubelet.storage.csi.limits.SHORTEST", 0.0)
    claims = Claims()
    claims.driver(nodeAllocatableUpdatePeriodSeconds=1)
    driver.set(limit=3)
    async with running_world(place, claims=claims, driver=driver) as world:
        driver.set(limit=2)
        await world.until(lambda: [info.limit for info in world.told][:2] == [3, 2])
        driver.fail(NodeGetInfo={"code": 13, "times": 1})
        await world.until(lambda: "NodeGetInfo" in [c["method"] for c in driver.calls("error")])
        driver.set(limit=1)
        await world.until(lambda: world.told[-1].limit == 1)


async def test_giving_away_a_volume_tells_how_far_it_is(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEP-1682: what takes long says so, then how many files it has done; nobody else waits."""
    monkeypatch.setattr("trio_kubelet.storage.ownership.FIRST_NEWS", 0.2)
    monkeypatch.setattr("trio_kubelet.storage.ownership.NEXT_NEWS", 0.2)
    real = os.chown

    def slow(path: str, uid: int, gid: int, **rest: object) -> None:
        time.sleep(0.1)
        real(path, uid, gid, **rest)  # type: ignore[arg-type]

    claims = claims_of(place, "c")
    (place / "full").mkdir()
    for number in range(8):
        (place / f"full/{number}").touch()
    claims.claim("full", {"local": {"path": str(place / "full")}})
    pod = pod_of("p", "full", securityContext={"fsGroup": 4321})
    async with running_world(place, claims=claims, driver=driver) as world:
        monkeypatch.setattr("os.chown", slow)
        assert not (await world.set_up(pod)).unmounted
        first, *later = world.reasons("VolumePermissionChangeInProgress")
        where = "uid-p/volumes/kubernetes.io~local-volume/pv-full"
        assert first.startswith(f"Setting volume ownership for {where} is taking longer than expected")
        assert later
        assert later[0].startswith(f"Setting volume ownership for {where}, processed ")
        assert later[0].endswith(" files.")
        assert (place / "full/7").stat().st_gid == 4321
        await world.tear_down(pod)


def test_ten_thousand_mounts(place: Path, driver: DriverProcess) -> None:
    """In a mount namespace of its own: pods start and end with a list of mounts that long."""
    seconds = multiprocessing.get_context("fork").Value("d", 0.0)
    process = multiprocessing.get_context("fork").Process(target=among_many, args=(place, driver, seconds))
    process.start()
    process.join(240)
    alive = process.is_alive()
    if alive:
        process.kill()
    assert not alive, "it hangs"
    assert process.exitcode == 0, (place / "child.log").read_text()
    assert seconds.value < 30, seconds.value


def among_many(place: Path, driver: DriverProcess, seconds: ctypes.c_double) -> None:
    """The process: mounts, then brings ten volumes to pods and takes them back."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(CLONE_NEWNS) == 0
        mount("none", "/", flags=MS_REC | MS_PRIVATE)
        many = place / "many"
        many.mkdir()
        mount_tmpfs(str(many), 16 << 20)
        for number in range(MANY_MOUNTS):
            target = many / f"a directory {number}"
            target.mkdir()
            mount(str(target), str(target), flags=MS_BIND)
        assert len(mounts()) > MANY_MOUNTS
        found = mount_point(str(many / "a directory 7"))
        assert found is not None
        assert found.path == str(many / "a directory 7")
        assert mount_point(str(many / "a directory")) is None
        seconds.value = trio.run(come_and_go, place, driver)
        driver.kill()
    except BaseException:
        (place / "child.log").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


async def come_and_go(place: Path, driver: DriverProcess) -> float:
    names = [f"v{number}" for number in range(10)]
    driver.set(fs="tmpfs")
    claims = claims_of(place, *names)
    async with running_world(place, claims=claims, driver=driver) as world:
        began = time.monotonic()
        pods = [pod_of(f"p-{name}", name) for name in names]
        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(world.set_up, pod)
        assert len(mounted_below(world.root)) == 20
        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(world.tear_down, pod)
        await world.until(lambda: not world.left(), 60)
        return time.monotonic() - began
