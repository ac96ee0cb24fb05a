"""What is mounted in a pod's directory goes before the directory does, and keeps its files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_kubelet.common import mountinfo
from trio_kubelet.volumes import files, mount_points
from trio_kubelet.volumes.files import take_away, unmount_all, unmount_volumes
from trio_kubelet.volumes.linux import MS_BIND, mount, mount_tmpfs, mounts_below
from trio_kubelet.volumes.mount_points import is_mount_point, mounted_volumes
from trio_kubelet.volumes.subpath import SubPath, bind_sub_path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Path]:
    """A pod's directory, without mounts when the test is over."""
    directory = tmp_path / "pods" / "u"
    directory.mkdir(parents=True)
    yield directory
    unmount_all(str(directory))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A directory of the host, with a file in it."""
    directory = tmp_path / "precious"
    directory.mkdir()
    (directory / "data").write_text("x")
    return directory


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each look at the kernel's list of mounts."""
    lists: list[str] = []
    real = mountinfo._read

    def read() -> str:
        lists.append(real())
        return lists[-1]

    monkeypatch.setattr(mountinfo, "_read", read)
    return lists


@pytest.fixture(params=["openat2", "the list"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that tells, and one that has only its list."""
    if request.param == "the list":
        monkeypatch.setattr(files, "can_tell", lambda: False)
        monkeypatch.setattr(mount_points, "can_tell", lambda: False)
    return str(request.param)


def bind(source: Path, target: Path) -> Path:
    """Mounts a file or directory at a target, which is made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir() if source.is_dir() else target.touch()
    mount(str(source), str(target), flags=MS_BIND)
    return target


def clear(pod: Path) -> None:
    unmount_volumes(str(pod))
    take_away(str(pod))


def test_volumes_are_found_where_they_are_mounted(pod: Path, precious: Path) -> None:
    found = [
        bind(precious, pod / "volumes/kubernetes.io~empty-dir/memory"),
        bind(precious / "data", pod / "volumeDevices/kubernetes.io~csi/block"),
        bind(precious, pod / "volume-subpaths/v/c/0"),
        bind(precious / "data", pod / "volume-subpaths/v/c/1"),
    ]
    (pod / "volumes/kubernetes.io~empty-dir/disk/a/b/c").mkdir(parents=True)
    bind(precious, pod / "volumes/kubernetes.io~empty-dir/disk/a/mounted-by-a-container")
    (pod / "volumes/kubernetes.io~empty-dir/link").symlink_to(found[0])
    (pod / "volumes/kubernetes.io~other").symlink_to(found[0].parent)
    assert sorted(mounted_volumes(str(pod))) == sorted(map(str, found))


def test_volumes_go_without_a_look_at_the_list(pod: Path, precious: Path, looks: list[str]) -> None:
    directory = pod / "volumes/kubernetes.io~empty-dir/memory"
    directory.mkdir(parents=True)
    mount_tmpfs(str(directory), 0)
    mount_tmpfs(str(directory), 0)
    (directory / "a").mkdir()
    bind(precious / "data", pod / "volume-subpaths/v/c/0")
    (pod / "plugins/p").mkdir(parents=True)
    clear(pod)
    assert looks == []
    assert not pod.exists()
    assert mounts_below(str(pod)) == []


def test_what_containers_mounted_goes_and_keeps_its_files(pod: Path, precious: Path, kernel: str) -> None:
    """With bidirectional propagation what a container mounts is mounted on the host, too."""
    empty_dirs = pod / "volumes/kubernetes.io~empty-dir"
    bind(precious, empty_dirs / "disk/a/b/c")
    bind(precious / "data", empty_dirs / "disk/a/file")
    (empty_dirs / "memory").mkdir()
    mount_tmpfs(str(empty_dirs / "memory"), 0)
    bind(precious, empty_dirs / "memory/inner")
    bind(precious, pod / "containers/c/odd")
    bind(precious, pod / "odd")
    clear(pod)
    assert not pod.exists()
    assert mounts_below(str(pod)) == []
    assert (precious / "data").read_text() == "x"


def test_what_is_busy_stays_and_keeps_its_files(pod: Path, precious: Path, kernel: str) -> None:
    held = bind(precious, pod / "volumes/kubernetes.io~empty-dir/disk/held")
    descriptor = os.open(held, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="busy"):
            clear(pod)
        assert (precious / "data").read_text() == "x"
    finally:
        os.close(descriptor)
    clear(pod)
    assert not pod.exists()
    assert (precious / "data").read_text() == "x"


def test_a_link_to_a_directory_goes_and_not_what_it_names(pod: Path, precious: Path, kernel: str) -> None:
    (pod / "link").symlink_to(precious)
    (pod / "volumes").symlink_to(precious)
    clear(pod)
    assert not pod.exists()
    assert (precious / "data").read_text() == "x"
    clear(pod)


@pytest.mark.usefixtures("kernel")
def test_a_mount_point_is_told_from_what_is_mounted_nowhere(pod: Path, precious: Path) -> None:
    mounted = [bind(precious, pod / "directory"), bind(precious / "data", pod / "file")]
    (pod / "plain").mkdir()
    (pod / "link").symlink_to(mounted[0])
    others = [pod / "plain", pod / "link", pod / "none", pod / "none/below", pod / "file/below"]
    assert [is_mount_point(str(path)) for path in (*mounted, *others)] == [True] * 2 + [False] * 5


def test_parts_of_volumes_are_bound_without_a_look_at_the_list(
    pod: Path, precious: Path, looks: list[str]
) -> None:
    """A container may have thousands, and the list has a line for each."""
    target = pod / "volume-subpaths/v/c/0"
    part = SubPath("v", str(precious), "data", str(target))
    bind_sub_path(part)
    bind_sub_path(part)
    (precious / "data").unlink()
    (precious / "data").write_text("anew")
    bind_sub_path(part)
    assert looks == []
    assert target.read_text() == "anew"
    assert [found.path for found in mounts_below(str(pod))] == [str(target)]
