"""FlexVolume drivers: what they are asked, as recorded from the kubelet's plugin; real mounts by a script."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import Claims, World, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.common.programs import ProgramFailed
from trio_kubelet.podinfo.recorder import EventRecorder
from trio_kubelet.storage.claims import inline_spec, persistent_spec
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.flex import drivers
from trio_kubelet.storage.flex.drivers import FlexDrivers
from trio_kubelet.storage.flex.messages import program_of
from trio_kubelet.storage.flex.volumes import FlexVolumes
from trio_kubelet.storage.ownership import VolumeOwnership
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.linux import mount_at, mount_tmpfs, unmount

GOLDEN: list[dict[str, Any]] = msgspec.json.decode(
    (Path(__file__).parents[1] / "golden" / "flexvolume-calls.json").read_bytes()
)
STEPS = (
    *("init", "name", "attach", "waitforattach", "mountdevice", "mount"),
    *("unmount", "unmountdevice", "detach"),
)
SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/../../flex-calls"
[ -e "$here/hang-$1" ] && sleep 60
case "$1" in
init) cat "$here/init" 2>/dev/null || echo '{"status":"Success","capabilities":{"attach":false}}' ;;
attach) echo '{"status":"Success","device":"'"$(cat "$here/device")"'"}' ;;
waitforattach) echo '{"status":"Success","device":"'"$2"'"}' ;;
detach | getvolumename) echo '{"status":"Success"}' ;;
mount) [ -e "$here/device" ] && echo '{"status":"Not supported"}' && exit 1
    mount -t tmpfs tmpfs "$2" && echo '{"status":"Success"}' ;;
unmount) [ -e "$here/device" ] && echo '{"status":"Not supported"}' && exit 1
    umount "$2" && echo '{"status":"Success"}' ;;
*) echo '{"status":"Not supported"}' && exit 1 ;;
esac
"""


class Program:
    """A driver that answers what the recorded one did; what it mounts is really mounted."""

    def __init__(self, root: Path, case: dict[str, Any]) -> None:
        self.root = str(root)
        self.case = case
        self.calls: list[list[str]] = []
        self.mounted: list[str] = []

    async def __call__(self, command: Sequence[str]) -> bytes:
        self.calls.append([word.replace(self.root, "ROOT") for word in command])
        name = command[1]
        said: str = self.case["answers"].get(name, '{"status":"Not supported"}')
        code = self.case.get("codes", {}).get(name, 0)
        if "Success" in said and not code:
            if name in ("mount", "mountdevice"):
                mount_tmpfs(command[2], 0)
                self.mounted.append(command[2].replace(self.root, "ROOT"))
            elif name in ("unmount", "unmountdevice"):
                unmount(command[2])
        if code:
            raise ProgramFailed(f"exit status {code}", "", said.encode())
        return said.encode()


class Secrets:
    """The one secret there may be."""

    def __init__(self, known: dict[str, Any] | None) -> None:
        self._known = known

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        assert (namespace, name) == ("ns", "s")
        if self._known is None:
            return None
        data = {key: value.encode() for key, value in self._known["data"].items()}
        return v1.Secret(type=self._known["type"], data=data)


def spec_of(case: dict[str, Any]) -> Spec:
    pod = msgspec.convert({"metadata": {"name": "pod", "namespace": "ns", "uid": "uid"}, "spec": {}}, v1.Pod)
    if "pv" in case:
        tree = {"metadata": {"name": "pv"}, "spec": {"flexVolume": case["pv"]}}
        return persistent_spec("uid", msgspec.convert(tree, v1.PersistentVolume), case["readOnly"])
    volume = msgspec.convert({"name": "vol", "flexVolume": case["source"]}, v1.Volume)
    return inline_spec(pod, volume)


def pod_with(case: dict[str, Any]) -> v1.Pod:
    context = {"securityContext": {"fsGroup": case["fsGroup"]}} if "fsGroup" in case else {}
    meta = {"name": "pod", "namespace": "ns", "uid": "uid"}
    return msgspec.convert(
        {"metadata": meta, "spec": {"containers": [], "serviceAccountName": "sa", **context}}, v1.Pod
    )


