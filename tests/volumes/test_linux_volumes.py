"""Volumes on a real filesystem; those that mount need root."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.doors import CredentialBundle
from trio_kubelet.podinfo.recorder import EventRecorder
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import remove_tree, take_away, unmount_all
from trio_kubelet.volumes.linux import MS_BIND, mount, mount_at, mounts_below
from trio_kubelet.volumes.manager import VolumeManager
from trio_kubelet.volumes.subpath import SubPath, bind_sub_path

_GOLDEN = Path(__file__).parents[1] / "golden" / "cluster-node.json"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An agent's root directory, without mounts when the test is over."""
    directory = tmp_path / "root"
    directory.mkdir()
    yield directory
    unmount_all(str(directory))


def _pod(volumes: list[dict[str, Any]], uid: str = "u1", **spec: Any) -> v1.Pod:
    meta = {"name": "p", "namespace": "ns", "uid": uid, "labels": {"a": "b"}}
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    spec = {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes, **spec}
    return msgspec.convert({"metadata": meta, "spec": spec}, v1.Pod)


def _node(root: Path) -> NodeContext:
    return NodeContext(node_name="n", root_dir=str(root), allocatable={"memory": "24581684Ki", "cpu": "2"})


def _manager(root: Path, objects: _Objects | None = None) -> VolumeManager:
    return VolumeManager(lambda: _node(root), objects)


class _Objects:
    """Config maps and secrets of the recorded cluster."""

    def __init__(self) -> None:
        self.maps = {
            "cm": {"a": "1", "b.txt": "two", "UPPER": "x", "bin": ""},
            "kube-root-ca.crt": {"ca.crt": "ca"},
            "openshift-service-ca.crt": {"service-ca.crt": "ca"},
        }

    def register(self, pod: v1.Pod) -> None:
        pass

    def unregister(self, uid: str) -> None:
        pass

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None:
        return v1.ConfigMap(data=self.maps[name]) if name in self.maps else None

    async def secret(self, namespace: str, name: str) -> v1.Secret | None:
        return v1.Secret(data={"user": b"u", "pass": b"p"}) if name == "se" else None

    async def service_account_token(self, pod: v1.Pod, source: v1.ServiceAccountTokenProjection) -> str:
        return "token"

    async def trust_anchors(self, source: v1.ClusterTrustBundleProjection) -> bytes:
        return b"anchors"

    async def pod_certificate(self, pod: v1.Pod, volume: str, index: int) -> CredentialBundle:
        return CredentialBundle(b"key", b"chain")


def _listing(directory: Path) -> dict[str, str]:
    """Every path with kind, mode and owner as the recording has them; the random names made equal."""
    listing: dict[str, str] = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(parent, name)
            status = path.lstat()
            kind = "l" if path.is_symlink() else "d" if path.is_dir() else "f"
            owner = f"{status.st_uid}:{status.st_gid}"
            listing[str(path.relative_to(directory))] = f"{kind} {stat.S_IMODE(status.st_mode):o} {owner}"
    return {_without_stamp(path): entry for path, entry in listing.items()}


def _without_stamp(path: str) -> str:
    parts = ("..stamp" if part.startswith("..2") else part for part in path.split("/"))
    return "/".join(parts)


@needs_root
async def test_recorded_pod_directory(root: Path) -> None:
    golden = json.loads(_GOLDEN.read_text())
    pod = msgspec.convert(golden["pods"]["cfg"], v1.Pod)
    await PodDirectories(str(root)).make(pod)
    await _manager(root, _Objects()).set_up(pod)
    directory = root / "pods" / pod.metadata.uid
    recorded = {
        _without_stamp(line.split(" ")[0]): " ".join(line.split(" ")[1:4])
        for line in golden["podDirectoryOfCfg"]
        if not line.startswith((" ", "containers", "etc-hosts", "volume-subpaths"))
    }
    assert _listing(directory) == recorded
    assert stat.S_IMODE(directory.stat().st_mode) == 0o750
    tmpfs = {line.split(" ")[1].rpartition("/pods/")[2] for line in golden["mountsOfCfg"] if "tmpfs" in line}
    assert {m.path.rpartition("/pods/")[2] for m in mounts_below(str(root))} == tmpfs
    await _manager(root).tear_down(pod.metadata.uid)
    await PodDirectories(str(root)).remove(pod.metadata.uid)
    assert list((root / "pods").iterdir()) == []


