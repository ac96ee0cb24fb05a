"""Volumes of files as their sources change, vanish and come back; real files, objects in memory."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import CredentialBundle, ObjectError
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import unmount_all
from trio_kubelet.volumes.linux import mount_at, mounts_below
from trio_kubelet.volumes.manager import VolumeManager
from trio_kubelet.volumes.subpath import SubPath, bind_sub_path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and giving files away needs root")

CONFIG_MAP = {"name": "v", "configMap": {"name": "m", "defaultMode": 0o644}}
SECRET = {"name": "v", "secret": {"secretName": "s", "defaultMode": 0o400}}
OTHER_USER = {"name": "i", "securityContext": {"runAsUser": 5}}
TOKEN = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}


class Objects:
    """The API server's objects."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[str, str]] = {"m": {"a": "1", "b": "2"}}
        self.secrets: dict[str, dict[str, bytes]] = {"s": {"k": b"hidden"}}
        self.anchors = b"anchors"
        self.certificate: CredentialBundle | None = CredentialBundle(b"key\n", b"chain\n")
        self.away = False
        self.tokens = 0
        self.registered: set[str] = set()

    def register(self, pod: v1.Pod) -> None:
        self.registered.add(pod.metadata.uid)

    def unregister(self, uid: str) -> None:
        self.registered.discard(uid)

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        self._ask()
        return v1.ConfigMap(data=self.maps[name]) if name in self.maps else None

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        self._ask()
        return v1.Secret(data=self.secrets[name]) if name in self.secrets else None

    async def service_account_token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str:
        self._ask()
        return f"token-{self.tokens}"

    async def trust_anchors(self, source: v1.ClusterTrustBundleProjection) -> bytes:
        if source.name is None:
            raise ObjectError("combination of signerName and labelSelector matched zero ClusterTrustBundles")
        return self.anchors

    async def pod_certificate(self, pod: v1.Pod, volume: str, index: int) -> CredentialBundle:
        if self.certificate is None:
            raise ObjectError("credential bundle is not issued yet")
        return self.certificate

    def _ask(self) -> None:
        if self.away:
            raise ObjectError("failed to sync cache: timed out waiting for the condition")


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = Objects()
        self.told: list[str] = []
        node = NodeContext(node_name="n", root_dir=str(root), allocatable={"memory": "1Gi", "cpu": "2"})
        self.volumes = VolumeManager(lambda: node, self.objects, events=self)

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        assert (type, reason) == ("Warning", "FailedMount")
        self.told.append(message)

    def record_node(self, type: str, reason: str, message: str) -> None:
        raise AssertionError("volumes are no affair of the node")

    def path(self, plugin: str = "configmap") -> Path:
        return self.root / f"pods/u/volumes/kubernetes.io~{plugin}/v"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield World(tmp_path)
    unmount_all(str(tmp_path))


