"""Disks of iSCSI targets and Fibre Channel: what the system's tools are asked, and what comes of the answers.

The kernel's files and the tool are the test's own; the disks are loop devices, really formatted and mounted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from tests.storage.drivers import DriverProcess, mounted_below
from tests.storage.world import Claims, pod_of, running_world
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.podinfo.recorder import EventRecorder
from trio_kubelet.storage import block_map, loop
from trio_kubelet.storage.claims import inline_spec, persistent_spec
from trio_kubelet.storage.disks import iscsi_plan
from trio_kubelet.storage.disks.attached import AttachedDisks
from trio_kubelet.storage.disks.fc import FCDisks, ids_of, source_of
from trio_kubelet.storage.disks.format import run_tool
from trio_kubelet.storage.disks.iscsi import ISCSIDisks
from trio_kubelet.storage.disks.scsi import SCSI
from trio_kubelet.storage.doors import Disks
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.ownership import VolumeOwnership
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.linux import mount_tmpfs

GOLDEN: dict[str, Any] = msgspec.json.decode(
    (Path(__file__).parents[1] / "golden" / "iscsi-commands.json").read_bytes()
)
INTERFACE = """# BEGIN RECORD 2.0-874
iface.iscsi_ifacename = default
iface.net_ifacename = <empty>
iface.transport_name = tcp
iface.initiatorname = iqn.old
iface.mtu = 0
# END RECORD
"""
IQN = "iqn.2001-04.com.example:disk"


class Machine:
    """sysfs and /dev of a machine, and an `iscsiadm` that logs in to what there is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.scsi = SCSI(str(root))
        self.calls: list[str] = []
        self.fails: list[dict[str, Any]] = []
        self.login: dict[str, int] = {}
        self.disk = ""
        (root / "dev/disk/by-path").mkdir(parents=True)
        (root / "dev/disk/by-id").mkdir()
        (root / "sys/block").mkdir(parents=True)
        (root / "sys/class/scsi_host").mkdir(parents=True)
        (root / "sys/class/iscsi_host").mkdir()

    async def tool(self, command: Sequence[str]) -> tuple[int, str]:
        line = " ".join(command)
        self.calls.append(line)
        for fail in self.fails:
            if fail["Match"] in line:
                return fail["Code"], fail["Out"]
        if line.endswith("--login"):
            for portal, host in self.login.items():
                if f"-p {portal} " in line:
                    self.log_in(portal, host)
        if "--logout" in line:
            shutil.rmtree(self.root / "sys/class/iscsi_host", ignore_errors=True)
        return 0, INTERFACE if line.endswith("-o show") else ""

    def log_in(self, portal: str, host: int) -> None:
        """A session, as the kernel shows it."""
        session = self.root / f"sys/class/iscsi_host/host{host}/device/session{host}"
        connection = session / f"connection{host}:0/iscsi_connection/connection{host}:0"
        connection.mkdir(parents=True)
        (session / f"iscsi_session/session{host}").mkdir(parents=True)
        (session / f"iscsi_session/session{host}/targetname").write_text(f"{IQN}\n")
        address, _, port = portal.rpartition(":")
        for prefix in ("", "persistent_"):
            (connection / f"{prefix}address").write_text(f"{address}\n")
            (connection / f"{prefix}port").write_text(f"{port}\n")
        if self.disk:
            self.host(host)
            name = Path(self.disk).name
            (session / f"target{host}:0:0/{host}:0:0:3/block/{name}").mkdir(parents=True)
            link = self.root / f"dev/disk/by-path/ip-{portal}-iscsi-{IQN}-lun-3"
            link.symlink_to(self.disk)

    def host(self, number: int) -> Path:
        """A host that looks for new disks when it is told to."""
        scan = self.root / f"sys/class/scsi_host/host{number}/scan"
        scan.parent.mkdir(parents=True)
        scan.touch()
        return scan

    def block(self, name: str) -> Path:
        """A disk that can be deleted."""
        delete = self.root / f"sys/block/{name}/device/delete"
        delete.parent.mkdir(parents=True)
        delete.touch()
        return delete