@needs_root
async def test_memory_volume_is_limited_and_mounted_once(root: Path) -> None:
    pod = _pod([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}])
    await _manager(root).set_up(pod)
    path = root / "pods/u1/volumes/kubernetes.io~empty-dir/m"
    (path / "kept").write_text("x")
    await _manager(root).set_up(pod)  # another agent, after a restart
    assert (path / "kept").read_text() == "x"
    assert len(mounts_below(str(root))) == 1
    status = os.statvfs(path)
    assert status.f_blocks * status.f_frsize == 1 << 20


@needs_root
async def test_memory_volume_is_mounted_again_after_a_reboot(root: Path) -> None:
    pod = _pod([{"name": "m", "emptyDir": {"medium": "Memory"}}])
    await _manager(root).set_up(pod)
    unmount_all(str(root))
    await _manager(root).set_up(pod)
    assert len(mounts_below(str(root))) == 1


async def test_group_owns_new_empty_dir_and_is_not_given_it_again(root: Path) -> None:
    group = os.getgid()
    pod = _pod([{"name": "e", "emptyDir": {}}], securityContext={"fsGroup": group})
    await _manager(root).set_up(pod)
    path = root / "pods/u1/volumes/kubernetes.io~empty-dir/e"
    assert stat.S_IMODE(path.stat().st_mode) == 0o2777
    secret = path / "mine"
    secret.touch(0o600)
    await _manager(root).set_up(pod)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@needs_root
async def test_downward_api_volume_follows_the_pod(root: Path) -> None:
    volume = {
        "name": "d",
        "downwardAPI": {
            "items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "sub/name", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o400},
            ]
        },
    }
    manager = _manager(root)
    pod = _pod([volume])
    await manager.set_up(pod)
    path = root / "pods/u1/volumes/kubernetes.io~downward-api/d"
    assert (path / "labels").read_text() == 'a="b"'
    assert (path / "sub/name").read_text() == "p"
    assert stat.S_IMODE((path / "sub/name").stat().st_mode) == 0o400
    first = os.readlink(path / "..data")
    await manager.set_up(pod)
    assert os.readlink(path / "..data") == first

    items = volume["downwardAPI"]["items"][:1]  # type: ignore[index]
    changed = _pod([{"name": "d", "downwardAPI": {"items": items}}])
    changed.metadata.labels = {"a": "c"}
    await manager.set_up(changed)
    assert (path / "labels").read_text() == 'a="c"'
    entries = sorted(entry.name for entry in path.iterdir())
    assert entries == sorted(["..data", os.readlink(path / "..data"), "labels"])


@pytest.mark.parametrize(
    ("kind", "make", "reason"),
    [
        ("Directory", None, "is not a directory"),
        ("File", "dir", "is not a file"),
        ("Directory", "dir", ""),
        ("File", "file", ""),
        ("DirectoryOrCreate", None, ""),
        ("DirectoryOrCreate", "file", "is not a directory"),
        ("FileOrCreate", None, ""),
        ("Socket", "file", "is not a socket file"),
        ("CharDevice", "/dev/null", ""),
        ("BlockDevice", "/dev/null", "is not a block device"),
        ("", None, ""),
        ("Nonsense", "dir", "is an invalid volume type"),
    ],
)
async def test_host_path_types(root: Path, kind: str, make: str | None, reason: str) -> None:
    path = root / "thing"
    if make == "dir":
        path.mkdir()
    elif make == "file":
        path.touch()
    elif make is not None:
        path = Path(make)
    pod = _pod([{"name": "h", "hostPath": {"path": str(path), "type": kind}}])
    if reason:
        with pytest.raises(VolumeError, match=reason):
            await _manager(root).set_up(pod)
    else:
        await _manager(root).set_up(pod)
        assert not kind or path.exists()


