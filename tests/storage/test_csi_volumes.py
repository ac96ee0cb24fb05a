"""Claims of a CSI driver from the first mount to the last trace, with a real driver and real mounts."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import DRIVER, Claims, World, csi_unique, pod_of, read_json, running_world
from trio_kubelet.api import v1
from trio_kubelet.common import mountinfo
from trio_kubelet.common.mountinfo import Mount
from trio_kubelet.storage.csi import messages, mounts
from trio_kubelet.storage.csi.context import gives_to_group, lifecycle_problem
from trio_kubelet.storage.names import attachment_name
from trio_kubelet.storage.specs import CSI, Spec


async def test_a_claim_is_staged_and_published_and_leaves_nothing(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("data")
    pod = pod_of("p", "data")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        path = world.path(pod, "data")
        assert path == world.root / "pods/uid-p/volumes/kubernetes.io~csi/pv-data/mount"
        (path / "hello").write_text("there")
        assert driver.methods() == ["NodeStageVolume", "NodePublishVolume"]
        assert read_json(path.parent / "vol_data.json") == {
            "attachmentID": attachment_name("data", DRIVER, "here"),
            "driverName": DRIVER,
            "nodeName": "here",
            "specVolID": "pv-data",
            "volumeHandle": "data",
            "volumeLifecycleMode": "Persistent",
        }
        (staged,) = (world.root / "plugins/kubernetes.io/csi" / DRIVER).iterdir()
        assert read_json(staged / "vol_data.json") == {"driverName": DRIVER, "volumeHandle": "data"}
        assert (staged / "globalmount/hello").read_text() == "there"

        await world.tear_down(pod)
        assert not path.exists()
        await world.until(lambda: "NodeUnstageVolume" in driver.methods())
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []
        assert driver.methods()[2:] == ["NodeUnpublishVolume", "NodeUnstageVolume"]

        again = pod_of("q", "data")
        assert not (await world.set_up(again)).unmounted
        assert (world.path(again, "data") / "hello").read_text() == "there"
        await world.tear_down(again)


@pytest.mark.parametrize("options", ["rw,seclabel", "rw"])
async def test_files_of_a_filesystem_with_labels_are_labelled_for_the_pod(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """Not of one that is read-only, and none where there are no labels; it need not be mounted there."""

    def mount_holding(path: str) -> Mount | None:
        found = mountinfo.mount_holding(path)
        return msgspec.structs.replace(found, options=options) if found is not None else None

    claims = Claims()
    claims.driver()
    claims.claim("data")
    pods = [pod_of("p", "data"), pod_of("q", "data")]
    source = v1.PersistentVolumeClaimVolumeSource(claim_name="data", read_only=True)
    pods[1].spec.volumes = [v1.Volume(name="data", persistent_volume_claim=source)]
    async with running_world(place, claims=claims, driver=driver) as world:
        for selinux in (True, False, True):
            monkeypatch.setattr(mounts, "selinux_enabled", lambda selinux=selinux: selinux)
            monkeypatch.setattr(mounts, "mount_holding", mount_holding)
            for pod in pods:
                assert not (await world.set_up(pod)).unmounted
            shown = [world.room.volumes.mounts(pod.metadata.uid)["data"].relabel for pod in pods]
            assert shown == [selinux and "seclabel" in options, False]
            for pod in pods:
                await world.tear_down(pod)
            await world.until(lambda: not world.left())
        driver.set(lie={"volume": "data"})
        assert not (await world.set_up(pods[0])).unmounted
        assert world.room.volumes.mounts("uid-p")["data"].relabel == ("seclabel" in options)
        await world.tear_down(pods[0])


async def test_a_volume_is_taken_back_whose_labels_could_not_be_looked_for(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then it is there."""

    def mount_holding(path: str) -> Mount | None:
        raise OSError(errno.EMFILE, "Too many open files")

    claims = Claims()
    claims.driver()
    claims.claim("data")
    pod = pod_of("p", "data")
    async with running_world(place, claims=claims, driver=driver) as world:
        monkeypatch.setattr(mounts, "selinux_enabled", lambda: True)
        monkeypatch.setattr(mounts, "mount_holding", mount_holding)
        assert (await world.set_up(pod, patience=1)).unmounted == ("data",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.SetUp failed for volume "pv-data" : error checking for SELinux support: '
            "too many open files"
        )
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []
        assert driver.methods()[-2:] == ["NodeUnpublishVolume", "NodeUnstageVolume"]


