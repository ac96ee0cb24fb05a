"""What drivers are told and asked, and what is told of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import DRIVER, NODE, Claims, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.podinfo.doors import ObjectError
from trio_kubelet.storage.claims import claimed_spec
from trio_kubelet.storage.csi import node_calls
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import attachment_name

TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
WITH_SECRETS = {
    "driver": DRIVER,
    "volumeHandle": "c",
    "nodeStageSecretRef": {"name": "stage", "namespace": "default"},
    "nodePublishSecretRef": {"name": "publish", "namespace": "default"},
}


async def test_secrets_of_both_steps(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c", {"csi": WITH_SECRETS})
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod)).unmounted == ("c",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.MountDevice failed for volume "pv-c" : fetching NodeStageSecretRef default/stage '
            "failed: kubernetes.io/csi: failed to find the secret stage in the namespace default with error: "
            'secrets "stage" not found'
        )
        assert driver.methods("begin") == []
        for name in ("stage", "publish"):
            data = {"key": base64.b64encode(name.encode()).decode()}
            claims.store.create("secrets", "default", {"metadata": {"name": name}, "data": data})
        assert not (await world.set_up(pod)).unmounted
        told = {call["method"]: call.get("secrets") for call in driver.calls()}
        assert told["NodeStageVolume"] == {"key": "stage"}
        assert told["NodePublishVolume"] == {"key": "publish"}
        await world.tear_down(pod)


async def test_secrets_of_a_device(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c", {"csi": WITH_SECRETS}, mode="Block")
    pod = pod_of("p", devices=("c",))
    missing = (
        "kubernetes.io/csi: failed to find the secret {0} in the namespace default with error: "
        'secrets "{0}" not found'
    )
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod, "FailedMapVolume")).unmounted == ("c",)
        assert world.reasons("FailedMapVolume")[0] == (
            'MapVolume.SetUpDevice failed for volume "pv-c" : kubernetes.io/csi: failed to get '
            f"NodeStageSecretRef default/stage: {missing.format('stage')}"
        )
        claims.store.create("secrets", "default", {"metadata": {"name": "stage"}})
        await world.until(lambda: "NodeStageVolume" in driver.methods())
        await world.until(lambda: "MapPodDevice" in world.reasons("FailedMapVolume")[-1])
        assert world.reasons("FailedMapVolume")[-1] == (
            'MapVolume.MapPodDevice failed for volume "pv-c" : kubernetes.io/csi: '
            "blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef default/publish: "
            f"{missing.format('publish')}"
        )
        await world.tear_down(pod)


async def test_with_a_device_a_driver_is_told_of_the_pod_but_gets_no_tokens(
    place: Path, driver: DriverProcess
) -> None:
    claims = Claims()
    claims.driver(podInfoOnMount=True, tokenRequests=[{"audience": "vault"}])
    claims.claim("raw", mode="Block")
    pod = pod_of("p", devices=("raw",))
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted, world.events
        (published,) = [call for call in driver.calls() if call["method"] == "NodePublishVolume"]
        assert published["volume_context"]["csi.storage.k8s.io/pod.name"] == "p"
        assert TOKENS not in published["volume_context"]
        await world.tear_down(pod)


@pytest.mark.parametrize(
    ("kind", "reason", "text"),
    [
        ("claim", "FailedMount", 'MountVolume.MountDevice failed for volume "pv-c" : '),
        (
            "device",
            "FailedMapVolume",
            'MapVolume.SetUpDevice failed for volume "pv-c" : kubernetes.io/csi: '
            "blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: ",
        ),
        (
            "own",
            "FailedMount",
            'MountVolume.SetUp failed for volume "c" : kubernetes.io/csi: mounter.SetUpAt failed to '
            "determine if the node service has VOLUME_MOUNT_GROUP capability: ",
        ),
    ],
)
async def test_a_driver_that_does_not_say_what_it_can_do(
    place: Path, driver: DriverProcess, kind: str, reason: str, text: str
) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c", mode="Block" if kind == "device" else "Filesystem")
    pod = pod_of("p", devices=("c",)) if kind == "device" else pod_of("p", "c")
    if kind == "own":
        pod = pod_of("p", "c", volumes=[{"name": "c", "csi": {"driver": DRIVER}}])
    driver.fail(NodeGetCapabilities={"code": 13, "text": "not now", "times": 1})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        assert world.reasons(reason) == [f"{text}rpc error: code = Internal desc = not now"]
        await world.tear_down(pod)


@pytest.mark.parametrize(
    ("mode", "step", "text"),
    [
        ("Filesystem", node_calls.stage, ""),
        (
            "Filesystem",
            node_calls.publish,
            "kubernetes.io/csi: mounter.SetUpAt failed to fetch publishContext: ",
        ),
        (
            "Block",
            node_calls.stage,
            "kubernetes.io/csi: blockMapper.SetupDevice failed to get volume attachment [id={}]: ",
        ),
        (
            "Block",
            node_calls.publish,
            "kubernetes.io/csi: blockMapper.MapPodDevice failed to get volume attachment [id={}]: ",
        ),
    ],
)
async def test_an_attachment_that_has_gone_meanwhile(
    place: Path, driver: DriverProcess, mode: str, step: Callable[..., Awaitable[None]], text: str
) -> None:
    claims = Claims()
    claims.driver(attachRequired=True)
    claims.claim("c", mode=mode)
    pod = pod_of("p", "c") if mode == "Filesystem" else pod_of("p", devices=("c",))
    name = attachment_name("c", DRIVER, NODE)

    async def nothing() -> None:
        raise AssertionError("the driver is not asked")

    async with running_world(place, claims=claims, driver=driver) as world:
        [volume] = pod.spec.volumes or []
        claim, found = await world.objects.claim("default", "c"), await world.objects.volume("pv-c")
        assert claim is not None
        assert found is not None
        spec, client = claimed_spec(pod, volume, claim, found), world.room.drivers.get(DRIVER, "")
        context, staging = CSIContext(NODE, world.objects), {"staging": ""}
        more = staging if step is node_calls.publish else {}
        with pytest.raises(OperationError) as error:
            await step(context, client, spec, pod, "/t", prepare=nothing, undo=nothing, **more)
        assert str(error.value) == (f'{text.format(name)}volumeattachments.storage.k8s.io "{name}" not found')


@pytest.mark.parametrize("as_secret", [False, True])
async def test_tokens_of_the_pod(place: Path, driver: DriverProcess, as_secret: bool) -> None:
    claims = Claims()
    claims.driver(
        tokenRequests=[{"audience": "vault", "expirationSeconds": 3600}],
        serviceAccountTokenInSecrets=as_secret,
    )
    claims.claim("c")
    made = claims.store.create(
        "pods", "default", {"metadata": {"name": "p"}, "spec": {"containers": [], "nodeName": "here"}}
    )
    pod = pod_of("p", "c")
    meta = msgspec.structs.replace(pod.metadata, uid=made["metadata"]["uid"])
    pod = msgspec.structs.replace(pod, metadata=meta)
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted, world.events
        (published,) = [call for call in driver.calls() if call["method"] == "NodePublishVolume"]
        told = json.loads(published["secrets" if as_secret else "volume_context"][TOKENS])
        assert told["vault"]["token"] in claims.server.tokens
        assert told["vault"]["expirationTimestamp"].endswith("Z")
        await world.tear_down(pod)


async def test_a_driver_that_wants_it_is_asked_again_and_its_failure_harms_nothing(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.storage.manager.FRESH", 0.0)
    claims = Claims()
    claims.driver(requiresRepublish=True)
    claims.claim("c")
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        before = mounted_below(world.root)
        assert not (await world.set_up(pod)).unmounted
        await world.until(lambda: driver.methods().count("NodePublishVolume") == 2)
        driver.fail(NodePublishVolume={"code": 13})
        with trio.fail_after(20):  # the driver may have been asked, and the answer not be there yet
            while "NodePublishVolume" not in driver.methods("error"):
                assert not (await world.set_up(pod)).unmounted
                await trio.sleep(0.05)
        assert not (await world.set_up(pod)).unmounted
        assert mounted_below(world.root) == before
        driver.fail()
        await world.tear_down(pod)


async def test_a_driver_that_does_not_want_it_is_not_asked_again(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.storage.manager.FRESH", 0.0)
    claims = Claims()
    claims.driver()
    claims.claim("c")
    pod, other = pod_of("p", "c"), pod_of("q", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        for _ in range(3):
            assert not (await world.set_up(pod)).unmounted
        assert not (await world.set_up(other)).unmounted  # by now it would have been
        await world.tear_down(pod)
        await world.tear_down(other)
    assert driver.methods().count("NodePublishVolume") == 2


async def test_capabilities_are_asked_once_for_each_registration(place: Path, driver: DriverProcess) -> None:
    claims, names = Claims(), [f"v{number}" for number in range(6)]
    claims.driver()
    for name in names:
        claims.claim(name, size="4Mi")
    pods = [pod_of("p", *names[:3]), pod_of("q", *names[3:])]
    driver.set(size=4 << 20)

    def asked() -> int:
        return [call["method"] for call in driver.calls()].count("NodeGetCapabilities")

    async with running_world(place, claims=claims, driver=driver) as world:
        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(world.set_up, pod)
        assert asked() == 1
        await world.deregister()
        await world.register()
        for pod in pods:
            await world.tear_down(pod)
        await world.until(lambda: not world.left())
        assert asked() == 2


async def test_calls_to_drivers_are_counted_with_what_came_of_them(
    place: Path, driver: DriverProcess
) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c")
    pod = pod_of("p", "c")
    driver.fail(NodePublishVolume={"code": 13, "text": "not now", "times": 1})
    began = trio.current_time()
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted

        def counted(code: str, what: str) -> float:
            labels = {
                "driver_name": DRIVER,
                "method_name": "/csi.v1.Node/NodePublishVolume",
                "grpc_status_code": code,
                "migrated": "false",
            }
            return world.metrics.get_sample_value(f"csi_operations_seconds_{what}", labels) or 0.0

        assert [counted(code, "count") for code in ("Internal", "OK")] == [1, 1]
        assert 0 < counted("Internal", "sum") + counted("OK", "sum") < trio.current_time() - began
        await world.tear_down(pod)


async def test_a_claim_that_may_only_be_read(place: Path, driver: DriverProcess) -> None:
    """The driver is told, and the pod's group gets nothing: it could not be written."""
    claims = Claims()
    claims.driver(fsGroupPolicy="File")
    claims.claim("c", mountOptions=["commit=7"])
    source = {"name": "c", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}}
    pod = pod_of("p", "c", volumes=[source], securityContext={"fsGroup": 1234})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert not (await world.set_up(pod)).unmounted
        staged, published = (each for each in driver.calls() if each["volume"])
        assert "readonly" not in staged
        assert published["readonly"] is True
        assert all('mount_flags: "commit=7"' in each["capability"] for each in (staged, published))
        path = world.path(pod, "c")
        assert path.stat().st_gid == 0
        with pytest.raises(OSError, match="Read-only file system"):
            (path / "file").touch()
        await world.tear_down(pod)


