"""Local persistent volumes, paths of the node behind claims, and what is told where NFS has no helper."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import Claims, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.storage import ownership
from trio_kubelet.storage.disks import format, local, plain
from trio_kubelet.storage.disks.format import disk_format, run_tool
from trio_kubelet.storage.errors import FilesystemMismatch, OperationError
from trio_kubelet.storage.specs import NFS, Spec
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.linux import MS_BIND, MS_REMOUNT, mount, unmount

pytestmark = pytest.mark.node  # block devices


async def test_a_local_directory(place: Path, driver: DriverProcess) -> None:
    claims, there = Claims(), place / "there"
    there.mkdir()
    claims.claim("dir", {"local": {"path": str(there)}})
    pod = pod_of("p", "dir", securityContext={"fsGroup": 4321})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        path = world.path(pod, "dir")
        assert path == world.root / "pods/uid-p/volumes/kubernetes.io~local-volume/pv-dir"
        assert world.room.volumes.mounts("uid-p")["dir"].relabel
        (path / "f").write_text("x")
        assert (there / "f").read_text() == "x"
        assert there.stat().st_gid == 4321
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert (there / "f").read_text() == "x"


async def test_a_local_disk_is_formatted_once_and_found_after_a_restart(
    place: Path, driver: DriverProcess, disk: str
) -> None:
    claims = Claims()
    claims.claim("disk", {"local": {"path": disk, "fsType": "ext4"}})
    pod = pod_of("p", "disk")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert await disk_format(disk) == ""
        assert not (await world.set_up(pod)).unmounted, world.events
        assert await disk_format(disk) == "ext4"
        (world.path(pod, "disk") / "f").write_text("kept")
    async with running_world(place, claims=claims, driver=driver) as world:
        await world.tear_down(pod)
        await world.until(lambda: not mounted_below(world.root))
        again = pod_of("q", "disk")
        assert not (await world.set_up(again)).unmounted
        assert (world.path(again, "disk") / "f").read_text() == "kept"
        await world.tear_down(again)


async def test_a_local_disk_as_a_device(place: Path, driver: DriverProcess, disk: str) -> None:
    claims = Claims()
    claims.claim("raw", {"local": {"path": disk}}, mode="Block")
    pod = pod_of("p", devices=("raw",))
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted, world.events
        assert str(world.device(pod, "raw").readlink()) == disk
        await world.tear_down(pod)
        await world.until(lambda: not mounted_below(world.root))
        await world.until(lambda: not world.left())


async def test_a_disk_that_is_not_there_is_told(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.claim("gone", {"local": {"path": "/dev/none"}})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod_of("p", "gone"))).unmounted == ("gone",)
        (text, *_) = world.reasons("FailedMount")
        assert text == (
            'MountVolume.NewMounter initialization failed for volume "pv-gone" : '
            'path "/dev/none" does not exist'
        )


async def test_a_local_path_that_is_a_file_is_no_volume(place: Path, driver: DriverProcess) -> None:
    (place / "file").touch()
    claims = Claims()
    claims.claim("file", {"local": {"path": str(place / "file")}})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod_of("p", "file"))).unmounted == ("file",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.NewMounter initialization failed for volume "pv-file" : '
            "only directory and block device are supported"
        )


@pytest.mark.parametrize(
    ("mode", "reason", "step"),
    [
        ("Filesystem", "FailedMount", "MountVolume.NewMounter"),
        ("Block", "FailedMapVolume", "MapVolume.NewBlockVolumeMapper"),
    ],
)
async def test_a_disk_whose_password_is_missing_is_told_before_all_steps(
    place: Path, driver: DriverProcess, mode: str, reason: str, step: str
) -> None:
    claims = Claims()
    disk = {"targetPortal": "127.0.0.1:1", "iqn": "iqn.2001-04.com.example:a", "lun": 0}
    secret = {"chapAuthSession": True, "secretRef": {"name": "no", "namespace": "default"}}
    claims.claim("disk", {"iscsi": {**disk, **secret}}, mode=mode)
    pod = pod_of("p", devices=("disk",)) if mode == "Block" else pod_of("p", "disk")
    async with running_world(place, claims=claims, driver=driver) as world:
        world.view = ReportedVolumes(controller=False)
        assert (await world.gives_up(pod, reason)).unmounted == ("disk",)
        assert world.reasons(reason)[0] == (
            f'{step} initialization failed for volume "pv-disk" : '
            'couldn\'t get secret default/no error: secrets "no" not found'
        )


async def test_a_path_of_the_node_behind_a_claim(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.claim("made", {"hostPath": {"path": str(place / "made"), "type": "DirectoryOrCreate"}})
    claims.claim("not", {"hostPath": {"path": str(place / "not"), "type": "Directory"}})
    pod = pod_of("p", "made")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        assert world.path(pod, "made") == place / "made"
        await world.tear_down(pod)
        assert (place / "made").is_dir()
        assert (await world.gives_up(pod_of("q", "not"))).unmounted == ("not",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.SetUp failed for volume "pv-not" : hostPath type check failed: '
            f"{place / 'not'} is not a directory"
        )


@pytest.mark.skipif(shutil.which("mount.nfs") is not None, reason="the helper of NFS is installed")
async def test_nfs_without_its_helper_is_told_in_the_words_of_mount(
    place: Path, driver: DriverProcess
) -> None:
    claims = Claims()
    claims.claim("nfs", {"nfs": {"server": "127.0.0.1", "path": "/x"}}, mountOptions=["vers=4"])
    pod = pod_of("p", "nfs")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod)).unmounted == ("nfs",)
        (text, *_) = world.reasons("FailedMount")
        target = world.root / "pods/uid-p/volumes/kubernetes.io~nfs/pv-nfs"
        assert text.startswith(
            'MountVolume.SetUp failed for volume "pv-nfs" : mount failed: exit status 32\n'
        )
        assert f"Mounting arguments: -t nfs -o vers=4 127.0.0.1:/x {target}" in text
        assert "nfs" in text.partition("Output:")[2]
        await world.tear_down(pod)
        assert world.left() == []


async def test_what_a_server_that_is_away_keeps_is_unmounted_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up, forced = threading.Event(), []

    def unmount_dir(path: str) -> None:
        assert given_up.wait(20)

    def by_force(path: str) -> None:
        forced.append(path)
        given_up.set()

    monkeypatch.setattr(plain, "UNMOUNT_SECONDS", 0.05)
    monkeypatch.setattr(plain, "unmount_dir", unmount_dir)
    monkeypatch.setattr(plain, "_unmount_by_force", by_force)
    spec = Spec(unique_name="n", name="v", plugin=NFS, source=v1.NFSVolumeSource())
    with trio.fail_after(10):
        await plain.NFSVolumes(root_dir=str(tmp_path)).tear_down(PodMount(uid="u", spec=spec))
    assert forced == [f"{tmp_path}/pods/u/volumes/kubernetes.io~nfs/v"]


async def test_a_disk_of_another_node_is_not_touched(place: Path, driver: DriverProcess, disk: str) -> None:
    """Whoever has brought the pod here, past the scheduler."""
    claims = Claims()
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["there"]}
    there = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    source = {"local": {"path": disk, "fsType": "ext4"}}
    claims.claim("disk", source, nodeAffinity=there)
    claims.claim("raw", {"local": {"path": disk}}, mode="Block", nodeAffinity=there)
    pod = pod_of("p", "disk", devices=("raw",))
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod)).unmounted == ("disk", "raw")
        await world.until(lambda: len(set(world.reasons("FailedMount"))) == 2)
        assert set(world.reasons("FailedMount")) == {  # the kubelet says so of devices, too
            'MountVolume.NodeAffinity check failed for volume "pv-disk" : no matching NodeSelectorTerms',
            'MapVolume.NodeAffinity check failed for volume "pv-raw" : no matching NodeSelectorTerms',
        }
        assert await disk_format(disk) == ""
        world.view = ReportedVolumes(labels={"kubernetes.io/hostname": "there"})
        assert not (await world.set_up(pod_of("q", "disk"))).unmounted
        await world.tear_down(pod_of("q", "disk"))
        await world.tear_down(pod)


async def test_a_local_disk_grows_with_its_claim(
    place: Path, driver: DriverProcess, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its filesystem was smaller than the disk is."""
    await run_tool(["mkfs.ext4", "-q", disk, "16M"])
    claims = Claims()
    claims.claim("disk", {"local": {"path": disk, "fsType": "ext4"}}, size="16Mi")
    asked = []

    async def tool(command: Sequence[str]) -> tuple[int, str]:
        asked.append(list(command))
        if command[0] == "resize2fs":  # while it is mounted, that needs CAP_SYS_RESOURCE
            return 0, ""
        return await run_tool(command)

    def capacity() -> object:
        return claims.store.get("persistentvolumeclaims", "default", "disk")["status"]["capacity"]

    monkeypatch.setattr(format, "run_tool", tool)
    monkeypatch.setattr("trio_kubelet.storage.manager.FRESH", 0.0)
    pod = pod_of("p", "disk")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        claims.grow("disk", "32Mi")
        await world.set_up(pod)
        await world.until(lambda: capacity() == {"storage": "32Mi"})  # written after the event
        assert len(world.reasons("FileSystemResizeSuccessful")) == 1
        assert ["resize2fs", disk] in asked
        await world.tear_down(pod)
        await world.until(lambda: not mounted_below(world.root))