@pytest.fixture
def machine(place: Path) -> Machine:
    return Machine(place / "machine")


@pytest.fixture
def disk(place: Path, machine: Machine) -> Iterator[str]:
    """An empty disk."""
    image = place / "disk.img"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    machine.disk = loop.attach(str(image))
    yield machine.disk
    loop.detach(str(image))


def volume_of(**source: Any) -> v1.PersistentVolume:
    return msgspec.convert({"metadata": {"name": "pv"}, "spec": source}, v1.PersistentVolume)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["case"]) for case in GOLDEN["cases"]])
async def test_iscsi_asks_what_the_kubelet_asks(case: dict[str, Any], machine: Machine, place: Path) -> None:
    spec = persistent_spec("uid", volume_of(iscsi=case["source"]), read_only=False)
    target = iscsi_plan.target_of(spec)
    assert spec.reported_name == f"kubernetes.io/iscsi/{case['uniqueName']}"
    assert iscsi_plan.directory(target) == case["directory"]
    assert msgspec.json.decode(iscsi_plan.saved(target)) == case["saved"]
    assert iscsi_plan.load(msgspec.json.encode(case["saved"])) == target
    machine.fails, machine.login = case.get("fails", []), case.get("login", {})
    disks = ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    chap = iscsi_plan.Chap(
        case["source"].get("chapAuthDiscovery", False),
        case["source"].get("chapAuthSession", False),
        case.get("secret", {}),
    )
    disks._chap = given(chap)  # type: ignore[method-assign]
    with pytest.raises(OperationError) as error:
        await disks.attach(spec, str(place / "global"))
    expected = case["error"]
    if expected.startswith("open /sys/class/scsi_host"):  # as far as the recording went
        assert "scsi_host" in str(error.value)
    else:
        assert str(error.value) == expected
    asked = [now for before, now in zip(["", *case["calls"]], case["calls"], strict=False) if now != before]
    assert machine.calls == asked  # the kubelet asks for the interface's settings twice


def given(chap: iscsi_plan.Chap) -> Any:
    async def answer(_: Spec) -> iscsi_plan.Chap:
        return chap

    return answer


@pytest.mark.parametrize("case", [pytest.param(case, id=case["case"]) for case in GOLDEN["cases"]])
async def test_iscsi_logs_out_as_the_kubelet_does(
    case: dict[str, Any], machine: Machine, place: Path
) -> None:
    spec = persistent_spec("uid", volume_of(iscsi=case["source"]), read_only=False)
    machine.fails = case.get("fails", [])
    disks = ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    directory = str(place / "plugin" / iscsi_plan.directory(iscsi_plan.target_of(spec)))
    if "detachError" in case:
        with pytest.raises(OperationError) as error:
            await disks.detach(spec, directory)
        assert str(error.value) == f"failed to finish detachISCSIDisk, err: {case['detachError']}"
    else:
        await disks.detach(spec, directory)
    assert machine.calls == case["detach"]


def attached(place: Path, disks: Disks) -> AttachedDisks:
    return AttachedDisks(
        root_dir=str(place / "root"), owner=VolumeOwnership(EventRecorder(SystemClock())), disks=disks
    )


def iscsi_spec(*, mode: str = "Filesystem", **source: Any) -> Spec:
    whole = {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 3, "fsType": "ext4", **source}
    return persistent_spec("uid", volume_of(iscsi=whole, volumeMode=mode), read_only=False)