async def test_a_driver_that_takes_no_volumes_of_pods_own(place: Path, driver: DriverProcess) -> None:
    claims = Claims()
    claims.driver(volumeLifecycleModes=["Persistent"])
    pod = pod_of("p", "own", volumes=[{"name": "own", "csi": {"driver": DRIVER}}])
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod)).unmounted == ("own",)
        assert world.reasons("FailedMount")[0] == (
            'MountVolume.SetUp failed for volume "own" : kubernetes.io/csi: mounter.SetupAt failed to check '
            f'volume lifecycle mode: volume mode "Ephemeral" not supported by driver {DRIVER} (only supports '
            '["Persistent"])'
        )
        assert driver.methods("begin") == []
        await world.tear_down(pod)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"attachError": {"message": "no such disk"}}, "no such disk"),
        ({}, "volume disk is not attached for volume attachment {}"),
    ],
)
@pytest.mark.parametrize("device", [False, True])
async def test_what_the_attacher_says_is_told(
    place: Path, driver: DriverProcess, status: dict[str, Any], text: str, device: bool
) -> None:
    claims = Claims()
    claims.driver(attachRequired=True)
    claims.claim("disk", mode="Block" if device else "Filesystem")
    name = claims.attach("disk", attached=False, **status)
    pod = pod_of("p", devices=("disk",)) if device else pod_of("p", "disk")
    step, reason = ("MapVolume", "FailedMapVolume") if device else ("MountVolume", "FailedMount")
    async with running_world(place, claims=claims, driver=driver) as world:
        world.node_says("disk")
        assert (await world.gives_up(pod, reason)).unmounted == ("disk",)
        told = f'{step}.WaitForAttach failed for volume "pv-disk" : {text.format(name)}'
        assert world.reasons(reason)[0] == told
        assert driver.methods("begin") == []
        await world.tear_down(pod)