async def test_a_volume_that_cannot_be_given_to_its_pods_group_is_taken_back(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_volume(*where: object, **how: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(ownership, "give_volume", give_volume)
    claims, there = Claims(), place / "there"
    there.mkdir()
    claims.claim("dir", {"local": {"path": str(there)}})
    pod = pod_of("p", "dir", securityContext={"fsGroup": 4321})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.set_up(pod, patience=1)).unmounted == ("dir",)
        assert world.reasons("FailedMount")
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_the_first_pod_says_whose_a_shared_volume_is(place: Path, driver: DriverProcess) -> None:
    claims, there = Claims(), place / "there"
    there.mkdir()
    claims.claim("dir", {"local": {"path": str(there)}})
    pods = [pod_of(name, "dir", securityContext={"fsGroup": group}) for name, group in (("p", 11), ("q", 22))]
    async with running_world(place, claims=claims, driver=driver) as world:
        for pod in pods:
            assert not (await world.set_up(pod)).unmounted
        assert there.stat().st_gid == 11
        assert world.reasons("AlreadyMountedVolume") == [
            "The requested fsGroup is 22, but the volume pv-dir has GID 11. The volume may not be shareable."
        ]
        for pod in pods:
            await world.tear_down(pod)


async def test_what_pods_made_of_their_files_is_left_when_the_agent_starts_again(
    place: Path, driver: DriverProcess
) -> None:
    claims, there = Claims(), place / "there"
    there.mkdir()
    (there / "given").touch()
    claims.claim("dir", {"local": {"path": str(there)}})
    pods = [pod_of(name, "dir", securityContext={"fsGroup": group}) for name, group in (("p", 11), ("q", 22))]
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pods[0])).unmounted
        assert (there / "given").stat().st_mode & 0o7777 == 0o664
        (there / "private").touch(0o600)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pods[0])).unmounted
        assert (there / "private").stat().st_mode & 0o7777 == 0o600
        there.chmod(0o755)  # as if that had not been finished
        assert not (await world.set_up(pods[1])).unmounted
        assert len(world.reasons("AlreadyMountedVolume")) == 1
        await world.tear_down(pods[1])
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pods[0])).unmounted
        assert (there / "private").stat().st_mode & 0o7777 == 0o660
        await world.tear_down(pods[0])