async def test_an_iscsi_disk_from_the_login_to_the_logout(place: Path, machine: Machine, disk: str) -> None:
    machine.login = {"10.0.0.1:3260": 7}
    deleted = machine.block(Path(disk).name)
    volumes = attached(place, ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi))
    spec, pod = iscsi_spec(), pod_of("p")
    await volumes.wait_for_attach(spec)
    assert (machine.root / "sys/class/scsi_host/host7/scan").read_text() == "0 0 3"
    shared = place / f"root/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-{IQN}-lun-3"
    assert iscsi_plan.load((shared / "iscsi.json").read_bytes()) == iscsi_plan.target_of(spec)
    await volumes.mount_device(spec, pod)
    await volumes.set_up(spec, pod, keep=False)
    path = place / "root/pods/uid-p/volumes/kubernetes.io~iscsi/pv"
    assert mounted_below(place / "root") == sorted([str(shared), str(path)])
    (path / "file").write_text("kept")

    found = dict.fromkeys((read.unique_name, uid) for read, uid in volumes.read_back(str(place / "root"), _T))
    assert list(found) == [
        (f"kubernetes.io/iscsi/10.0.0.1:3260:{IQN}:3", ""),
        (f"kubernetes.io/iscsi/10.0.0.1:3260:{IQN}:3", "uid-p"),
    ]
    assert next(iter(found))[0] == spec.unique_name
    await volumes.tear_down(PodMount(uid="uid-p", spec=spec))
    machine.calls.clear()
    await volumes.unmount_device(spec)
    assert mounted_below(place / "root") == []
    assert not shared.exists()
    assert deleted.read_text() == "1"
    assert machine.calls == [
        f"iscsiadm -m node -p 10.0.0.1:3260 -T {IQN} --logout -I default",
        f"iscsiadm -m node -p 10.0.0.1:3260 -T {IQN} -o delete -I default",
    ]


async def test_a_session_that_another_disk_needs_is_kept(place: Path, machine: Machine, disk: str) -> None:
    machine.login = {"10.0.0.1:3260": 7}
    volumes = attached(place, ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi))
    spec = iscsi_spec(mode="Block")
    await volumes.wait_for_attach(spec)
    other = place / f"root/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-{IQN}-lun-4"
    other.mkdir(parents=True)
    machine.calls.clear()
    await volumes.tear_down_device(spec)
    assert not any("--logout" in call for call in machine.calls)
    await volumes.wait_for_attach(spec)
    other.rmdir()
    await volumes.tear_down_device(spec)
    assert any("--logout" in call for call in machine.calls)


async def test_a_disk_that_could_not_be_mounted_is_logged_out_of_when_its_pod_goes(
    place: Path, driver: DriverProcess, machine: Machine, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OperationError("wrong fs type")

    monkeypatch.setattr("trio_kubelet.storage.disks.format.run_tool", machine.tool)
    monkeypatch.setattr("trio_kubelet.storage.disks.scsi.SCSI", lambda: machine.scsi)
    monkeypatch.setattr("trio_kubelet.storage.disks.attached.format_and_mount", fail)
    machine.login = {"10.0.0.1:3260": 7}
    machine.block(Path(disk).name)
    claims = Claims()
    source = {"targetPortal": "10.0.0.1:3260", "iqn": IQN, "lun": 3, "fsType": "ext4"}
    claims.claim("c", {"iscsi": source})
    pod = pod_of("p", "c")
    async with running_world(place, claims=claims, driver=driver) as world:
        name = f"kubernetes.io/iscsi/10.0.0.1:3260:{IQN}:3"
        world.view = ReportedVolumes(frozenset({name}), {name: ""})
        async with world.failing(pod):
            pass
        assert world.reasons("FailedMount")[0].endswith("wrong fs type")
        await world.tear_down(pod)
        await world.until(lambda: any("--logout" in call for call in machine.calls))
        await world.until(lambda: not world.left() and not world.room.volumes.in_use())


@pytest.mark.parametrize("portal", ["10.0.0.1", "10.0.0.1:3260"])
async def test_a_disk_is_the_same_after_a_restart_whether_its_portal_has_a_port_or_not(
    place: Path,
    driver: DriverProcess,
    machine: Machine,
    disk: str,
    monkeypatch: pytest.MonkeyPatch,
    portal: str,
) -> None:
    """It was taken for two, and the end of a pod from before the restart took it from those after that."""

    async def tool(command: Sequence[str]) -> tuple[int, str]:
        return await (machine.tool if command[0] == "iscsiadm" else run_tool)(command)

    monkeypatch.setattr("trio_kubelet.storage.disks.format.run_tool", tool)
    monkeypatch.setattr("trio_kubelet.storage.disks.scsi.SCSI", lambda: machine.scsi)
    machine.login = {"10.0.0.1:3260": 7}
    machine.block(Path(disk).name)
    claims = Claims()
    source = {"targetPortal": portal, "iqn": IQN, "lun": 3, "fsType": "ext4"}
    claims.claim("c", {"iscsi": source}, modes=("ReadWriteMany",))
    first, second = pod_of("first", "c"), pod_of("second", "c")
    name = f"kubernetes.io/iscsi/{portal}:{IQN}:3"
    attached = ReportedVolumes(frozenset({name}), {name: ""})
    async with running_world(place, claims=claims, driver=driver) as world:
        world.view = attached
        assert not (await world.set_up(first)).unmounted
    async with running_world(place, claims=claims, driver=driver) as world:
        world.view = attached
        for pod in (first, second):
            assert not (await world.set_up(pod)).unmounted
        assert world.room.volumes.in_use() == [name]
        await world.tear_down(first)
        await trio.sleep(0.5)
        assert not any("--logout" in call for call in machine.calls)
        assert [path for path in mounted_below(place / "root") if "iface-default" in path]
        await world.tear_down(second)
        await world.until(lambda: any("--logout" in call for call in machine.calls))
        await world.until(lambda: not world.left() and not world.room.volumes.in_use())


async def test_an_iscsi_disk_as_a_device_and_what_is_read_back_of_it(
    place: Path, machine: Machine, disk: str
) -> None:
    machine.login = {"10.0.0.1:3260": 7}
    volumes = attached(place, ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi))
    spec, pod = iscsi_spec(mode="Block"), pod_of("p")
    await volumes.wait_for_attach(spec)
    device, shared = await volumes.map_pod_device(spec, pod), volumes.global_map(spec)
    pod_map = str(place / "root/pods/uid-p/volumeDevices/kubernetes.io~iscsi")
    block_map.map_device(device, shared, pod_map, "pv", "uid-p")
    read = [(each.name, each.block, uid) for each, uid in volumes.read_back(str(place / "root"), _T)]
    assert read == [("pv", True, ""), ("pv", True, "uid-p")]
    assert block_map.mapped_pods(shared) == ["uid-p"]
    block_map.unmap_device(shared, pod_map, "pv", "uid-p")
    await volumes.tear_down_device(spec)
    assert list((place / "root/plugins/kubernetes.io/iscsi/volumeDevices/iface-default").iterdir()) == []


