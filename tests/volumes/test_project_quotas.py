"""Project quotas: the numbers that are given away, and a real filesystem that counts, where there is one."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.disks import counting_disk
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.podinfo.context import Features, NodeContext
from trio_kubelet.stats.volumes import QUOTA, WALK, MeasuredVolume, measure
from trio_kubelet.volumes import project_quotas
from trio_kubelet.volumes.manager import VolumeManager
from trio_kubelet.volumes.plan import EmptyDir, plan_volume
from trio_kubelet.volumes.project_quotas import FIRST, Counted, assign, counted, forget_below

MIB = 1 << 20


class Filesystem:
    """What the kernel knows, in memory: the project of each directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy: set[int] = set()
        self.projects: dict[int, int] = {}
        monkeypatch.setattr(project_quotas, "_counts", lambda directory: True)
        monkeypatch.setattr(project_quotas, "_in_use", lambda directory, number: number in self.busy)
        monkeypatch.setattr(project_quotas, "_project", lambda fd: self.projects.get(os.fstat(fd).st_ino, 0))
        monkeypatch.setattr(project_quotas, "_attributes", lambda fd: (0, 0, 0, 0, 0))
        monkeypatch.setattr(fcntl, "ioctl", self._set)

    def _set(self, directory: int, command: int, wanted: bytes) -> None:
        self.projects[os.fstat(directory).st_ino] = project_quotas._ATTRIBUTES.unpack(wanted)[3]

    def of(self, path: Path) -> int:
        return self.projects.get(path.stat().st_ino, 0)


@pytest.fixture(autouse=True)
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the numbers are written down."""
    directory = tmp_path / "etc"
    directory.mkdir()
    monkeypatch.setattr(project_quotas, "ETC", str(directory))
    return directory


def made(base: Path, *names: str) -> list[Path]:
    for name in names:
        (base / name).mkdir(parents=True)
    return [base / name for name in names]


def test_each_directory_has_a_number_and_gives_it_back(
    tmp_path: Path, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = Filesystem(monkeypatch)
    one, two, other = made(tmp_path, "pods/a/volumes/1", "pods/a/volumes/2", "pods/ab/volumes/1")
    (etc / "projects").write_text(f"5:/srv\n# of somebody\n{FIRST + 1}:/somewhere\nnot a line\n")
    (etc / "projid").write_text(f"web:5\nvolume{FIRST + 3}:{FIRST + 3}\n")
    (etc / "projid").chmod(0o600)
    filesystem.busy = {FIRST + 2}
    for path in (one, two, other, one):
        assert assign(str(path))
    numbers = [filesystem.of(path) for path in (one, two, other)]
    assert numbers == [FIRST, FIRST + 4, FIRST + 5]
    lines = (etc / "projects").read_text().splitlines()
    assert lines[:4] == ["5:/srv", "# of somebody", f"{FIRST + 1}:/somewhere", "not a line"]
    assert lines[4:] == [f"{FIRST}:{one}", f"{FIRST + 4}:{two}", f"{FIRST + 5}:{other}"]
    assert (etc / "projid").read_text().splitlines()[2:] == [f"volume{each}:{each}" for each in numbers]
    assert (etc / "projid").stat().st_mode & 0o777 == 0o600

    forget_below(str(tmp_path / "pods/a"))
    assert (etc / "projects").read_text().splitlines()[4:] == [f"{FIRST + 5}:{other}"]
    assert (etc / "projid").read_text().splitlines() == [
        "web:5",
        f"volume{FIRST + 3}:{FIRST + 3}",
        f"volume{FIRST + 5}:{FIRST + 5}",
    ]


def test_a_number_that_was_only_written_down_is_taken_up_again(
    tmp_path: Path, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent was killed between the files and the directory."""
    filesystem = Filesystem(monkeypatch)
    [one] = made(tmp_path, "v")
    (etc / "projects").write_text(f"{FIRST + 7}:{one}\n")
    assert assign(str(one))
    assert filesystem.of(one) == FIRST + 7


def test_what_cannot_be(tmp_path: Path, etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = made(tmp_path, "v")
    assert not assign(str(one)) or counted(str(one)) is not None  # whatever this filesystem is
    filesystem = Filesystem(monkeypatch)
    filesystem.busy = set(range(FIRST, FIRST + 200))
    with pytest.raises(ValueError, match="cannot find available quota ID"):
        assign(str(one))
    (etc / "projects").unlink()
    (etc / "projects").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="projects"):
        assign(str(one))
    assert not (tmp_path / "elsewhere").exists()
    assert counted(str(tmp_path / "none")) is None
    (tmp_path / "link").symlink_to(one)
    with pytest.raises(OSError, match="link"):
        assign(str(tmp_path / "link"))