@pytest.mark.parametrize("annotated", [False, True])
async def test_options_of_a_local_volume_are_those_of_its_mount(
    place: Path, driver: DriverProcess, annotated: bool
) -> None:
    claims, there = Claims(), place / "there"
    there.mkdir()
    options = {"metadata": {"annotations": {"volume.beta.kubernetes.io/mount-options": "noexec,nodev"}}}
    given = options if annotated else {"mountOptions": ["noexec", "nodev"]}
    claims.claim("dir", {"local": {"path": str(there)}}, **given)
    pod = pod_of("p", "dir")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        flags = os.statvfs(world.path(pod, "dir")).f_flag
        assert flags & os.ST_NOEXEC
        assert flags & os.ST_NODEV
        await world.tear_down(pod)


async def test_a_local_volume_whose_options_are_refused_leaves_nothing(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(source: str, target: str, fs_type: str = "", flags: int = 0, options: str = "") -> None:
        if flags & MS_REMOUNT:
            raise OSError(errno.EPERM, "Operation not permitted")
        mount(source, target, fs_type, flags, options)

    monkeypatch.setattr(local, "mount", refusing)
    claims, there = Claims(), place / "there"
    there.mkdir()
    claims.claim("dir", {"local": {"path": str(there)}}, mountOptions=["noexec"])
    pod = pod_of("p", "dir")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.set_up(pod, patience=1)).unmounted == ("dir",)
        assert "operation not permitted" in world.reasons("FailedMount")[0]
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_options_are_refused_where_nothing_is_mounted(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.claim("path", {"hostPath": {"path": str(place)}}, mountOptions=["noexec"])
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod_of("p", "path"))).unmounted == ("path",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.MountOptionSupport check failed for volume "pv-path" : mount options are not '
            "supported for this volume type"
        )


@pytest.mark.parametrize(
    ("made", "wanted", "shown"), [(["mkfs.ext4", "-q"], "xfs", "xfs"), (["mkswap"], None, "ext4")]
)
async def test_a_disk_with_another_filesystem_is_told_of_its_volume(
    place: Path, driver: DriverProcess, disk: str, made: list[str], wanted: str | None, shown: str
) -> None:
    await run_tool([*made, disk])
    claims = Claims()
    claims.claim("disk", {"local": {"path": disk, "fsType": wanted}})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod_of("p", "disk"))).unmounted == ("disk",)
        await world.until(lambda: world.object_events)
        kind, name, reason, text = world.object_events[0]
        assert (kind, name, reason) == ("PersistentVolume", "pv-disk", "FailedMountOnFilesystemMismatch")
        assert text.startswith('MountVolume failed for volume "pv-disk" local: failed to mount device ')
        (told, *_) = world.reasons("FailedMount")
        assert f"local: failed to mount device {disk} at " in told
        assert f" (fstype: {shown}), error mount failed" in told
        target = world.root / "plugins/kubernetes.io/local-volume/mounts/pv-disk"
        await world.until(lambda: not target.exists())