def test_a_disk_does_not_say_itself_whose_it_is(place: Path, machine: Machine) -> None:
    """What is in it is the pods' to write."""
    spec, disks = iscsi_spec(), ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    target = iscsi_plan.target_of(spec)
    directory = place / "plugin" / disks.directory(spec)
    directory.mkdir(parents=True)
    (directory / "iscsi.json").write_bytes(iscsi_plan.saved(target))
    mount_tmpfs(str(directory), 1 << 20)
    other = msgspec.structs.replace(target, iqn="iqn.2001-04.com.example:another")
    (directory / "iscsi.json").write_bytes(iscsi_plan.saved(other))
    [(_, found)] = disks.read_back(str(place / "plugin"), False)
    assert iscsi_plan.target_of(found).iqn == IQN


@pytest.mark.parametrize("lun", ["", "one", "9" * 5000])
def test_a_file_without_a_number_of_its_disk_does_not_end_the_start(
    place: Path, machine: Machine, lun: str
) -> None:
    spec, disks = iscsi_spec(), ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    directory = place / "plugin" / disks.directory(spec)
    directory.mkdir(parents=True)
    saved = iscsi_plan.saved(iscsi_plan.target_of(spec))
    names = set()
    for content in (
        saved,
        msgspec.json.encode({**msgspec.json.decode(saved), "Lun": lun}),
        b'{"Iqn":"\xff"}',
    ):
        (directory / "iscsi.json").write_bytes(content)
        [(path, found)] = disks.read_back(str(place / "plugin"), False)
        assert path == str(directory)
        names.add(found.unique_name)
    assert len(names) == 1, "the directory's name says it, too"


