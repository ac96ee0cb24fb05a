"""Drivers that fail, hang, die or are not there; agents that were killed at the wrong moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry

from tests.hung_filesystem import hung_filesystem, must_end
from tests.shapes import SHAPES
from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import DRIVER, Claims, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.mountinfo import mounts
from trio_kubelet.storage.csi.mounts import CSIMounts
from trio_kubelet.storage.metrics import ReadBackMetrics
from trio_kubelet.storage.names import csi_global_mount, csi_pod_mount
from trio_kubelet.storage.reconstruct import read_back
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import make_dirs
from trio_kubelet.volumes.linux import mount_tmpfs


def claims_of(*names: str) -> Claims:
    claims = Claims()
    claims.driver()
    for name in names:
        claims.claim(name, modes=("ReadWriteMany",))
    return claims


async def test_a_driver_that_fails_is_asked_again_and_its_words_are_told(
    place: Path, driver: DriverProcess
) -> None:
    driver.fail(NodeStageVolume={"code": 13, "text": "no luck", "times": 2})
    async with running_world(place, claims=claims_of("c"), driver=driver) as world:
        pod = pod_of("p", "c")
        assert not (await world.set_up(pod)).unmounted
        text = 'MountVolume.MountDevice failed for volume "pv-c" : rpc error: code = Internal desc = no luck'
        assert world.reasons("FailedMount") == [text, text]
        await world.tear_down(pod)


async def test_what_was_surely_not_staged_is_not_unstaged(place: Path, driver: DriverProcess) -> None:
    driver.fail(NodeStageVolume={"code": 13})
    async with running_world(place, claims=claims_of("c"), driver=driver) as world:
        pod = pod_of("p", "c")
        assert (await world.gives_up(pod)).unmounted == ("c",)
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        await trio.sleep(0.5)
        assert "NodeUnstageVolume" not in driver.methods("begin")


async def test_a_pod_that_goes_after_its_volume_was_staged_leaves_nothing(
    place: Path, driver: DriverProcess
) -> None:
    driver.fail(NodePublishVolume={"code": 13})
    async with running_world(place, claims=claims_of("c"), driver=driver) as world:
        pod = pod_of("p", "c")
        assert (await world.gives_up(pod)).unmounted == ("c",)
        driver.fail()
        await world.tear_down(pod)
        await world.until(lambda: driver.methods()[-1] == "NodeUnstageVolume")
        await world.until(lambda: not world.left())


async def test_what_may_have_been_published_is_unpublished(place: Path, driver: DriverProcess) -> None:
    driver.fail(NodePublishVolume={"code": 4, "when": "after"})
    async with running_world(place, claims=claims_of("c"), driver=driver) as world:
        pod = pod_of("p", "c")
        async with world.failing(pod):
            pass
        assert mounted_below(world.root / "pods") != []
        driver.fail()
        await world.tear_down(pod)
        assert mounted_below(world.root / "pods") == []


async def test_what_may_have_been_published_is_unpublished_though_its_driver_went_meanwhile(
    place: Path, driver: DriverProcess
) -> None:
    driver.fail(NodePublishVolume={"code": 4, "when": "after"})
    async with running_world(place, claims=claims_of("c"), driver=driver) as world:
        pod = pod_of("p", "c")
        async with world.failing(pod):
            await world.deregister()
            await world.until(lambda: "not found in the list" in world.reasons("FailedMount")[-1])
        driver.fail()
        await world.register()
        await world.tear_down(pod)
        assert "NodeUnpublishVolume" in driver.methods()
        assert mounted_below(world.root / "pods") == []


async def test_a_pod_whose_driver_has_never_come_ends(place: Path, driver: DriverProcess) -> None:
    pod = pod_of(
        "p",
        volumes=[{"name": "own", "csi": {"driver": DRIVER}}],
        containers=[{"name": "c", "volumeMounts": [{"name": "own", "mountPath": "/o"}]}],
    )
    async with running_world(place, claims=claims_of(), driver=driver, register=False) as world:
        assert (await world.set_up(pod, patience=0.5)).unmounted == ("own",)
        with trio.fail_after(30):
            await world.tear_down(pod)


async def test_a_call_that_hangs_holds_up_its_own_volume_only(place: Path, driver: DriverProcess) -> None:
    async with running_world(place, claims=claims_of("slow", "fast"), driver=driver) as world:
        slow, fast = pod_of("s", "slow"), pod_of("f", "fast")
        driver.fail(NodeStageVolume={"hang": 600, "volume": "slow"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.set_up, slow)
            await world.until(lambda: any(c["method"] == "NodeStageVolume" for c in driver.calls()))
            assert not (await world.set_up(fast)).unmounted
            driver.fail()
        await world.tear_down(slow)
        await world.tear_down(fast)


async def test_volumes_wait_for_a_driver_that_has_not_registered_and_go_on_the_moment_it_does(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """72500: the pauses of what failed meanwhile are not waited for."""
    monkeypatch.setattr("trio_kubelet.storage.backoff.PAUSES", Pauses(3600.0, 3600.0))
    claims, pod = claims_of("c"), pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.tear_down, pod)
            await trio.sleep(1)
            assert "NodeUnpublishVolume" not in driver.methods("begin")
            await world.register()
        await world.until(lambda: driver.methods()[-1] == "NodeUnstageVolume")
        await world.until(lambda: mounted_below(world.root) == [])


async def test_an_agent_killed_between_unpublish_and_unstage_unstages_afterwards(
    place: Path, driver: DriverProcess
) -> None:
    """85476: a staged volume that no pod has any more is found by its own data file."""
    claims, pod = claims_of("c"), pod_of("p", "c")
    driver.fail(NodeUnstageVolume={"code": 13})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        await world.tear_down(pod)
        await world.until(lambda: "NodeUnstageVolume" in driver.methods("begin"))
    driver.fail()
    async with running_world(place, claims=claims, driver=driver) as world:
        await world.until(lambda: "NodeUnstageVolume" in driver.methods())
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_a_volume_stays_after_a_restart_until_its_pod_has_ended(
    place: Path, driver: DriverProcess
) -> None:
    """113979: while the pod's container still ends, nobody has given up its volume."""
    claims, pod = claims_of("c"), pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        path = world.path(pod, "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        await trio.sleep(0.5)
        assert mounted_below(world.root / "pods") == [str(path)]
        assert "NodeUnpublishVolume" not in driver.methods("begin")
        assert not (await world.set_up(pod)).unmounted
        assert driver.methods("begin").count("NodeStageVolume") <= 2
        await world.tear_down(pod)
        assert mounted_below(world.root / "pods") == []


async def test_uncertain_volumes_are_tracked_until_they_are_known(place: Path, driver: DriverProcess) -> None:
    """110670: after a restart a volume that fails to mount is still taken away with its pod."""
    claims, pod = claims_of("c"), pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
    driver.fail(NodePublishVolume={"code": 13}, NodeStageVolume={"code": 13})
    async with running_world(place, claims=claims, driver=driver) as world:
        async with world.failing(pod):
            pass
        assert mounted_below(world.root / "pods") != []
        driver.fail()
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_a_missing_data_file_is_not_tried_for_ever(place: Path, driver: DriverProcess) -> None:
    """60987, 101378: what is mounted goes with its pod, what is empty at once, and no error comes back."""
    root = place / "root"
    lost = root / "pods/uid-x/volumes/kubernetes.io~csi/pv-x/mount"
    empty = root / "pods/uid-y/volumes/kubernetes.io~csi/pv-y/mount"
    for path in (lost, empty):
        path.mkdir(parents=True)
    mount_tmpfs(str(lost), 1 << 20)
    async with running_world(place, claims=claims_of(), driver=driver) as world:
        assert mounted_below(root) == [str(lost)]
        assert not empty.parent.exists()
        with trio.fail_after(30):
            await world.room.volumes.tear_down("uid-x")
        assert mounted_below(root) == []
        assert not lost.parent.exists()
        counted = ("reconstruct_volume", "force_cleaned_failed_volume")
        assert [world.metrics.get_sample_value(f"{name}_operations_total") for name in counted] == [1, 1]
        assert world.metrics.get_sample_value("reconstruct_volume_operations_errors_total") == 1


def test_volumes_whose_server_is_away_do_not_hold_up_the_start(place: Path) -> None:
    at = place / "root/pods/uid-x/volumes/kubernetes.io~csi/pv-x/mount"
    with hung_filesystem(at) as away:
        metrics = ReadBackMetrics(CollectorRegistry())
        found = must_end(lambda: read_back(str(place / "root"), metrics), away)
    assert found.lost == {"uid-x": [str(at)]}


async def test_a_pod_whose_volume_has_lost_its_data_file_keeps_it(place: Path, driver: DriverProcess) -> None:
    claims, pod = claims_of("c"), pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        path = world.path(pod, "c")
        (path / "file").write_text("kept")
        (path.parent / "vol_data.json").unlink()
    before = [mount for mount in mounts() if mount.path == str(path)]
    async with running_world(place, claims=claims, driver=driver) as world:
        assert [mount for mount in mounts() if mount.path == str(path)] == before
        assert not (await world.set_up(pod)).unmounted
        assert (path / "file").read_text() == "kept"
        assert (path.parent / "vol_data.json").exists()
        assert "NodeUnpublishVolume" not in driver.methods("begin")
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []
        assert world.metrics.get_sample_value("force_cleaned_failed_volume_operations_total") == 0


@pytest.mark.parametrize(
    "content", [b"{nonsense", b'{"driverName": "\xff"}', b"[" * 10_000, b'{"driverName": 7}']
)
async def test_garbage_in_a_data_file_harms_nobody(
    place: Path, driver: DriverProcess, content: bytes
) -> None:
    claims, pod = claims_of("c"), pod_of("p", "c")
    staged = Path(csi_global_mount(str(place / "root"), DRIVER, "other"))
    make_dirs(str(staged))
    (staged.parent / "vol_data.json").write_bytes(content)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        await world.tear_down(pod)


async def test_a_driver_that_dies_during_a_call_is_waited_for(place: Path, driver: DriverProcess) -> None:
    driver.fail(NodeStageVolume={"crash": True, "when": "after", "times": 1})
    async with running_world(place, claims=claims_of("c"), driver=driver) as world:
        pod = pod_of("p", "c")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.set_up, pod)
            await world.until(lambda: not driver.running)
            await world.deregister()
            driver.fail()
            await trio.to_thread.run_sync(driver.start)  # meanwhile it is noticed that the first has gone
            await world.register()
        assert not (await world.set_up(pod)).unmounted
        await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert mounted_below(world.root) == []