GOING = v1.VolumeAttachment(
    metadata=v1.ObjectMeta(name="a", deletion_timestamp="2026-01-01T00:00:00Z"),
    status=v1.VolumeAttachmentStatus(attached=True),
)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "volume disk has GET error for volume attachment {}: it is forbidden"),
        (GOING, "volume attachment is being deleted"),
    ],
)
async def test_an_attachment_that_cannot_be_read_or_goes_is_told(
    place: Path,
    driver: DriverProcess,
    monkeypatch: pytest.MonkeyPatch,
    found: v1.VolumeAttachment | None,
    text: str,
) -> None:
    claims = Claims()
    claims.driver(attachRequired=True)
    claims.claim("disk")
    name = claims.attach("disk")
    pod = pod_of("p", "disk")

    async def attachment(name: str) -> v1.VolumeAttachment:
        if found is None:
            raise ObjectError("it is forbidden")
        return found

    async with running_world(place, claims=claims, driver=driver) as world:
        monkeypatch.setattr(world.objects, "attachment", attachment)
        world.node_says("disk")
        assert (await world.gives_up(pod)).unmounted == ("disk",)
        told = f'MountVolume.WaitForAttach failed for volume "pv-disk" : {text.format(name)}'
        assert world.reasons("FailedMount")[0] == told
        assert driver.methods("begin") == []
        await world.tear_down(pod)