async def test_a_multipath_device_is_used_and_flushed(place: Path, machine: Machine, disk: str) -> None:
    name = Path(disk).name
    (machine.root / f"sys/block/dm-5/slaves/{name}").mkdir(parents=True)
    machine.login = {"10.0.0.1:3260": 7, "10.0.0.2:3260": 8}
    disks = ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    spec = iscsi_spec(portals=["10.0.0.2"])
    assert await disks.attach(spec, str(place / "plugin/iface/disk")) == "/dev/dm-5"
    await disks.detach(spec, str(place / "plugin/iface/disk"))
    assert "multipath -f /dev/dm-5" in machine.calls


def leads_to(link: str) -> str:
    return os.path.realpath(link)


class Secrets:
    """What the API server has of secrets."""

    def __init__(self, **data: bytes) -> None:
        self.data = data

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        await trio.lowlevel.checkpoint()
        return v1.Secret(data={**self.data}) if (namespace, name) == ("ns", "chap") and self.data else None


async def test_a_login_with_a_password_of_a_secret(place: Path, machine: Machine, disk: str) -> None:
    machine.login = {"10.0.0.1:3260": 7}
    objects: Any = Secrets(**{"node.session.auth.password": b"opaque"})
    disks = ISCSIDisks(objects=objects, tool=machine.tool, scsi=machine.scsi)
    secret = {"namespace": "ns", "name": "chap"}
    found = await disks.attach(iscsi_spec(chapAuthSession=True, secretRef=secret), str(place / "plugin"))
    assert leads_to(found) == disk
    assert any(call.endswith("-n node.session.auth.password -v opaque") for call in machine.calls)


@pytest.mark.parametrize(
    ("objects", "source", "error"),
    [
        (None, {"chapAuthSession": True}, "cannot get kube client"),
        (
            Secrets(),
            {"chapAuthSession": True},
            'couldn\'t get secret ns/chap error: secrets "chap" not found',
        ),
        (
            Secrets(),
            {"chapAuthDiscovery": True},
            'couldn\'t get secret ns/chap error: secrets "chap" not found',
        ),
        (None, {}, ""),
    ],
)
async def test_a_secret_is_asked_for_where_it_is_wanted(
    place: Path, machine: Machine, disk: str, objects: Any, source: dict[str, Any], error: str
) -> None:
    machine.login = {"10.0.0.1:3260": 7}
    disks = ISCSIDisks(objects=objects, tool=machine.tool, scsi=machine.scsi)
    spec = iscsi_spec(secretRef={"namespace": "ns", "name": "chap"}, **source)
    if error:
        with pytest.raises(OperationError) as caught:
            await disks.attach(spec, str(place / "plugin"))
        assert str(caught.value) == error
        assert machine.calls == []
    else:
        assert leads_to(await disks.attach(spec, str(place / "plugin"))) == disk


@pytest.mark.parametrize(("others", "rounds"), [(1, 5), (2, 2)])
async def test_for_a_portal_that_is_away_others_are_enough(
    place: Path, machine: Machine, disk: str, autojump_clock: MockClock, others: int, rounds: int
) -> None:
    """Two of them after the second round, one after the last."""
    there = [f"10.0.0.{number}:3260" for number in range(1, others + 1)]
    machine.login = {portal: 6 + number for number, portal in enumerate(there)}
    machine.fails = [{"Match": "-p 10.0.0.9:3260 ", "Code": 8, "Out": "away"}]
    disks = ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    spec = iscsi_spec(portals=[*there[1:], "10.0.0.9"])
    assert leads_to(await disks.attach(spec, str(place / "plugin"))) == disk
    assert trio.current_time() == 9, "for the multipath daemon"
    asked = [call for call in machine.calls if "-p 10.0.0.9:3260 " in call and call.endswith("-o new")]
    assert len(asked) == rounds


async def test_a_disk_that_does_not_appear_after_the_login(
    place: Path, machine: Machine, autojump_clock: MockClock
) -> None:
    machine.login = {"10.0.0.1:3260": 7}
    machine.host(7)
    disks = ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    with pytest.raises(OperationError) as error:
        await disks.attach(iscsi_spec(), str(place / "plugin"))
    assert str(error.value) == (
        "failed to get any path for iscsi disk, last err seen:\nTimed out waiting for device at path "
        f"/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-{IQN}-lun-3 after 30s"
    )
    assert trio.current_time() == 30