def done(world: World, operation: str) -> float | None:
    plugin = {"volume_plugin": f"kubernetes.io/csi:{DRIVER}", "migrated": "false"}
    labels = {**plugin, "operation_name": operation, "status": "success"}
    return world.metrics.get_sample_value("storage_operation_duration_seconds_count", labels)


async def test_two_pods_share_a_claim_that_is_staged_once(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("shared", modes=("ReadWriteMany",))
    first, second = pod_of("a", "shared"), pod_of("b", "shared")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(first)).unmounted
        assert not (await world.set_up(second)).unmounted
        (world.path(first, "shared") / "f").write_text("seen")
        assert (world.path(second, "shared") / "f").read_text() == "seen"
        await world.tear_down(first)
        assert (world.path(second, "shared") / "f").read_text() == "seen"
        assert driver.methods().count("NodeStageVolume") == 1
        assert "NodeUnstageVolume" not in driver.methods()
        assert [done(world, kind) for kind in ("verify_controller_attached_volume", "volume_mount")] == [1, 2]
        await world.tear_down(second)
        await world.until(lambda: not world.left())
        assert driver.methods().count("NodeUnstageVolume") == 1


@pytest.mark.parametrize("mode", ["Filesystem", "Block"])
async def test_a_pod_has_one_claim_by_two_names(place: Path, driver: DriverProcess, mode: str) -> None:
    claims, names = Claims(), ("a", "b")
    claims.driver()
    claims.claim("c", modes=("ReadWriteOncePod",), mode=mode)
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": "c"}} for each in names]
    block = mode == "Block"
    pod = pod_of("p", *(() if block else names), devices=names if block else (), volumes=volumes)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted, world.events
        places = {(world.device if block else world.path)(pod, each) for each in names}
        assert len(places) == 1
        assert driver.methods() == ["NodeStageVolume", "NodePublishVolume"]
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_a_volume_that_must_be_attached_waits_for_the_node_to_say_so(
    place: Path, driver: DriverProcess
) -> None:
    claims = Claims()
    claims.driver(attachRequired=True)
    claims.claim("disk")
    pod = pod_of("p", "disk")
    async with running_world(place, claims=claims, driver=driver) as world:
        short = await world.set_up(pod, patience=1)
        assert (short.unmounted, short.unattached) == (("disk",), ("disk",))
        assert world.room.volumes.in_use() == [csi_unique("disk")]
        assert driver.methods() == []
        world.node_says("disk")
        await world.until(lambda: world.reasons("FailedMount"))
        name = attachment_name("disk", DRIVER, "here")
        assert world.reasons("FailedMount")[0] == (
            f'MountVolume.WaitForAttach failed for volume "pv-disk" : volume disk has GET error for volume '
            f'attachment {name}: volumeattachments.storage.k8s.io "{name}" not found'
        )
        claims.attach("disk", attachmentMetadata={"path": "/dev/x"})
        assert not (await world.set_up(pod)).unmounted
        staged = next(call for call in driver.calls() if call["method"] == "NodeStageVolume")
        assert staged["publish_context"] == {"path": "/dev/x"}
        await world.tear_down(pod)
        await world.until(lambda: not world.room.volumes.in_use())
        assert driver.methods()[-1] == "NodeUnstageVolume"


async def test_a_volume_that_is_wanted_again_waits_until_it_is_called_in_use_anew(
    place: Path, driver: DriverProcess
) -> None:
    """A status without it is on its way: with that the controller may detach it."""
    claims = Claims()
    claims.driver(attachRequired=True)
    claims.claim("c")
    claims.attach("c")
    first, second = pod_of("p", "c"), pod_of("q", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        volumes = world.room.volumes
        written: list[None] = []
        world.node_says("c")
        assert not (await world.set_up(first)).unmounted
        await world.tear_down(first)
        await world.until(lambda: not volumes.in_use())
        volumes.in_use_changed.listen(lambda: written.append(None))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.set_up, second)
            await world.until(lambda: written)
            assert volumes.in_use() == []
            volumes.node_changed()
            await trio.sleep(0.3)
            assert mounted_below(world.root) == []
            written.clear()
            world.node_says()
            assert written
            assert volumes.in_use() == [csi_unique("c")]
            await trio.sleep(0.1)
            assert mounted_below(world.root) == []
            world.node_says("c")
        assert mounted_below(world.root / "pods") == [str(world.path(second, "c"))]
        await world.tear_down(second)


