"""Volumes that grow while they are used, and volumes that are given to a group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from tests.storage.drivers import DriverProcess
from tests.storage.world import DRIVER, Claims, World, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.podinfo.doors import ObjectError
from trio_kubelet.storage.claims import persistent_spec
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.csi.expansion import CSIExpansion
from trio_kubelet.storage.csi.registration import CSIDrivers
from trio_kubelet.storage.doors import StorageObjectsDoor
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.ownership import long_message


def room_in(path: Path) -> int:
    """Bytes of the filesystem at a path."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def one_claim(driver: DriverProcess) -> Claims:
    """Claim c, of a volume that has a size of its own."""
    claims = Claims()
    claims.driver()
    claims.claim("c")
    driver.set(fs="tmpfs")
    return claims


def claim_status(world: World, name: str) -> Any:
    return world.claims.store.get("persistentvolumeclaims", "default", name)["status"]


async def grown(world: World, pod: v1.Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sync of the pod reads its claims again."""
    monkeypatch.setattr("trio_kubelet.storage.manager.FRESH", 0.0)
    await world.set_up(pod)


async def test_a_mounted_volume_grows_with_its_claim(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = one_claim(driver)
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        before = room_in(world.path(pod, "c"))
        claims.grow("c", "48Mi")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: claim_status(world, "c")["capacity"] == {"storage": "48Mi"})
        assert room_in(world.path(pod, "c")) > 2 * before
        status = claim_status(world, "c")
        assert not status.get("allocatedResourceStatuses")
        assert not status.get("conditions")
        (told,) = world.reasons("FileSystemResizeSuccessful")
        assert world.object_events == [("PersistentVolumeClaim", "c", "FileSystemResizeSuccessful", told)]
        assert driver.methods().count("NodeExpandVolume") == 1
        await world.tear_down(pod)


async def test_what_claims_said_is_no_longer_good_than_half_the_way_to_the_next_sync(
    place: Path, driver: DriverProcess
) -> None:
    claims = one_claim(driver)
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver, sync_frequency=1.0) as world:
        assert not (await world.set_up(pod)).unmounted
        claims.grow("c", "48Mi")
        await trio.sleep(0.6)
        await world.set_up(pod)
        await world.until(lambda: claim_status(world, "c")["capacity"] == {"storage": "48Mi"})
        await world.tear_down(pod)


async def test_without_states_of_a_resize_a_volume_grows_here_though_its_claim_has_the_size_by_another_node(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a controller of before KEP-1790."""
    claims = one_claim(driver)
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        claims.grow("c", "48Mi")
        claims.store.set_status(
            "persistentvolumeclaims",
            "default",
            "c",
            capacity={"storage": "48Mi"},
            allocatedResources=None,
            allocatedResourceStatuses=None,
        )
        before = claim_status(world, "c")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: world.reasons("FileSystemResizeSuccessful"))
        await grown(world, pod, monkeypatch)
        assert driver.methods().count("NodeExpandVolume") == 1
        assert claim_status(world, "c") == before
        await world.tear_down(pod)


async def test_a_volume_that_grew_while_nobody_had_it_is_expanded_before_its_pod_has_it(
    place: Path, driver: DriverProcess
) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c")
    claims.grow("c", "40Mi")
    driver.set(fs="tmpfs")
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        assert driver.methods() == ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"]
        assert claim_status(world, "c")["capacity"] == {"storage": "40Mi"}
        await world.tear_down(pod)


@pytest.mark.parametrize(("code", "state"), [(3, "NodeResizeInfeasible"), (13, "NodeResizeInProgress")])
async def test_an_expansion_that_fails_is_written_down(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch, code: int, state: str
) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c")
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        driver.fail(NodeExpandVolume={"code": code, "text": "too big"})
        claims.grow("c", "40Mi")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: world.reasons("VolumeResizeFailed"))
        assert world.reasons("VolumeResizeFailed")[0].startswith(
            'NodeExpandVolume.NodeExpandVolume failed for volume "pv-c" : Expander.NodeExpand failed to '
            "expand the volume"
        )
        status = claim_status(world, "c")
        assert status["allocatedResourceStatuses"] == {"storage": state}
        (told,) = [c for c in status["conditions"] if c["type"] == "NodeResizeError"]
        assert "too big" in told["message"]
        driver.fail()
        await world.tear_down(pod)