async def test_a_volume_for_one_pod_is_not_given_to_another(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("own", modes=("ReadWriteOncePod",))
    first, second = pod_of("a", "own"), pod_of("b", "own")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(first)).unmounted
        assert (await world.gives_up(second)).unmounted == ("own",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.SetUp failed for volume "pv-own" : volume uses the ReadWriteOncePod access mode and '
            "is already in use by another pod"
        )
        await world.tear_down(first)
        assert not (await world.set_up(second)).unmounted
        await world.tear_down(second)


async def test_an_unbound_claim_is_told_at_once(place: Path, driver: DriverProcess) -> None:
    claims = claims_of("c")
    claims.store.set_status("persistentvolumeclaims", "default", "c", phase="Pending")
    async with running_world(place, claims=claims, driver=driver) as world:
        short = await world.set_up(pod_of("p", "c", "none"))
        assert short.unprocessed == {
            "c": "error processing PVC default/c: PVC is not bound",
            "none": "error processing PVC default/none: failed to fetch PVC from API server: "
            'persistentvolumeclaims "none" not found',
        }


async def test_the_end_of_a_pod_says_which_volumes_hold_it_up_and_why(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.storage.manager.PATIENCE", 0.5)
    pod: v1.Pod = pod_of("p", "c")
    async with running_world(place, claims=claims_of("c"), driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        driver.fail(NodeUnpublishVolume={"code": 13})
        with pytest.raises(VolumeError) as error:
            await world.tear_down(pod)
        assert str(error.value) == (
            f"mounted volumes=[kubernetes.io/csi/{DRIVER}^c]: "
            'UnmountVolume.TearDown failed for volume "pv-c" : '
            "kubernetes.io/csi: Unmounter.TearDownAt failed: rpc error: code = Internal desc = told to fail"
        )
        driver.fail()
        await world.tear_down(pod)


async def test_a_disk_whose_name_is_a_path_is_found_after_a_restart(
    place: Path, driver: DriverProcess
) -> None:
    """The name of an Azure disk that a pod names itself is its URI. The kubelet escapes it, and looks for
    volumes in no deeper directory.
    """
    name = "/subscriptions/s/disks/d"
    directory = place / "root/pods/uid-p/volumes/kubernetes.io~csi/~subscriptions~s~disks~d"
    assert csi_pod_mount(str(place / "root"), "uid-p", name) == str(directory / "mount")
    (directory / "mount").mkdir(parents=True)
    mount_tmpfs(str(directory / "mount"), 1 << 20)
    data = {"specVolID": name, "volumeHandle": "h", "driverName": DRIVER}
    (directory / "vol_data.json").write_text(json.dumps(data))
    async with running_world(place, claims=claims_of(), driver=driver) as world:
        await world.room.volumes.tear_down("uid-p")
        assert mounted_below(world.root) == []
        assert "NodeUnpublishVolume" in driver.methods()
        await world.until(lambda: not world.left())


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_an_operation_raises_stays_with_its_volume(
    shape: str, place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = CSIMounts.set_up, [SHAPES[shape](), SHAPES[shape]()]

    async def set_up(self: CSIMounts, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        if spec.name == "pv-bad" and failures:
            raise failures.pop()
        await real(self, spec, pod, keep=keep)

    monkeypatch.setattr(CSIMounts, "set_up", set_up)
    async with running_world(place, claims=claims_of("bad", "good"), driver=driver) as world:
        bad, good = pod_of("p", "bad"), pod_of("q", "good")
        assert not (await world.set_up(bad)).unmounted
        assert not (await world.set_up(good)).unmounted
        assert len(world.reasons("FailedMount")) == 2
        await world.tear_down(bad)
        await world.tear_down(good)


async def test_what_failed_for_a_pod_is_forgotten_with_it(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a volume that never came so far that anything of it had to be undone nobody would tell later."""
    monkeypatch.setattr("trio_kubelet.storage.backoff.PAUSES", Pauses(3600.0, 3600.0))
    claims = Claims()
    claims.driver()
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["here"]}]}
    claims.claim("c", nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod)).unmounted == ("c",)
        assert world.reasons("FailedMount")
        await world.tear_down(pod)
        world.view = ReportedVolumes(labels={"zone": "here"})
        assert not (await world.set_up(pod, patience=10)).unmounted
        await world.tear_down(pod)