async def test_a_block_volume_is_a_device_of_its_pod(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("raw", mode="Block")
    pod = pod_of("p", devices=("raw",))
    async with running_world(place, claims=claims, driver=driver) as world:
        short = await world.set_up(pod)
        assert not short.unmounted, world.events
        device = world.device(pod, "raw")
        assert device == world.root / "pods/uid-p/volumeDevices/kubernetes.io~csi/pv-raw"
        assert device.resolve().is_block_device()
        block = world.root / "plugins/kubernetes.io/csi/volumeDevices"
        assert (block / "pv-raw/dev/uid-p").is_block_device()
        assert read_json(block / "pv-raw/data/vol_data.json")["specVolID"] == "pv-raw"
        assert (block / "publish/pv-raw/uid-p").is_block_device()
        assert len(world.reasons("SuccessfulMountVolume")) == 2
        with device.open("r+b") as file:
            file.write(b"x" * 512)
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        await world.until(lambda: "NodeUnstageVolume" in driver.methods())
        assert mounted_below(world.root) == []
        again = pod_of("q", devices=("raw",))
        assert not (await world.set_up(again)).unmounted
        with world.device(again, "raw").open("rb") as file:
            assert file.read(512) == b"x" * 512
        await world.tear_down(again)


@pytest.mark.parametrize("device", [False, True])
async def test_a_driver_that_stages_nothing_is_not_asked_to(
    place: Path, driver: DriverProcess, device: bool
) -> None:
    """As most drivers of network filesystems."""
    driver.set(capabilities=[])
    claims = Claims()
    claims.driver()
    claims.claim("c", mode="Block" if device else "Filesystem")
    pod = pod_of("p", devices=("c",)) if device else pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted, world.events
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        await world.until(lambda: mounted_below(world.root) == [])
        methods = [method for method in driver.methods() if method != "NodeGetCapabilities"]
        assert methods[-2:] == ["NodePublishVolume", "NodeUnpublishVolume"]
        assert not {"NodeStageVolume", "NodeUnstageVolume"} & set(methods)


@pytest.mark.parametrize("settings", [{"capabilities": []}, {}], ids=["no stages", "stages"])
async def test_a_pod_describes_its_volume_itself(
    place: Path, driver: DriverProcess, settings: dict[str, Any]
) -> None:
    """Such a volume is not staged, whatever its driver does with others."""
    claims = Claims()
    claims.driver(podInfoOnMount=True)
    pod = pod_of("p")
    source = {"name": "own", "csi": {"driver": DRIVER, "volumeAttributes": {"colour": "red"}}}
    pod = pod_of(
        "p",
        volumes=[source],
        containers=[{"name": "c", "volumeMounts": [{"name": "own", "mountPath": "/o"}]}],
    )
    driver.set(**settings)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        (published,) = [call for call in driver.calls() if call["method"] == "NodePublishVolume"]
        assert published["volume"].startswith("csi-")
        assert published["volume_context"] == {
            "colour": "red",
            "csi.storage.k8s.io/ephemeral": "true",
            "csi.storage.k8s.io/pod.name": "p",
            "csi.storage.k8s.io/pod.namespace": "default",
            "csi.storage.k8s.io/pod.uid": "uid-p",
            "csi.storage.k8s.io/serviceAccount.name": "default",
        }
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert driver.methods() == ["NodePublishVolume", "NodeUnpublishVolume"]


async def test_a_pod_is_refused_when_the_node_has_too_many_volumes(
    place: Path, driver: DriverProcess
) -> None:
    """KEP-4876: the attacher says so, and the driver is asked anew how many it takes."""
    claims = Claims()
    claims.driver(attachRequired=True, nodeAllocatableUpdatePeriodSeconds=60)
    claims.claim("disk")
    claims.attach("disk", attached=False, attachError={"message": "full", "errorCode": 8})
    driver.set(limit=3)
    async with running_world(place, claims=claims, driver=driver) as world:
        driver.set(limit=1)
        short = await world.set_up(pod_of("p", "disk"), patience=1)
        assert short.too_many
        await world.until(lambda: len(world.told) > 1)
        assert [info.limit for info in world.told] == [3, 1]
        short = await world.set_up(pod_of("q", "disk", "missing"), patience=1)
        assert short.too_many
        assert list(short.unprocessed) == ["missing"]
        claims.attach("disk", attached=False, attachError={"message": "other", "errorCode": 13})
        assert not (await world.set_up(pod_of("p", "disk"), patience=0.2)).too_many


def spec_of(
    *access_modes: str, ephemeral: bool = False, read_only: bool = False, block: bool = False
) -> Spec:
    return Spec(
        unique_name="n",
        name="pv",
        plugin=CSI,
        source=v1.CSIPersistentVolumeSource(driver=DRIVER, volume_handle="h", fs_type="xfs"),
        access_modes=access_modes,
        ephemeral=ephemeral,
        read_only=read_only,
        block=block,
    )


@pytest.mark.parametrize(
    ("spec", "fs_type", "policy", "given"),
    [
        (spec_of("ReadWriteOnce"), "xfs", "ReadWriteOnceWithFSType", True),
        (spec_of("ReadWriteMany", "ReadWriteOncePod"), "xfs", "ReadWriteOnceWithFSType", True),
        (spec_of("ReadWriteOnce"), "", "ReadWriteOnceWithFSType", False),
        (spec_of("ReadWriteMany"), "xfs", "ReadWriteOnceWithFSType", False),
        (spec_of(), "xfs", "ReadWriteOnceWithFSType", False),
        (spec_of(ephemeral=True), "xfs", "ReadWriteOnceWithFSType", True),
        (spec_of(ephemeral=True), "", "ReadWriteOnceWithFSType", False),
        (spec_of("ReadWriteMany"), "", "File", True),
        (spec_of("ReadWriteOnce", read_only=True), "xfs", "File", False),
        (spec_of("ReadWriteOnce"), "xfs", "None", False),
    ],
)
def test_whether_a_volume_is_given_to_the_group_of_its_pod(
    spec: Spec, fs_type: str, policy: str, given: bool
) -> None:
    assert gives_to_group(spec, fs_type, 1000, policy) is given
    assert not gives_to_group(spec, fs_type, None, policy)


@pytest.mark.parametrize(
    ("modes", "told", "told_to_multi_writers"),
    [
        (["ReadWriteOnce"], "SINGLE_NODE_WRITER", "SINGLE_NODE_MULTI_WRITER"),
        (["ReadWriteOncePod"], "SINGLE_NODE_WRITER", "SINGLE_NODE_SINGLE_WRITER"),
        (["ReadOnlyMany", "ReadWriteOnce"], "MULTI_NODE_READER_ONLY", "MULTI_NODE_READER_ONLY"),
        (["ReadWriteMany"], "MULTI_NODE_MULTI_WRITER", "MULTI_NODE_MULTI_WRITER"),
        ([], "SINGLE_NODE_WRITER", "SINGLE_NODE_MULTI_WRITER"),
        (["Odd"], "UNKNOWN", "UNKNOWN"),
    ],
)
def test_how_a_volume_is_to_be_used(modes: list[str], told: str, told_to_multi_writers: str) -> None:
    mode = messages.AccessMode.Mode
    for abilities, expected in ((set[int](), told), ({messages.MULTI_WRITER}, told_to_multi_writers)):
        wanted = messages.capability(spec_of(*modes), frozenset(abilities), ("noatime",), 1000)
        assert mode.Name(wanted.access_mode.mode) == expected
        assert wanted.mount.fs_type == "xfs"
        assert wanted.mount.mount_flags == ["noatime"]
        assert wanted.mount.volume_mount_group == "1000"
        device = messages.capability(spec_of(*modes, block=True), frozenset(abilities))
        assert mode.Name(device.access_mode.mode) == expected
        assert device.WhichOneof("access_type") == "block"
    assert messages.capability(spec_of(), frozenset()).mount.volume_mount_group == ""


@pytest.mark.parametrize(
    ("modes", "ephemeral", "problem"),
    [
        (None, False, ""),
        (None, True, f'volume mode "Ephemeral" not supported by driver {DRIVER} (no CSIDriver object)'),
        (["Persistent", "Ephemeral"], True, ""),
        (
            ["Persistent"],
            True,
            f'volume mode "Ephemeral" not supported by driver {DRIVER} (only supports ["Persistent"])',
        ),
        (
            ["Ephemeral"],
            False,
            f'volume mode "Persistent" not supported by driver {DRIVER} (only supports ["Ephemeral"])',
        ),
    ],
)
def test_which_volumes_a_driver_takes(modes: list[str] | None, ephemeral: bool, problem: str) -> None:
    driver = None if modes is None else v1.CSIDriver(spec=v1.CSIDriverSpec(volume_lifecycle_modes=modes))
    assert lifecycle_problem(DRIVER, driver, ephemeral) == problem


def test_the_secret_of_a_pods_own_volume_is_of_its_namespace() -> None:
    source = v1.CSIVolumeSource(driver=DRIVER, node_publish_secret_ref=v1.LocalObjectReference(name="s"))
    spec = msgspec.structs.replace(spec_of(ephemeral=True), source=source)
    pod = pod_of("p")
    assert messages.publish_secret(spec, pod) == v1.SecretReference(
        name="s", namespace=pod.metadata.namespace
    )