@pytest.mark.parametrize("case", [pytest.param(case, id=case["case"]) for case in GOLDEN])
async def test_drivers_are_asked_what_the_kubelet_asks(case: dict[str, Any], place: Path) -> None:
    install(place / "exec", case["driver"])
    program = Program(place, case)
    found = FlexDrivers(str(place / "exec"), program)
    view = ReportedVolumes()
    volumes = FlexVolumes(
        root_dir=str(place),
        node_name="node",
        drivers=found,
        objects=Secrets(case.get("secret")),  # type: ignore[arg-type]
        owner=VolumeOwnership(EventRecorder(SystemClock())),
        node=lambda: view,
    )
    expected = case["result"]
    told = {key: expected[key] for key in expected if key in STEPS}
    failed: dict[str, str] = {}
    step = ""
    try:
        spec = await volumes.known(spec_of(case), "uid")
        view = ReportedVolumes(attached={spec.unique_name: case["device"]})
        async for step in life(volumes, spec, pod_with(case)):
            assert step in STEPS
    except VolumeError as error:
        failed["init" if str(error).endswith("err=no volume plugin matched") else "name"] = str(error)
    except OperationError as error:
        failed[step] = str(error).replace(str(place), "ROOT")
    assert failed.keys() == told.keys()
    for key in told.keys() - {"init"}:
        assert failed[key].endswith(told[key])
    if not told:
        assert spec.unique_name == expected["unique"]
        where = {expected[key] for key in ("path", "devicePath") if key in expected}
        assert set(program.mounted) <= where
    # The kubelet asks for the name, which counts for nothing, each time it makes a path.
    assert asked(program.calls) == asked(case["calls"])


async def life(volumes: FlexVolumes, spec: Spec, pod: v1.Pod) -> AsyncIterator[str]:
    """Each step of a volume's life, told before it is done."""
    mount = PodMount(uid="uid", spec=spec)
    if spec.attachable:
        yield "attach"
        await volumes.attach(spec)
        yield "waitforattach"
        await volumes.wait_for_attach(spec)
        yield "mountdevice"
        await volumes.mount_device(spec, pod)
    yield "mount"
    await volumes.set_up(spec, pod, keep=False)
    yield "unmount"
    await volumes.tear_down(mount)
    if spec.attachable:
        yield "unmountdevice"
        await volumes.unmount_device(spec)
        yield "detach"
        await volumes.detach(spec)


def asked(calls: list[list[str]]) -> list[list[str]]:
    return [call for call in calls if call[1] != "getvolumename"]


# A script


def install(directory: Path, driver: str = "vendor/disk", *, device: str = "") -> Path:
    """Puts a driver into a directory of drivers; with a device it is one that attaches."""
    program = directory / program_of(driver)
    program.parent.mkdir(parents=True)
    program.write_text(SCRIPT)
    program.chmod(0o755)
    if device:
        (program.parent / "init").write_text('{"status":"Success"}')
        (program.parent / "device").write_text(device)
    return program.parent


def flex_pod(name: str, driver: str = "vendor/disk", **source: Any) -> v1.Pod:
    pod = pod_of(name, "v")
    volume = {"name": "v", "flexVolume": {"driver": driver, **source}}
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, volumes=[msgspec.convert(volume, v1.Volume)])
    )