def a_pod(host_users: bool | None, medium: str = "") -> v1.Pod:
    volume = v1.Volume(name="data", empty_dir=v1.EmptyDirVolumeSource(medium=medium))
    mount = v1.VolumeMount(name="data", mount_path="/data")
    spec = v1.PodSpec(containers=[v1.Container(name="c", volume_mounts=[mount])], volumes=[volume])
    spec.host_users = host_users
    return v1.Pod(metadata=v1.ObjectMeta(name="p", namespace="d", uid="u1"), spec=spec)


@pytest.mark.parametrize(
    ("gate", "host_users", "medium", "expected"),
    [
        (True, False, "", True),
        (False, False, "", False),
        (True, None, "", False),
        (True, True, "", False),
        (True, False, "Memory", False),
    ],
)
def test_which_volumes_are_counted(gate: bool, host_users: bool | None, medium: str, expected: bool) -> None:
    node = NodeContext(node_name="n", features=Features(quota_monitoring=gate), allocatable={"memory": "1Gi"})
    pod = a_pod(host_users, medium)
    plan = plan_volume(pod, (pod.spec.volumes or [])[0], node)
    assert isinstance(plan, EmptyDir)
    assert plan.counted is expected


@pytest.fixture(params=["xfs", "ext4"])
def counting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A filesystem that counts what projects have."""
    at = tmp_path / "disk"
    with ExitStack() as stack:
        try:
            stack.enter_context(counting_disk(request.param, at, tmp_path))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no {request.param} with project quotas here: {error}")
        yield at


@pytest.mark.node
def test_a_real_filesystem_counts(counting: Path, tmp_path: Path, etc: Path) -> None:
    one, two = made(tmp_path, "disk/pods/a/1", "disk/pods/a/2")
    for path in (one, two):
        assert counted(str(path)) is None
        assert assign(str(path))
        assert assign(str(path))
    assert counted(str(one)) == Counted(counted(str(two)).used, 1)  # type: ignore[union-attr]
    below = one / "deep" / "deeper"
    below.mkdir(parents=True)
    for number in range(50):
        (below / str(number)).write_bytes(bytes(100_000))
    os.sync()
    walked, source = measure(MeasuredVolume("v", str(one), True), SystemClock())
    found, by = measure(MeasuredVolume("v", str(one), True), SystemClock(), quotas=True)
    assert (source, by) == (WALK, QUOTA)
    assert walked is not None
    assert found is not None
    assert (found.used, found.inodes_used) == (walked.used, walked.inodes_used)
    assert found.inodes_used == 53
    assert found.used >= 5_000_000
    assert counted(str(two)) != counted(str(one))
    sub = counted(str(below))
    assert sub == counted(str(one)), "what is below belongs to the same project"


async def test_a_pod_ends_where_numbers_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_quotas, "ETC", str(tmp_path / "read-only"))
    node = NodeContext(node_name="n", root_dir=str(tmp_path), features=Features(quota_monitoring=True))
    manager = VolumeManager(lambda: node)
    await manager.set_up(a_pod(False))
    path = tmp_path / "pods/u1/volumes/kubernetes.io~empty-dir/data"
    assert path.is_dir()
    await manager.tear_down("u1")
    assert not path.exists()


@pytest.mark.node
async def test_the_volume_of_a_pod_is_counted_and_forgotten(counting: Path, etc: Path) -> None:
    node = NodeContext(node_name="n", root_dir=str(counting), features=Features(quota_monitoring=True))
    manager = VolumeManager(lambda: node)
    await manager.set_up(a_pod(False))
    path = counting / "pods/u1/volumes/kubernetes.io~empty-dir/data"
    (path / "file").write_bytes(bytes(3 * MIB))
    os.sync()
    found = counted(str(path))
    assert found is not None
    assert found.inodes == 2
    assert 3 * MIB <= found.used < 4 * MIB
    assert str(path) in (etc / "projects").read_text()
    await manager.tear_down("u1")
    assert (etc / "projects").read_text() == (etc / "projid").read_text() == ""
    assert not path.exists()