async def test_a_path_of_the_node_is_made_however_deep_with_one_mode(root: Path) -> None:
    path = root / "thing" / "/".join("a" * 1500)
    pod = _pod([{"name": "h", "hostPath": {"path": f"{path}/", "type": "DirectoryOrCreate"}}])
    before = os.umask(0)
    try:
        await _manager(root).set_up(pod)
        modes = {stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, root / "thing")}
    finally:
        os.umask(before)
        remove_tree(str(root / "thing"))  # too deep for others who clean up
    assert modes == {0o755}


@pytest.mark.parametrize(
    "volume",
    [
        {"nfs": {"server": "s", "path": "/"}},
        {"persistentVolumeClaim": {"claimName": "c"}},
        {"emptyDir": {"medium": "HugePages"}},
        {"configMap": {"name": "c"}},
    ],
)
async def test_volume_that_cannot_be_made_says_so(root: Path, volume: dict[str, Any]) -> None:
    with pytest.raises(VolumeError, match="v"):
        await _manager(root).set_up(_pod([{"name": "v", **volume}]))


async def test_a_repository_is_a_kind_of_volume_that_is_off(root: Path) -> None:
    """Kubelet v1.36: the plugin is there, its feature gate is locked."""
    with pytest.raises(VolumeError) as caught:
        await _manager(root).set_up(_pod([{"name": "v", "gitRepo": {"repository": "x"}}]))
    assert str(caught.value).endswith(
        "failed to process volumes=[]: git-repo volume plugin has been disabled; if necessary, it may be "
        "re-enabled by enabling the feature-gate `GitRepoVolumeDriver`"
    )


async def test_missing_config_map_fails_unless_optional(root: Path) -> None:
    volume: dict[str, Any] = {"name": "v", "configMap": {"name": "nope"}}
    manager = _manager(root, _Objects())
    with pytest.raises(VolumeError, match='configmap "nope" not found'):
        await manager.set_up(_pod([volume]))
    volume["configMap"]["optional"] = True
    await manager.set_up(_pod([volume]))


def _sub_path(root: Path, path: str) -> SubPath:
    volume = root / "volume"
    volume.mkdir(exist_ok=True)
    return SubPath("v", str(volume), path, str(root / "pods/u1/volume-subpaths/v/c/0"))


@needs_root
def test_sub_path_is_made_with_the_mode_of_its_volume_and_bound_once(root: Path) -> None:
    part = _sub_path(root, "a/b")
    os.chmod(part.volume_path, 0o2775)
    bind_sub_path(part)
    bind_sub_path(part)
    assert stat.S_IMODE(Path(part.volume_path, "a/b").stat().st_mode) == 0o2775
    Path(part.target, "seen").touch()
    assert Path(part.volume_path, "a/b/seen").exists()
    assert len(mounts_below(str(root))) == 1


@needs_root
def test_sub_path_follows_links_inside_its_volume_only(root: Path) -> None:
    part = _sub_path(root, "file")
    Path(part.volume_path, "..data").mkdir()
    Path(part.volume_path, "..data/file").write_text("x")
    Path(part.volume_path, "file").symlink_to("..data/file")
    bind_sub_path(part)
    assert Path(part.target).read_text() == "x"


@pytest.mark.parametrize("link", ["/etc", "../outside", "/nonexistent/below"])
def test_sub_path_out_of_its_volume_is_refused(root: Path, link: str) -> None:
    (root / "outside").mkdir()
    part = _sub_path(root, "evil/passwd")
    Path(part.volume_path, "evil").symlink_to(link)
    with pytest.raises(VolumeError):
        bind_sub_path(part)
    assert not Path(part.target).exists()
    assert list((root / "outside").iterdir()) == []


@needs_root
def test_sub_path_is_bound_anew_when_it_became_another_file(root: Path) -> None:
    part = _sub_path(root, "f")
    file = Path(part.volume_path, "f")
    file.write_text("old")
    bind_sub_path(part)
    file.unlink()
    file.write_text("new")
    bind_sub_path(part)
    assert Path(part.target).read_text() == "new"