@pytest.mark.parametrize(
    ("source", "link", "directory", "own"),
    [
        (
            {"targetWWNs": ["50060e801049cfd1", "50060e801049cfd2"], "lun": 0},
            "by-path/pci-0000:41:00.0-fc-0x50060e801049cfd2-lun-0",
            "50060e801049cfd1-50060e801049cfd2-lun-0",
            "[50060e801049cfd1 50060e801049cfd2]:0",
        ),
        (
            {"wwids": ["3600508b4 x"]},
            "by-id/scsi-3600508b4_x",
            "3600508b4_x",
            "[3600508b4 x]",
        ),
    ],
)
async def test_a_fibre_channel_disk(
    place: Path, machine: Machine, disk: str, source: dict[str, Any], link: str, directory: str, own: str
) -> None:
    scan, deleted = machine.host(0), machine.block(Path(disk).name)
    disks = FCDisks(tool=machine.tool, scsi=machine.scsi)
    volumes = attached(place, disks)
    spec = persistent_spec("uid", volume_of(fc={**source, "fsType": "ext4"}), read_only=False)
    assert spec.unique_name == f"kubernetes.io/fc/{own}"
    with pytest.raises(OperationError, match="no fc disk found"):
        await volumes.wait_for_attach(spec)
    assert scan.read_text() == "- - -"
    (machine.root / f"dev/disk/{link}").symlink_to(disk)
    await volumes.wait_for_attach(spec)
    await volumes.mount_device(spec, pod_of("p"))
    await volumes.set_up(spec, pod_of("p"), keep=False)
    shared = place / "root/plugins/kubernetes.io/fc" / directory
    assert str(shared) in mounted_below(place / "root")
    read = [(each.name, uid) for each, uid in volumes.read_back(str(place / "root"), _T)]
    assert read == [(directory, ""), ("pv", "uid-p")]
    await volumes.tear_down(PodMount(uid="uid-p", spec=spec))
    await volumes.unmount_device(spec)
    assert deleted.read_text() == "1"
    assert not shared.exists()


async def test_a_device_of_fibre_channel_is_read_back_under_its_pods_name(
    place: Path, machine: Machine, disk: str
) -> None:
    (machine.root / "dev/disk/by-id/scsi-w").symlink_to(disk)
    volumes = attached(place, FCDisks(tool=machine.tool, scsi=machine.scsi))
    spec = persistent_spec("uid", volume_of(fc={"wwids": ["w"]}, volumeMode="Block"), read_only=False)
    pod = pod_of("p")
    await volumes.wait_for_attach(spec)
    device, shared = await volumes.map_pod_device(spec, pod), volumes.global_map(spec)
    pod_map = place / "root/pods/uid-p/volumeDevices/kubernetes.io~fc"
    block_map.map_device(device, shared, str(pod_map), "pv", "uid-p")
    (pod_map / "other").symlink_to("/dev/null")

    def read() -> list[tuple[str, str]]:
        return [(each.name, uid) for each, uid in volumes.read_back(str(place / "root"), _T)]

    whole = read()
    (pod_map / "pv").unlink()
    without_link = read()
    block_map.unmap_device(shared, str(pod_map), "pv", "uid-p")
    assert whole == [("w", ""), ("pv", "uid-p")]
    assert without_link == [("w", ""), ("w", "uid-p")]


async def test_a_disk_belongs_to_the_group_of_its_pod(place: Path, machine: Machine, disk: str) -> None:
    """One that cannot be written is left as it is."""
    (machine.root / "dev/disk/by-id/scsi-w").symlink_to(disk)
    machine.host(0)
    machine.block(Path(disk).name)
    path = place / "root/pods/uid-p/volumes/kubernetes.io~fc/pv"
    pod = pod_of("p", securityContext={"fsGroup": 1234})
    for read_only in (False, True):
        volumes = attached(place, FCDisks(tool=machine.tool, scsi=machine.scsi))
        spec = persistent_spec("uid", volume_of(fc={"wwids": ["w"]}), read_only=read_only)
        await volumes.wait_for_attach(spec)
        await volumes.mount_device(spec, pod)
        await volumes.set_up(spec, pod, keep=False)
        assert path.stat().st_gid == 1234
        assert bool(os.statvfs(path).f_flag & os.ST_RDONLY) is read_only
        await volumes.tear_down(PodMount(uid="uid-p", spec=spec))
        await volumes.unmount_device(spec)