class Tools:
    """Stand where the system's tools do; what they are asked, and what they say by their names."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = {"blkid": (2, ""), "mkfs.ext4": (0, ""), "fsck": (0, ""), "mount": (0, ""), **answers}
        self.asked: list[list[str]] = []

    async def __call__(self, command: Sequence[str]) -> tuple[int, str]:
        self.asked.append(list(command))
        if command[0] not in self.answers:
            raise OperationError(f'exec: "{command[0]}": executable file not found in $PATH')
        return self.answers[command[0]]


@pytest.mark.parametrize(
    ("tools", "fs_type", "text"),
    [
        (Tools(blkid=(4, "?")), "ext4", "failed to get disk format of disk /dev/d: exit status 4"),
        (
            Tools(blkid=(0, "TYPE=a=b")),
            "ext4",
            "failed to get disk format of disk /dev/d: blkid returns invalid output: TYPE=a=b",
        ),
        (
            Tools(**{"mkfs.ext4": (1, "no room")}),
            "",
            'format of disk "/dev/d" failed: type:("ext4") target:("/t") options:("noatime,defaults") '
            "errcode:(exit status 1) output:(no room) ",
        ),
        (
            Tools(),
            "zfs",
            'format of disk "/dev/d" failed: type:("zfs") target:("/t") options:("noatime,defaults") '
            'errcode:(exec: "mkfs.zfs": executable file not found in $PATH) output:() ',
        ),
        (
            Tools(blkid=(0, "TYPE=ext4"), fsck=(4, "torn")),
            "",
            "'fsck' found errors on device /dev/d but could not correct them: torn",
        ),
        (
            Tools(mount=(32, "bad")),
            "",
            "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t ext4 -o "
            "noatime,defaults /dev/d /t\nOutput: bad\n",
        ),
    ],
)
async def test_what_is_told_of_a_disk_that_cannot_be_mounted(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, fs_type: str, text: str
) -> None:
    monkeypatch.setattr(format, "run_tool", tools)
    with pytest.raises(OperationError) as error:
        await format.format_and_mount("/dev/d", "/t", fs_type, ["noatime"])
    assert str(error.value) == text
    assert not isinstance(error.value, FilesystemMismatch)


async def test_a_disk_with_the_wanted_filesystem_that_cannot_be_mounted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(format, "run_tool", Tools(blkid=(0, "TYPE=ext4"), mount=(32, "bad")))
    with pytest.raises(OperationError, match="mount failed: exit status 32") as error:
        await format.format_and_mount("/dev/d", "/t", "", [])
    assert not isinstance(error.value, FilesystemMismatch)


async def test_an_empty_disk_is_not_formatted_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Tools()
    monkeypatch.setattr(format, "run_tool", tools)
    with pytest.raises(OperationError) as error:
        await format.format_and_mount("/dev/d", "/t", "", ["ro"])
    assert str(error.value) == (
        "cannot mount unformatted disk /dev/d as we are manipulating it in read-only mode"
    )
    assert [command[0] for command in tools.asked] == ["blkid"]


async def test_a_disk_with_partitions_is_not_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Tools(blkid=(0, "DEVNAME=/dev/d\nTYPE=ext4\nPTTYPE=dos"), mount=(32, "bad"))
    monkeypatch.setattr(format, "run_tool", tools)
    with pytest.raises(FilesystemMismatch):
        await format.format_and_mount("/dev/d", "/t", "", ["ro"])
    assert [command[0] for command in tools.asked] == ["blkid", "mount"]
    assert tools.asked[-1] == ["mount", "-t", "ext4", "-o", "ro,defaults", "/dev/d", "/t"]


async def test_what_somebody_else_has_mounted_is_not_unmounted_from_the_node(
    place: Path, driver: DriverProcess
) -> None:
    claims, other = Claims(), place / "other"
    claims.driver()
    claims.claim("c")
    driver.set(fs="tmpfs")
    other.mkdir()
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        mount(str(world.path(pod, "c")), str(other), flags=MS_BIND)
        await world.tear_down(pod)
        await trio.sleep(0.3)
        assert "NodeUnstageVolume" not in driver.methods("begin")
        unmount(str(other))
        await world.until(lambda: "NodeUnstageVolume" in driver.methods())