async def test_an_expansion_of_which_nothing_is_known_is_tried_again_and_not_called_failed(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, pod = one_claim(driver), pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        driver.fail(NodeExpandVolume={"code": 4, "times": 1})
        claims.grow("c", "40Mi")
        seen = list[str]()
        real = world.objects.patch_claim_status

        async def watched(claim: v1.PersistentVolumeClaim, patch: Any) -> v1.PersistentVolumeClaim:
            seen.extend(each.get("message", "") for each in patch["status"].get("conditions", ()))
            return await real(claim, patch)

        monkeypatch.setattr(world.objects, "patch_claim_status", watched)
        await grown(world, pod, monkeypatch)
        await world.until(lambda: claim_status(world, "c")["capacity"] == {"storage": "40Mi"})
        assert len(world.reasons("VolumeResizeFailed")) == 1
        assert not any(seen), "no more than that what was told of it is over"
        await world.tear_down(pod)


async def test_a_driver_that_expands_nothing_is_told_in_the_claims_status(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, pod = one_claim(driver), pod_of("p", "c")
    driver.set(capabilities=["STAGE_UNSTAGE_VOLUME"])
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        claims.grow("c", "40Mi")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: world.reasons("VolumeResizeFailed"))
        status = claim_status(world, "c")
        (told,) = [each for each in status["conditions"] if each["type"] == "NodeResizeError"]
        assert "NodeExpand is not supported by the CSI driver" in told["message"]
        assert status["capacity"] != {"storage": "40Mi"}
        await world.tear_down(pod)


async def test_a_secret_that_an_expansion_lacks_is_told_in_the_claims_status(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims()
    claims.driver()
    source = {"driver": DRIVER, "volumeHandle": "c", "fsType": "ext4"}
    secret = {"namespace": "default", "name": "gone"}
    claims.claim("c", {"csi": {**source, "nodeExpandSecretRef": secret}})
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        claims.grow("c", "40Mi")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: world.reasons("VolumeResizeFailed"))
        text = "expander.NodeExpand failed to get NodeExpandSecretRef default/gone: kubernetes.io/csi: failed"
        assert text in world.reasons("VolumeResizeFailed")[0]
        status = claim_status(world, "c")
        (told,) = [c for c in status["conditions"] if c["type"] == "NodeResizeError"]
        assert told["message"].startswith(f"failed to expand pvc with {text}")
        await world.tear_down(pod)


async def test_a_claim_that_does_not_take_what_came_of_an_expansion_is_told(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = one_claim(driver)
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        real = world.objects.patch_claim_status

        async def refused(claim: v1.PersistentVolumeClaim, patch: dict[str, Any]) -> v1.PersistentVolumeClaim:
            if "capacity" in patch["status"]:
                raise ObjectError("modified meanwhile")
            return await real(claim, patch)

        monkeypatch.setattr(world.objects, "patch_claim_status", refused)
        claims.grow("c", "40Mi")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: world.reasons("VolumeResizeFailed"))
        assert world.reasons("VolumeResizeFailed")[0] == (
            'NodeExpandVolume.NodeExpandVolume failed for volume "pv-c" : mountVolume.NodeExpandVolume '
            'update pvc status failed: patchPVCStatus failed to patch PVC "c": modified meanwhile'
        )
        await world.tear_down(pod)


async def test_an_expansion_whose_driver_has_gone_says_so_in_the_kubelets_words(tmp_path: Path) -> None:
    claims = Claims()
    claims.claim("c")
    volume = msgspec.convert(claims.store.get("persistentvolumes", "", "pv-c"), v1.PersistentVolume)
    context = CSIContext("here", cast(StorageObjectsDoor, None))
    expansion = CSIExpansion(root_dir=str(tmp_path), drivers=CSIDrivers(), context=context)
    with pytest.raises(OperationError) as caught:
        await expansion.expand(persistent_spec("u", volume, read_only=False), "u", 1 << 20)
    assert str(caught.value) == f"driver name {DRIVER} not found in the list of registered CSI drivers"
    assert not caught.value.finished


async def test_a_driver_that_cannot_expand_what_is_used_is_not_asked_again(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c")
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        driver.fail(NodeExpandVolume={"code": 9})
        claims.grow("c", "40Mi")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: "NodeExpandVolume" in driver.methods("error"))
        for _ in range(2):
            await trio.sleep(1)
            assert driver.methods("error").count("NodeExpandVolume") == 1
            await grown(world, pod, monkeypatch)
        await world.tear_down(pod)


@pytest.mark.parametrize("state", ["NodeResizeInfeasible", "ControllerResizeInProgress", None])
async def test_a_claim_that_is_not_this_nodes_to_expand_is_not_asked_about_before_the_next_sync(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """It was read again and again, thousands of times a second."""
    claims = one_claim(driver)
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        claims.grow("c", "48Mi")
        statuses = {"storage": state}
        claims.store.set_status("persistentvolumeclaims", "default", "c", allocatedResourceStatuses=statuses)
        read = 0
        real = world.objects.claim

        async def counted(namespace: str, name: str) -> v1.PersistentVolumeClaim | None:
            nonlocal read
            read += 1
            return await real(namespace, name)

        monkeypatch.setattr(world.objects, "claim", counted)
        for syncs in (1, 2):
            await grown(world, pod, monkeypatch)
            await world.until(lambda syncs=syncs: read >= 2 * syncs)
            await trio.sleep(0.5)
            assert read == 2 * syncs
        assert "NodeExpandVolume" not in driver.methods("begin")
        claims.grow("c", "48Mi")
        await grown(world, pod, monkeypatch)
        await world.until(lambda: claim_status(world, "c")["capacity"] == {"storage": "48Mi"})
        await world.tear_down(pod)


@pytest.mark.parametrize("at_once", [False, True], ids=["once it is gone", "before it is gone"])
async def test_a_driver_that_cannot_expand_what_was_used_is_asked_again_for_the_next_pod(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    claims = one_claim(driver)
    first, second = pod_of("p", "c"), pod_of("q", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(first)).unmounted
        driver.fail(NodeExpandVolume={"code": 9})
        claims.grow("c", "40Mi")
        await grown(world, first, monkeypatch)
        await world.until(lambda: "NodeExpandVolume" in driver.methods("error"))
        await world.tear_down(first)
        if not at_once:
            await world.until(lambda: not world.left())
        driver.fail()
        statuses = {"storage": "ControllerResizeInProgress"}
        claims.store.set_status("persistentvolumeclaims", "default", "c", allocatedResourceStatuses=statuses)
        assert not (await world.set_up(second)).unmounted
        claims.grow("c", "40Mi")
        await grown(world, second, monkeypatch)
        await world.until(lambda: claim_status(world, "c")["capacity"] == {"storage": "40Mi"})
        await world.tear_down(second)


async def test_a_volume_is_given_to_the_pods_group(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver(fsGroupPolicy="ReadWriteOnceWithFSType")
    claims.claim("c", metadata={"annotations": {"pv.beta.kubernetes.io/gid": "777"}})
    context = {"fsGroup": 1234, "supplementalGroups": [5]}
    pod = pod_of("p", "c", securityContext=context)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        found = world.path(pod, "c").stat()
        assert (found.st_gid, found.st_mode & 0o7777) == (1234, 0o2775)
        assert world.room.volumes.extra_groups(pod) == (777,)
        given = {"operation_name": "volume_apply_access_control", "status": "success", "migrated": "false"}
        given["volume_plugin"] = f"kubernetes.io/csi:{DRIVER}"
        assert world.metrics.get_sample_value("storage_operation_duration_seconds_count", given) == 1
        await world.tear_down(pod)


@pytest.mark.parametrize("gid", ["-1", "many", "", str(1 << 63), "9" * 5000])
async def test_what_names_no_group_is_passed_over(place: Path, driver: DriverProcess, gid: str) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c", metadata={"annotations": {"pv.beta.kubernetes.io/gid": gid}})
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        assert world.room.volumes.extra_groups(pod) == ()
        await world.tear_down(pod)


async def test_a_driver_that_knows_groups_is_told_the_pods(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver(fsGroupPolicy="File")
    claims.claim("c")
    driver.set(capabilities=["STAGE_UNSTAGE_VOLUME", "VOLUME_MOUNT_GROUP"])
    pod = pod_of("p", "c", securityContext={"fsGroup": 1234})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        assert world.path(pod, "c").stat().st_gid == 0
        for call in driver.calls():
            if call["method"] in ("NodeStageVolume", "NodePublishVolume"):
                assert 'volume_mount_group: "1234"' in call["capability"]
        await world.tear_down(pod)


def test_what_takes_long_is_told_from_the_pods_uid_on() -> None:
    assert long_message("/var/lib/kubelet/pods/u-1/volumes/x", "u-1").startswith(
        "Setting volume ownership for u-1/volumes/x is taking longer than expected, consider using OnRoot"
    )