@needs_root
def test_sub_path_is_bound_anew_when_it_shows_nothing_any_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubernetes 138856: a directory of a server that was made anew leaves a mount that says ESTALE."""
    part, real = _sub_path(root, "part"), os.stat
    bind_sub_path(part)

    def stat_of(path: Any, **more: Any) -> os.stat_result:
        if path == part.target and mount_at(part.target) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat_of)
        bind_sub_path(part)
    assert os.path.samefile(part.target, Path(part.volume_path, "part"))
    assert len(mounts_below(part.target)) == 1


@needs_root
@pytest.mark.parametrize("kinds", [("file", "directory"), ("directory", "file")])
def test_sub_path_is_bound_anew_when_it_became_something_else(root: Path, kinds: tuple[str, str]) -> None:
    """The container, which had run before, never started again."""
    part = _sub_path(root, "x")
    there = Path(part.volume_path, "x")
    for kind in kinds:
        if kind == "directory":
            there.mkdir()
            bind_sub_path(part)
            assert Path(part.target).is_dir()
            there.rmdir()
        else:
            there.touch()
            bind_sub_path(part)
            assert Path(part.target).is_file()
            there.unlink()


@needs_root
def test_nothing_mounted_is_ever_removed(root: Path) -> None:
    precious, pod = root / "precious", root / "pods" / "u"
    precious.mkdir()
    (precious / "data").write_text("x")
    (pod / "volumes").mkdir(parents=True)
    (pod / "volumes" / "h").mkdir()
    (pod / "volumes" / "link").symlink_to(precious)
    mount(str(precious), str(pod / "volumes" / "h"), flags=MS_BIND)
    with pytest.raises(OSError, match="still mounted"):
        remove_tree(str(pod))
    unmount_all(str(pod))
    assert mount_at(str(pod / "volumes" / "h")) is None
    remove_tree(str(pod))
    assert not pod.exists()
    assert (precious / "data").read_text() == "x"


def test_deeply_nested_directories_are_removed(root: Path) -> None:
    path = root / "pod"
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    remove_tree(str(path))
    assert not path.exists()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_directories_of_more_levels_than_are_open_are_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("trio_kubelet.volumes.files._MOST_OPEN", most)
    for number in range(4**4):
        path = root.joinpath("pod", *(str(number // 4**level % 4) for level in range(4)))
        path.mkdir(parents=True)
        (path / "file").touch()
        (path.parent / "link").unlink(missing_ok=True)
        (path.parent / "link").symlink_to(root)
    remove_tree(str(root / "pod"))
    assert os.listdir(root) == []


def test_directories_are_removed_from_a_disk_that_has_no_room_for_another_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "pod" / "a" / "b" / "c").mkdir(parents=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    remove_tree(str(root / "pod"))
    assert os.listdir(root) == []


def test_nothing_else_is_removed_where_a_directory_is_moved_away_meanwhile(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.volumes.files._MOST_OPEN", 1)
    (root / "pod" / "a" / "b").mkdir(parents=True)
    (root / "other").mkdir()
    (root / "other" / "precious").touch()

    def move_and_enter(name: str, flags: int, directory: int) -> int:
        if name == "..":
            (root / "pod" / "a" / "b").rename(root / "other" / "b")
        return os.open(name, flags, dir_fd=directory)

    monkeypatch.setattr("trio_kubelet.volumes.files.enter", move_and_enter)
    with pytest.raises(OSError, match="moved"):
        remove_tree(str(root / "pod"))
    assert (root / "other" / "precious").exists()


def test_what_others_remove_meanwhile_is_gone_too(root: Path) -> None:
    """Somebody tidies up at the same time: each comes late to many names."""
    for number in range(40):
        (root / "pod" / f"{number}" / "below").mkdir(parents=True)
        for place in ("pod", f"pod/{number}", f"pod/{number}/below"):
            for each in range(20):
                (root / place / f"{number}-{each}").touch()
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(remove_tree, str(root / "pod")) for _ in range(4)]:
            done.result()
    assert os.listdir(root) == []


def test_a_large_directory_is_removed_with_few_names_in_memory(root: Path) -> None:
    (root / "pod" / "below").mkdir(parents=True)
    for number in range(1500):
        (root / "pod" / f"{number:0255}").touch()
        (root / "pod" / "below" / f"{number:0255}").touch()
    tracemalloc.start()
    try:
        remove_tree(str(root / "pod"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert os.listdir(root) == []
    assert peak < 240_000  # as with 500 names and 80,000; a file's buffer is 128 KiB from Python 3.14 on


async def test_directories_of_pods_are_listed_and_files_are_not(root: Path) -> None:
    directories = PodDirectories(str(root))
    assert await directories.pods() == []
    await directories.make(_pod([], uid="a"))
    (root / "pods" / "file").touch()
    assert await directories.pods() == ["a"]
    await directories.remove("a")
    await directories.remove("a")
    assert await directories.pods() == []


async def test_hung_filesystem_fails_its_pod_at_the_deadline(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the pod is told which of its volumes hangs, as long as it does."""
    monkeypatch.setattr("trio_kubelet.common.lanes.PATIENCE", 0.2)
    released = threading.Event()
    monkeypatch.setattr("trio_kubelet.volumes.manager.check_host_path", lambda plan: released.wait(30))
    events = EventRecorder(SystemClock())
    told: list[str] = []
    events.pod_events.listen(lambda event: told.append(event.message))
    manager = VolumeManager(lambda: _node(root), timeout=1, events=events)
    volumes = [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/nfs"}}]
    try:
        for why in ("timed out after 1s", "volumes: earlier work still hangs"):
            with pytest.raises(VolumeError) as failed:
                await manager.set_up(_pod(volumes))
            names = "unmounted volumes=[h], unattached volumes=[], failed to process volumes=[]"
            assert str(failed.value) == f"{names}: {why}"
            assert failed.value.told
            assert told.pop() == f'MountVolume.SetUp failed for volume "h" : {why}'
        await manager.set_up(_pod([{"name": "e", "emptyDir": {}}], uid="other"))
    finally:
        released.set()
    await manager.set_up(_pod(volumes))


async def test_files_that_take_long_to_remove_are_told_of_as_such(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions take minutes: that is no failure to unmount, though the pod is not done with before."""
    monkeypatch.setattr("trio_kubelet.common.lanes.PATIENCE", 0.2)
    released = threading.Event()

    def take_away_slowly(path: str) -> None:
        released.wait(30)
        take_away(path)

    monkeypatch.setattr("trio_kubelet.volumes.manager.take_away", take_away_slowly)
    manager = VolumeManager(lambda: _node(root), timeout=1)
    pod = _pod([{"name": "e", "emptyDir": {}}])
    await manager.set_up(pod)
    try:
        for _ in range(2):  # as long as it takes
            with pytest.raises(VolumeError, match="files are being removed"):
                await manager.tear_down(pod.metadata.uid)
    finally:
        released.set()
    await manager.tear_down(pod.metadata.uid)


@needs_root
@pytest.mark.parametrize("path", ["data/", "./data", "a//b/", "a/./b"])
def test_a_sub_path_is_cleaned_before_it_is_made(root: Path, path: str) -> None:
    """As Go does; the first start of such a container failed."""
    (root / "volume").mkdir()
    target = root / "pods/u/volume-subpaths/v/c/0"
    bind_sub_path(SubPath("v", str(root / "volume"), path, str(target)))
    (target / "file").touch()
    assert (root / "volume" / path / "file").exists()


CHROOT = """
    import os, sys
    from trio_kubelet.common.mountinfo import mount_point, mounts
    from trio_kubelet.volumes.linux import make_rshared, mount
    root = sys.argv[1]
    mount("proc", f"{root}/proc", "proc")
    os.chroot(root)
    os.chdir("/")
    assert mount_point("/") is None, mounts()
    for _ in range(2):
        make_rshared("/data")
    print([(found.path, found.shared) for found in mounts() if found.path == "/data"])
"""


@needs_root
def test_a_root_directory_is_shared_in_a_chroot_whose_root_is_no_mount_point(root: Path) -> None:
    for name in ("proc", "data"):
        (root / name).mkdir()
    code = textwrap.dedent(CHROOT)
    command = ["unshare", "--mount", sys.executable, "-c", code, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[('/data', True)]\n", "")