def a_pod(*volumes: dict[str, Any], mounted: bool = True, **spec: Any) -> v1.Pod:
    mounts = [{"name": v["name"], "mountPath": f"/{v['name']}"} for v in volumes] if mounted else []
    spec = {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": list(volumes), **spec}
    return msgspec.convert({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}, v1.Pod)


def shown(path: Path) -> dict[str, str]:
    return {entry.name: entry.read_text() for entry in path.iterdir() if not entry.name.startswith("..")}


async def test_changes_are_shown_all_at_once_and_removed_keys_vanish(world: World) -> None:
    pod = a_pod(CONFIG_MAP)
    await world.volumes.set_up(pod)
    path = world.path()
    assert shown(path) == {"a": "1", "b": "2"}
    old = os.readlink(path / "..data")
    world.objects.maps["m"] = {"a": "new", "c": "3"}
    await world.volumes.set_up(pod)
    assert shown(path) == {"a": "new", "c": "3"}
    assert sorted(os.listdir(path)) == sorted(["..data", os.readlink(path / "..data"), "a", "c"])
    assert not (path / old).exists()
    inode = (path / "a").stat().st_ino
    await world.volumes.set_up(pod)
    assert (path / "a").stat().st_ino == inode


async def test_a_reader_never_sees_two_versions(world: World) -> None:
    """While the volume is updated again and again, both files of one look are of the same version."""
    pod, path = a_pod(CONFIG_MAP), world.path()
    world.objects.maps["m"] = {"a": "0", "b": "0"}
    await world.volumes.set_up(pod)
    stop, mixed, looks = threading.Event(), [], [0]

    def look() -> None:
        while not stop.is_set():
            try:
                directory = os.open(path / "..data", os.O_RDONLY)  # a program holds on to one version
            except FileNotFoundError:  # it was replaced between the link and what it leads to
                continue
            try:
                seen = [_read(name, directory) for name in "ab"]
            except FileNotFoundError:  # the old version went away under it
                continue
            finally:
                os.close(directory)
            looks[0] += 1
            if seen[0] != seen[1]:
                mixed.append(seen)

    thread = threading.Thread(target=look)
    thread.start()
    version, until = 0, trio.current_time() + 60
    try:
        while version < 50 or (looks[0] < 50 and trio.current_time() < until):
            version += 1
            world.objects.maps["m"] = {"a": str(version), "b": str(version)}
            await world.volumes.set_up(pod)
    finally:
        stop.set()
        thread.join()
    assert looks[0] > 0
    assert mixed == []


def _read(name: str, directory: int) -> bytes:
    descriptor = os.open(name, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(descriptor, 10)
    finally:
        os.close(descriptor)


async def test_secrets_and_tokens_are_on_filesystems_in_memory_of_their_own(world: World) -> None:
    projected = {"name": "t", "projected": {"defaultMode": 0o644, "sources": [TOKEN]}}
    await world.volumes.set_up(a_pod(SECRET, projected))
    for mounted in (world.path("secret"), world.root / "pods/u/volumes/kubernetes.io~projected/t"):
        found = mount_at(str(mounted))
        assert found is not None
        assert found.fs_type == "tmpfs"
        assert os.statvfs(mounted).f_blocks * os.statvfs(mounted).f_frsize == 1 << 30
    await world.volumes.tear_down("u")
    assert mounts_below(str(world.root)) == []
    assert not (world.root / "pods/u/volumes").exists()
    assert world.objects.registered == set()


async def test_what_a_pod_that_ends_is_shown_is_renewed_and_nothing_else_made(world: World) -> None:
    projected = {"name": "t", "projected": {"defaultMode": 0o644, "sources": [TOKEN]}}
    shown_before, pod = a_pod(projected), a_pod(projected, CONFIG_MAP, {"name": "e", "emptyDir": {}})
    token = world.root / "pods/u/volumes/kubernetes.io~projected/t/token"
    await world.volumes.renew(pod)
    assert not (world.root / "pods").exists()
    await world.volumes.set_up(shown_before)
    world.objects.tokens = 1
    await world.volumes.renew(pod)
    assert token.read_text() == "token-1"
    assert [path.name for path in (world.root / "pods/u/volumes").iterdir()] == ["kubernetes.io~projected"]
    world.objects.tokens, world.objects.away = 2, True
    await world.volumes.renew(pod)
    assert token.read_text() == "token-1"
    assert world.told == []
    await world.volumes.tear_down("u")
    assert world.objects.registered == set()


async def test_a_parts_mount_keeps_the_old_file(world: World) -> None:
    pod = a_pod(CONFIG_MAP)
    await world.volumes.set_up(pod)
    part = SubPath("v", str(world.path()), "a", str(world.root / "pods/u/volume-subpaths/v/c/0"))
    bind_sub_path(part)
    world.objects.maps["m"] = {"a": "new"}
    await world.volumes.set_up(pod)
    assert os.stat(part.target).st_size == 1
    await world.volumes.tear_down("u")
    assert mounts_below(str(world.root)) == []


async def test_thousands_of_volumes_have_their_objects_at_once(world: World) -> None:
    """The tokens of all volumes were looked through for each: a second in which nobody else had a turn."""
    bundle = {"clusterTrustBundle": {"signerName": "none", "path": "anchors"}}
    sources = [TOKEN, bundle, {"podCertificate": {"credentialBundlePath": "bundle"}}]
    pod = a_pod(*({"name": f"v{number}", "projected": {"sources": sources}} for number in range(3000)))
    for _ in within_cpu(1.0):
        world.told.clear()
        with pytest.raises(VolumeError, match="matched zero ClusterTrustBundles"):
            await world.volumes.set_up(pod)
    assert len(world.told) == 3000


async def test_thousands_of_volumes_that_fail_are_told_of_in_turns(world: World) -> None:
    pod = a_pod(*({"name": f"v{i}", "secret": {"secretName": "missing"}} for i in range(100)))
    told: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(each_turn, lambda: told.append(len(world.told)))
        with pytest.raises(VolumeError):
            await world.volumes.set_up(pod)
        nursery.cancel_scope.cancel()
    told.append(len(world.told))
    assert max(after - before for before, after in pairwise(told)) < 10
    assert len(world.told) == 100


async def each_turn(look: Callable[[], None]) -> None:
    """Looks in each turn of the event loop."""
    while True:
        look()
        await trio.lowlevel.checkpoint()


async def test_new_tokens_are_shown(world: World) -> None:
    pod = a_pod({"name": "v", "projected": {"defaultMode": 0o644, "sources": [TOKEN]}})
    await world.volumes.set_up(pod)
    world.objects.tokens += 1
    await world.volumes.set_up(pod)
    assert shown(world.path("projected")) == {"token": "token-1"}


CERTIFICATE = {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519"}}
BUNDLE = {"clusterTrustBundle": {"name": "b", "path": "anchors.pem"}}


def a_certificate(**paths: str) -> dict[str, Any]:
    return {"podCertificate": {**CERTIFICATE["podCertificate"], **paths}}


async def test_a_certificate_is_renewed_in_all_its_files_at_once(world: World) -> None:
    sources = [
        BUNDLE,
        a_certificate(credentialBundlePath="b"),
        a_certificate(keyPath="k", certificateChainPath="c"),
    ]
    pod = a_pod({"name": "v", "projected": {"defaultMode": 0o644, "sources": sources}})
    await world.volumes.set_up(pod)
    path = world.path("projected")
    assert shown(path) == {"anchors.pem": "anchors", "b": "key\nchain\n", "k": "key\n", "c": "chain\n"}
    found = mount_at(str(path))
    assert found is not None
    assert found.fs_type == "tmpfs"
    old = os.readlink(path / "..data")
    world.objects.certificate = CredentialBundle(b"new key\n", b"new chain\n")
    world.objects.anchors = b""
    await world.volumes.set_up(pod)
    assert shown(path) == {
        "anchors.pem": "", "b": "new key\nnew chain\n", "k": "new key\n", "c": "new chain\n"
    }  # fmt: skip
    assert not (path / old).exists()
    world.objects.certificate = None  # denied, say: the pod keeps what it has
    await world.volumes.set_up(pod)
    assert shown(path)["k"] == "new key\n"
    assert world.told == ['MountVolume.SetUp failed for volume "v" : credential bundle is not issued yet']


@pytest.mark.parametrize(
    "source", [TOKEN, a_certificate(keyPath="token"), {"clusterTrustBundle": {"name": "b", "path": "token"}}]
)
@pytest.mark.parametrize(
    ("spec", "mode", "owner"),
    [
        ({}, 0o644, (0, 0)),
        ({"securityContext": {"fsGroup": 2000}}, 0o640, (0, 2000)),
        ({"securityContext": {"runAsUser": 1000}}, 0o600, (1000, 0)),
        ({"securityContext": {"runAsUser": 1000, "fsGroup": 2000}}, 0o640, (1000, 2000)),
        ({"securityContext": {"runAsUser": 1000}, "initContainers": [OTHER_USER]}, 0o644, (0, 0)),
    ],
)
async def test_who_may_read_tokens_anchors_and_certificates(
    world: World, spec: dict[str, Any], mode: int, owner: tuple[int, int], source: dict[str, Any]
) -> None:
    volume = {"name": "v", "projected": {"defaultMode": 0o644, "sources": [source]}}
    await world.volumes.set_up(a_pod(volume, **spec))
    status = (world.path("projected") / "token").stat()
    assert (stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)) == (mode, owner)
    assert (world.path("projected") / "token").lstat().st_uid == owner[0]  # the link's own, too


async def test_a_missing_object_holds_the_pod_and_is_told(world: World) -> None:
    del world.objects.maps["m"]
    other = {"name": "other", "configMap": {"name": "also-missing", "defaultMode": 0o644}}
    pod = a_pod(CONFIG_MAP, other, {"name": "e", "emptyDir": {}})
    with pytest.raises(VolumeError) as error:
        await world.volumes.set_up(pod)
    assert error.value.told
    assert str(error.value).startswith("unmounted volumes=[other v], unattached volumes=[], ")
    assert world.told == [
        'MountVolume.SetUp failed for volume "v" : configmap "m" not found',
        'MountVolume.SetUp failed for volume "other" : configmap "also-missing" not found',
    ]
    assert (world.root / "pods/u/volumes/kubernetes.io~empty-dir/e").is_dir()
    world.objects.maps |= {"m": {"a": "1"}, "also-missing": {}}
    await world.volumes.set_up(pod)
    assert shown(world.path()) == {"a": "1"}


@pytest.mark.parametrize(
    ("medium", "problem"),
    [
        ("Disk", 'unknown storage medium "Disk"'),
        ("HugePagesOf2Mi", 'unknown storage medium "HugePagesOf2Mi"'),
        (
            "HugePages-2Mi",
            "medium HugePages-2Mi: hugePages storage requested, "
            "but there is no resource request for huge pages",
        ),
        (
            "HugePages-many",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ],
)
async def test_a_directory_that_cannot_be_made_is_told_as_a_mount_that_failed(
    world: World, medium: str, problem: str
) -> None:
    with pytest.raises(VolumeError) as error:
        await world.volumes.set_up(a_pod({"name": "v", "emptyDir": {"medium": medium}}))
    assert error.value.told
    assert world.told == [f'MountVolume.SetUp failed for volume "v" : {problem}']


async def test_of_a_pod_that_waits_for_long_no_more_is_told_than_of_its_volumes(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = float("inf")  # threads take real time
    del world.objects.maps["m"]
    for _ in range(6):
        with pytest.raises(VolumeError) as error:
            await world.volumes.set_up(a_pod(CONFIG_MAP))
        assert error.value.told
        autojump_clock.jump(50)
    assert world.told == ['MountVolume.SetUp failed for volume "v" : configmap "m" not found'] * 6


async def test_why_volumes_cannot_be_told_is_said_once_each_without_what_fails(world: World) -> None:
    del world.objects.maps["m"]
    odd = [{"name": f"odd{number:02}", "rbd": {"monitors": ["m"], "image": "i"}} for number in range(13)]
    with pytest.raises(VolumeError) as error:
        await world.volumes.set_up(a_pod(CONFIG_MAP, *reversed(odd)))
    assert not error.value.told
    head, _, cause = str(error.value).partition("]: ")
    names = " ".join(f"odd{number:02}" for number in range(13))
    assert head == f"unmounted volumes=[{names} v], unattached volumes=[], failed to process volumes=[{names}"
    assert cause == "; ".join(
        f'failed to get Plugin from volumeSpec for volume "odd{number:02}" err=no volume plugin matched'
        for number in range(2, 13)
    )


@pytest.mark.parametrize("trouble", ["away", "gone", "key"])
async def test_a_running_pod_keeps_what_it_has(world: World, trouble: str) -> None:
    volume = {"name": "v", "configMap": {"name": "m", "items": [{"key": "a", "path": "a"}]}}
    pod = a_pod(volume)
    await world.volumes.set_up(pod)
    if trouble == "away":
        world.objects.away = True
    elif trouble == "gone":
        del world.objects.maps["m"]
    else:
        del world.objects.maps["m"]["a"]
    await world.volumes.set_up(pod)
    assert shown(world.path()) == {"a": "1"}
    (told,) = world.told
    assert told.startswith('MountVolume.SetUp failed for volume "v" : ')


async def test_optional_objects_come_and_go(world: World) -> None:
    volume = {"name": "v", "configMap": {"name": "x", "optional": True, "defaultMode": 0o644}}
    pod = a_pod(volume)
    await world.volumes.set_up(pod)
    assert shown(world.path()) == {}
    world.objects.maps["x"] = {"a": "1"}
    await world.volumes.set_up(pod)
    assert shown(world.path()) == {"a": "1"}
    del world.objects.maps["x"]
    await world.volumes.set_up(pod)
    assert shown(world.path()) == {}
    world.objects.away = True
    with pytest.raises(VolumeError):  # away is not the same as missing
        await VolumeManager(world.volumes._node, world.objects).set_up(
            msgspec.structs.replace(pod, metadata=v1.ObjectMeta(name="n", namespace="ns", uid="new"))
        )


async def test_volumes_nobody_mounts_are_not_made(world: World) -> None:
    del world.objects.maps["m"]
    await world.volumes.set_up(a_pod(CONFIG_MAP, mounted=False))
    assert world.told == []
    assert not (world.root / "pods/u/volumes").exists()


async def test_all_troubles_of_a_projected_volume_are_told(world: World) -> None:
    sources = [
        {"configMap": {"name": "nope"}},
        {"secret": {"name": "s", "items": [{"key": "x", "path": "x"}]}},
        {},  # of a kind the API server dropped, as its feature gate is off
        {"clusterTrustBundle": {"signerName": "example.com/s", "path": "b"}},
        {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "k"}},
    ]
    world.objects.certificate = None
    with pytest.raises(VolumeError):
        await world.volumes.set_up(a_pod({"name": "v", "projected": {"sources": sources}}))
    assert world.told == [
        'MountVolume.SetUp failed for volume "v" : [configmap "nope" not found, '
        "references non-existent secret key: x, "
        "combination of signerName and labelSelector matched zero ClusterTrustBundles, "
        "credential bundle is not issued yet]"
    ]