async def test_what_a_driver_says_is_told_though_it_left_something(
    place: Path, driver: DriverProcess
) -> None:
    """What it made cannot be removed like an empty directory, but that is not why the pod does not start."""
    claims = Claims()
    claims.driver()
    claims.claim("disk")
    pod = pod_of("p", "disk")
    driver.set(lie={"volume": "disk", "file": "left"})
    driver.fail(NodePublishVolume={"code": 13, "text": "no such export", "when": "after"})
    async with running_world(place, claims=claims, driver=driver) as world:
        assert (await world.gives_up(pod)).unmounted == ("disk",)
        text = "rpc error: code = Internal desc = no such export"
        assert world.reasons("FailedMount")[0] == f'MountVolume.SetUp failed for volume "pv-disk" : {text}'
        driver.set()
        driver.fail()
        await world.tear_down(pod)


async def test_that_labels_are_not_set_is_said_once_a_driver(
    place: Path, driver: DriverProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    claims = Claims()
    claims.driver(seLinuxMount=True)
    for name in ("one", "two"):
        claims.claim(name, size="4Mi")
    driver.set(size=4 << 20)
    labelled = {"seLinuxOptions": {"level": "s0:c1,c2"}}
    async with running_world(place, claims=claims, driver=driver) as world:
        for name in ("one", "two"):
            assert not (await world.set_up(pod_of(name, name, securityContext=labelled))).unmounted
        assert capfd.readouterr().err.count("seLinuxMount has no effect") == 1
        assert not any("context=" in call.get("capability", "") for call in driver.calls())
        for name in ("one", "two"):
            await world.tear_down(pod_of(name, name))