def calls(place: Path) -> list[str]:
    """The commands the driver was given."""
    path = place / "flex-calls"
    return [line.split(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []


async def test_a_driver_mounts_for_a_pod(place: Path, driver: DriverProcess) -> None:
    install(place / "flex")
    pod = flex_pod("p")
    async with running_world(place, driver=driver, register=False) as world:
        assert not (await world.set_up(pod)).unmounted
        path = world.path(pod, "v")
        assert path == world.root / "pods/uid-p/volumes/vendor~disk/v"
        assert path.is_mount()
        assert world.room.volumes.in_use() == []
        await world.tear_down(pod)
        assert mounted_below(world.root) == []
        assert world.left() == []
        assert calls(place) == ["init", "mount", "unmount"]


async def test_a_missing_driver_is_told_and_found_when_it_is_there(
    place: Path, driver: DriverProcess
) -> None:
    pod = flex_pod("p")
    async with running_world(place, driver=driver, register=False) as world:
        short = await world.set_up(pod)
        text = 'failed to get Plugin from volumeSpec for volume "v" err=no volume plugin matched'
        assert short.unprocessed == {"v": text}
        install(place / "flex")
        assert not (await world.set_up(pod)).unmounted
        await world.tear_down(pod)


@pytest.mark.parametrize("can", [True, False])
async def test_files_are_labelled_unless_the_driver_says_that_they_cannot_be(
    place: Path, driver: DriverProcess, can: bool
) -> None:
    where = install(place / "flex")
    if not can:
        capabilities = {"attach": False, "selinuxRelabel": False}
        (where / "init").write_bytes(msgspec.json.encode({"status": "Success", "capabilities": capabilities}))
    pod = flex_pod("p")
    async with running_world(place, driver=driver, register=False) as world:
        assert not (await world.set_up(pod)).unmounted
        assert world.room.volumes.mounts("uid-p")["v"].relabel is can
        await world.tear_down(pod)


async def test_another_program_is_asked_again_what_it_can_do(place: Path) -> None:
    where = install(place / "flex")
    found = FlexDrivers(str(place / "flex"))
    first = await found.find("vendor/disk")
    assert first is not None
    assert first is await found.find("vendor/disk")
    (where / "init").write_text('{"status":"Success"}')
    fresh = where / "disk.new"
    fresh.write_text(SCRIPT + "# another\n")
    fresh.chmod(0o755)
    fresh.rename(where / "disk")
    second = await found.find("vendor/disk")
    assert second is not None
    assert (first.capabilities.attach, second.capabilities.attach) == (False, True)
    assert calls(place) == ["init", "init"]
    shutil.rmtree(where)
    assert await found.find("vendor/disk") is None


@pytest.mark.parametrize("name", ["", "..", "a/..", "../x", "a//b", "a/", ".hidden", "a\0b"])
def test_a_name_that_is_none_leads_nowhere(name: str) -> None:
    assert program_of(name) == ""


async def test_an_attached_disk_is_mounted_by_the_agent_where_its_driver_does_not(
    place: Path, driver: DriverProcess, disk: str
) -> None:
    install(place / "flex", device=disk)
    pod = flex_pod("p", fsType="ext4")
    async with running_world(place, driver=driver, register=False) as world:
        short = await world.set_up(pod, patience=1)
        assert (short.unmounted, short.unattached) == (("v",), ("v",))
        name = "vendor/disk/v"
        assert world.room.volumes.in_use() == [name]
        world.view = ReportedVolumes({name}, {name: disk})
        world.room.volumes.node_changed()
        assert not (await world.set_up(pod)).unmounted
        staged = world.root / "plugins/kubernetes.io/flexvolume/vendor/disk/mounts/v"
        assert [mount_at(str(path)).source for path in (staged, world.path(pod, "v"))] == [disk] * 2  # type: ignore[union-attr]
        await world.tear_down(pod)
        await world.until(lambda: not mounted_below(world.root))
        await world.until(lambda: not world.room.volumes.in_use())
        assert "attach" not in calls(place)
        assert "detach" not in calls(place)


async def test_without_a_controller_the_agent_attaches_and_detaches(
    place: Path, driver: DriverProcess, disk: str
) -> None:
    install(place / "flex", device=disk)
    pod = flex_pod("p", fsType="ext4")
    async with running_world(place, driver=driver, register=False) as world:
        world.view = ReportedVolumes(controller=False)
        assert not (await world.set_up(pod)).unmounted
        assert world.reasons("SuccessfulAttachVolume") == ['AttachVolume.Attach succeeded for volume "v" ']
        await world.tear_down(pod)
        await world.until(lambda: not world.room.volumes.in_use())
        assert not mounted_below(world.root)
        asked = calls(place)
        assert asked.index("attach") < asked.index("waitforattach") < asked.index("detach")
        assert asked[-1] == "detach"


async def test_a_volume_is_found_after_a_restart_and_detached_at_its_end(
    place: Path, driver: DriverProcess, disk: str
) -> None:
    install(place / "flex", device=disk)
    pod, other = flex_pod("p", fsType="ext4"), flex_pod("q", "vendor/other")
    install(place / "flex", "vendor/other")
    view = ReportedVolumes(controller=False)
    async with running_world(place, driver=driver, register=False) as world:
        world.view = view
        for each in (pod, other):
            assert not (await world.set_up(each)).unmounted
        before = mounted_below(world.root)
    async with running_world(place, driver=driver, register=False) as world:
        world.view = view
        assert not (await world.set_up(pod)).unmounted
        assert mounted_below(world.root) == before
        for each in (other, pod):  # the one that is detached goes on after its pod has given it up
            await world.tear_down(each)
        await world.until(lambda: not world.room.volumes.in_use())
        assert not mounted_below(world.root)
        assert calls(place)[-1] == "detach"


async def test_a_driver_that_hangs_is_killed_and_holds_up_its_own_volume_only(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = install(place / "flex", "vendor/hangs")
    install(place / "flex", "vendor/disk")
    (where / "hang-mount").touch()
    monkeypatch.setattr(drivers.FlexDriver.call, "__kwdefaults__", {"deadline": 0.5})
    stuck, well = flex_pod("stuck", "vendor/hangs"), flex_pod("well")
    async with running_world(place, driver=driver, register=False) as world:
        assert (await world.set_up(stuck, patience=0.1)).unmounted == ("v",)
        assert not (await world.set_up(well)).unmounted
        await world.until(lambda: world.reasons("FailedMount"))
        text = 'MountVolume.SetUp failed for volume "v" : mount command did not end within 0.5 s'
        assert world.reasons("FailedMount")[0] == text
        (where / "hang-mount").unlink()
        assert not (await world.set_up(stuck)).unmounted
        for pod in (stuck, well):
            await world.tear_down(pod)


async def test_a_csi_volume_that_must_be_attached_cannot_be_without_a_controller(
    place: Path, driver: DriverProcess
) -> None:
    claims = Claims()
    claims.driver(attachRequired=True)
    claims.claim("c")
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        world.view = ReportedVolumes(controller=False)
        short = await world.gives_up(pod, "FailedAttachVolume")
        assert short.unattached == ("c",)
        assert world.reasons("FailedAttachVolume")[0] == (
            'AttachVolume.Attach failed for volume "pv-c" : attaching volumes from the kubelet is not '
            "supported"
        )
        assert driver.methods() == []
        await world.tear_down(pod)
        await world.until(lambda: not world.room.volumes.in_use())


async def test_a_csi_volume_that_needs_none_is_not_attached_or_detached_without_a_controller(
    place: Path, driver: DriverProcess
) -> None:
    claims = Claims()
    claims.driver()
    claims.claim("c")
    pod = pod_of("p", "c")
    for _ in range(2):  # the second finds it on the disk, where nothing says whether it was attached
        async with running_world(place, claims=claims, driver=driver) as world:
            world.view = ReportedVolumes(controller=False)
            if not mounted_below(world.root):
                assert not (await world.set_up(pod)).unmounted
    async with running_world(place, claims=claims, driver=driver) as world:
        world.view = ReportedVolumes(controller=False)
        await world.tear_down(pod)
        await until_forgotten(world)


async def until_forgotten(world: World) -> None:
    await world.until(lambda: not world.room.volumes.in_use())
    assert not mounted_below(world.root)


async def test_a_driver_expands_what_its_claim_says(
    place: Path, driver: DriverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = install(place / "flex")
    text = SCRIPT.replace("detach | getvolumename", "expandfs | getvolumename")
    (where / "disk").write_text(text)
    claims = Claims()
    claims.claim("c", {"flexVolume": {"driver": "vendor/disk"}})
    pod = pod_of("p", "c")
    monkeypatch.setattr("trio_kubelet.storage.manager.FRESH", 0.0)
    async with running_world(place, claims=claims, driver=driver, register=False) as world:
        assert not (await world.set_up(pod)).unmounted
        claims.grow("c", "48Mi")
        await world.set_up(pod)
        await world.until(lambda: world.reasons("FileSystemResizeSuccessful"))
        (line,) = [each for each in (place / "flex-calls").read_text().splitlines() if "expandfs" in each]
        assert line.endswith(f"{world.path(pod, 'c')} {48 << 20} {16 << 20}")
        await world.tear_down(pod)