def test_which_disk_of_fibre_channel_is_meant() -> None:
    both = v1.FCVolumeSource(target_wwns=["a"], wwids=["w"])
    assert ids_of(both) == (("w",), "")
    assert ids_of(msgspec.structs.replace(both, lun=0)) == (("a",), "0")
    with pytest.raises(OperationError, match="fc: no fc disk information found"):
        ids_of(v1.FCVolumeSource(target_wwns=["a"]))
    with pytest.raises(OperationError, match="fc: no fc disk information found"):
        ids_of(v1.FCVolumeSource(lun=0))


def test_directories_of_fibre_channel_are_read_back() -> None:
    assert source_of("a-2") == v1.FCVolumeSource(wwids=["a", "2"])
    assert source_of("a-lun-b") is None
    assert source_of("a-b-lun-3") == v1.FCVolumeSource(target_wwns=["a", "b"], lun=3)
    assert source_of("w") == v1.FCVolumeSource(wwids=["w"])
    assert source_of("lun-3") is None


@pytest.mark.parametrize(
    "volume",
    [
        {"iscsi": {"targetPortal": "../../../x:1", "iqn": IQN, "lun": 0}},
        {"iscsi": {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 0, "iscsiInterface": "../x"}},
        {"fc": {"wwids": [".."]}},
        {"fc": {"targetWWNs": ["a/../.."], "lun": 0}},
    ],
)
async def test_names_that_lead_out_of_a_directory_fail_their_pod(
    volume: dict[str, Any], machine: Machine, place: Path
) -> None:
    spec = inline_spec(pod_of("p"), msgspec.convert({"name": "own", **volume}, v1.Volume))
    disks: Disks = ISCSIDisks(objects=None, tool=machine.tool, scsi=machine.scsi)
    if "fc" in volume:
        disks = FCDisks(tool=machine.tool, scsi=machine.scsi)
    with pytest.raises(OperationError, match="is no name of a"):
        await attached(place, disks).wait_for_attach(spec)


@pytest.mark.skipif(shutil.which("iscsiadm") is not None, reason="the tool is installed")
async def test_where_the_tools_are_not_installed_the_pod_is_told(place: Path, driver: DriverProcess) -> None:
    """In the kubelet's words; both wait for the controller to call the volume attached."""
    claims = Claims()
    claims.claim("target", {"iscsi": {"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 3}})
    claims.claim("fabric", {"fc": {"wwids": ["w"]}})
    pod = pod_of("p", "target", "fabric")
    names = [f"kubernetes.io/iscsi/10.0.0.1:{IQN}:3", "kubernetes.io/fc/[w]"]
    async with running_world(place, claims=claims, driver=driver) as world:
        short = await world.set_up(pod, patience=1)
        assert (short.unmounted, short.unattached) == (("fabric", "target"), ("fabric", "target"))
        assert world.room.volumes.in_use() == sorted(names)
        world.view = ReportedVolumes(frozenset(names), dict.fromkeys(names, ""))
        world.room.volumes.node_changed()
        await world.until(lambda: len(set(world.reasons("FailedMount"))) == 2)
        assert set(world.reasons("FailedMount")) == {
            'MountVolume.WaitForAttach failed for volume "pv-target" : exec: "iscsiadm": executable file not '
            "found in $PATH",
            'MountVolume.WaitForAttach failed for volume "pv-fabric" : no fc disk found',
        }
        await world.tear_down(pod)
        assert mounted_below(world.root) == []


async def test_a_tool_that_is_missing_is_an_error_of_its_volume() -> None:
    with pytest.raises(OperationError) as error:
        await run_tool(["no-such-tool"])
    assert str(error.value) == 'exec: "no-such-tool": executable file not found in $PATH'


_T: frozenset[str] = frozenset()
