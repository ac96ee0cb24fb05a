"""Disks of a real iSCSI target, directories of a real NFS server: those of the kernel, on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import Claims, World, pod_of, running_world
from trio_kubelet.storage.steps import ReportedVolumes

pytestmark = pytest.mark.hardware

IQN = "iqn.2001-04.com.example:disk"
PORTAL = "127.0.0.1:3260"
CONFIG = Path("/sys/kernel/config/target")
SELF = ReportedVolumes(controller=False)
SERVER = ["nfs-kernel-server.service"]


def run(*command: str) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.stdout.decode()


def write(path: Path, text: str) -> None:
    path.write_text(text)  # without an end of line, which would be part of a password


def needs(*programs: str) -> None:
    """Skips the test everywhere but in the emulated machine, which has these programs."""
    if os.environ.get("TRIO_KUBELET_EMULATED") != "1":
        pytest.skip("changes targets, sessions and exports of the whole machine: only in the emulated one")
    missing = [program for program in programs if shutil.which(program) is None]
    assert not missing, f"this machine has no {', '.join(missing)}"


@pytest.fixture
def target(place: Path) -> Iterator[Path]:
    """A target with one disk, unit 1; its group of portals."""
    needs("iscsiadm", "modprobe")
    run("modprobe", "-a", "target_core_mod", "target_core_file", "iscsi_target_mod", "iscsi_tcp")
    image = place / "unit"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    store = CONFIG / "core/fileio_0/disk"
    store.mkdir(parents=True)
    write(store / "control", f"fd_dev_name={image},fd_dev_size={64 << 20}")
    write(store / "enable", "1")
    group = CONFIG / "iscsi" / IQN / "tpgt_1"
    unit = group / "lun/lun_1"
    unit.mkdir(parents=True)
    (unit / "port").symlink_to(store)
    (group / "np" / PORTAL).mkdir()
    for name, value in (
        ("authentication", "0"),
        ("generate_node_acls", "1"),
        ("cache_dynamic_acls", "1"),
        ("demo_mode_write_protect", "0"),
    ):
        write(group / "attrib" / name, value)
    write(group / "enable", "1")
    yield group
    subprocess.run(["iscsiadm", "-m", "node", "-T", IQN, "--logout"], check=False, capture_output=True)
    write(group / "enable", "0")
    (unit / "port").unlink()
    for directory in (unit, group / "np" / PORTAL, group, group.parent, store, store.parent):
        directory.rmdir()


def disk_claim(claims: Claims, name: str = "disk", **source: object) -> None:
    disk = {"targetPortal": PORTAL, "iqn": IQN, "lun": 1, "fsType": "ext4", **source}
    claims.claim(name, {"iscsi": disk}, size="64Mi")


def sessions() -> str:
    """What the initiator says of its sessions, "" for none."""
    done = subprocess.run(["iscsiadm", "-m", "session"], check=False, capture_output=True, timeout=60)
    return done.stdout.decode()


async def gone(world: World) -> None:
    await world.until(lambda: not world.room.volumes.in_use(), 120)
    assert mounted_below(world.root) == []
    assert IQN not in sessions()


async def test_a_disk_of_a_target_outlives_pods_and_agents(
    place: Path, driver: DriverProcess, target: Path
) -> None:
    claims = Claims()
    disk_claim(claims)
    first, second = pod_of("p", "disk"), pod_of("q", "disk")
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        world.view = SELF
        assert not (await world.set_up(first, patience=120)).unmounted, world.events
        assert IQN in sessions()
        (world.path(first, "disk") / "file").write_text("kept")
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        world.view = SELF
        assert not (await world.set_up(first, patience=120)).unmounted
        assert (world.path(first, "disk") / "file").read_text() == "kept"
        await world.tear_down(first)
        await gone(world)
        assert not (await world.set_up(second, patience=120)).unmounted
        assert (world.path(second, "disk") / "file").read_text() == "kept"
        await world.tear_down(second)
        await gone(world)


async def test_a_disk_of_a_target_as_a_device(place: Path, driver: DriverProcess, target: Path) -> None:
    claims = Claims()
    source = {"targetPortal": PORTAL, "iqn": IQN, "lun": 1}
    claims.claim("raw", {"iscsi": source}, size="64Mi", mode="Block")
    pod = pod_of("p", devices=("raw",))
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        world.view = SELF
        assert not (await world.set_up(pod, patience=120)).unmounted, world.events
        with world.device(pod, "raw").open("rb") as file:
            assert file.seek(0, os.SEEK_END) == 64 << 20
        await world.tear_down(pod)
        await gone(world)


async def test_a_target_that_wants_a_password(place: Path, driver: DriverProcess, target: Path) -> None:
    write(target / "attrib/authentication", "1")
    write(target / "auth/userid", "user")
    write(target / "auth/password", "a long password")
    claims = Claims()
    claims.store.create(
        "secrets",
        "default",
        {
            "metadata": {"name": "chap"},
            "type": "kubernetes.io/iscsi-chap",
            "data": {
                "node.session.auth.username": "dXNlcg==",
                "node.session.auth.password": "YSBsb25nIHBhc3N3b3Jk",
            },
        },
    )
    disk_claim(claims, "wrong")
    disk_claim(claims, "right", chapAuthSession=True, secretRef={"name": "chap", "namespace": "default"})
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        world.view = SELF
        refused = pod_of("p", "wrong")
        assert (await world.set_up(refused, patience=20)).unmounted == ("wrong",)
        assert any("failed to login" in each or "login" in each for each in world.reasons("FailedMount"))
        await world.tear_down(refused)
        pod = pod_of("q", "right")
        assert not (await world.set_up(pod, patience=120)).unmounted, world.events
        await world.tear_down(pod)
        await gone(world)


@pytest.fixture
def exported(place: Path) -> Iterator[Path]:
    """A directory that an NFS server shows."""
    needs("exportfs", "mount.nfs", "modprobe", "systemctl")
    run("modprobe", "-a", "nfsd", "nfsv4")
    directory = place / "exported"
    directory.mkdir()
    directory.chmod(0o777)
    exports = Path("/etc/exports.d/test.exports")
    exports.parent.mkdir(exist_ok=True)
    exports.write_text(f"{directory} 127.0.0.1(rw,no_root_squash,no_subtree_check,insecure,fsid=77)\n")
    run("systemctl", "restart", *SERVER)
    run("exportfs", "-ra")
    yield directory
    run("systemctl", "start", *SERVER)
    exports.unlink()
    run("exportfs", "-ra")
    run("systemctl", "stop", *SERVER)


async def test_pods_share_a_directory_of_an_nfs_server(
    place: Path, driver: DriverProcess, exported: Path
) -> None:
    claims = Claims()
    source = {"nfs": {"server": "127.0.0.1", "path": str(exported)}}
    claims.claim("shared", source, modes=("ReadWriteMany",), mountOptions=["vers=4.2"])
    pods = [pod_of("p", "shared"), pod_of("q", "shared")]
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        for pod in pods:
            assert not (await world.set_up(pod, patience=120)).unmounted, world.events
        (world.path(pods[0], "shared") / "file").write_text("seen")
        assert (world.path(pods[1], "shared") / "file").read_text() == "seen"
        assert (exported / "file").read_text() == "seen"
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        for pod in pods:
            await world.tear_down(pod)
        assert mounted_below(world.root) == []
    assert (exported / "file").read_text() == "seen"


async def test_an_nfs_server_that_is_away_holds_up_its_own_pods_only(
    place: Path, driver: DriverProcess, exported: Path
) -> None:
    claims, there = Claims(), place / "there"
    there.mkdir()
    source = {"nfs": {"server": "127.0.0.1", "path": str(exported)}}
    claims.claim("shared", source, modes=("ReadWriteMany",), mountOptions=["vers=4.2"])
    claims.claim("local", {"local": {"path": str(there)}})
    waiting, other = pod_of("p", "shared"), pod_of("q", "local")
    await trio.to_thread.run_sync(run, "systemctl", "stop", *SERVER)
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        assert (await world.set_up(waiting, patience=1)).unmounted == ("shared",)
        assert not (await world.set_up(other)).unmounted
        await world.tear_down(other)
        await trio.to_thread.run_sync(run, "systemctl", "start", *SERVER)
        assert not (await world.set_up(waiting, patience=240)).unmounted, world.events
        await world.tear_down(waiting)
        assert mounted_below(world.root) == []
