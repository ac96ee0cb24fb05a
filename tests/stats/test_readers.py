"""Cgroups of both versions, the machine, and files on disk, read from made-up directories."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hung_filesystem import hung_filesystem, must_end
from tests.stats.trees import V1_FILES, V2_FILES, hierarchies, write_cgroup, write_machine
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.machine import node_reader
from trio_kubelet.machine.cgroup_reader import cgroup_reader, container_id
from trio_kubelet.machine.values import MAX, NO_PRESSURES, CgroupDetail, CgroupPressure, DiskIO, Pressures
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.stats import cgroup_details, disk
from trio_kubelet.stats.cgroup_details import file_limit, open_files
from trio_kubelet.stats.cgroup_map import map_cgroups
from trio_kubelet.stats.filesystems import block_devices

CLOCK = SystemClock()
POD = "/kubepods/burstable/podab-12"
NO_LIMIT = 9223372036854771712


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_cgroup_has_used(tmp_path: Path, version: int) -> None:
    write_cgroup(tmp_path, POD, version, pid=77)
    use = cgroup_reader(hierarchies(tmp_path, version), CLOCK).use(POD)
    assert use is not None
    assert use.cpu == {1: 2392026661 + 77, 2: (2392026 + 77) * 1000}[version]
    assert (use.memory, use.working_set, use.rss) == (479232, 379232, 57344)
    assert (use.cache, use.swap, use.mapped) == (106496, 20480, 12288)
    assert (use.active_file, use.inactive_file) == (6496, 100000)
    assert (use.page_faults, use.major_page_faults, use.processes) == (1101, 3, 1)
    assert use.memory_limit == 67108864
    assert use.swap_limit > 2**62
    assert use.cpu_pressure.some.total == (800 if version == 2 else 0)


def test_pressure(tmp_path: Path) -> None:
    """A line or number that makes no sense costs only what it says; whole percents are written as Go does."""
    write_cgroup(tmp_path, POD, 2)
    (tmp_path / POD[1:] / "cpu.pressure").write_text(
        "some avg10=1.50 avg60=7.00 avg300=0.25 total=800\nfull avg10=nan avg60=7 avg300=101.00 total=x\n"
    )
    (tmp_path / POD[1:] / "io.pressure").unlink()
    use = cgroup_reader(hierarchies(tmp_path, 2), CLOCK).use(POD)
    assert use is not None
    assert use.cpu_pressure == Pressures(CgroupPressure(0, 0, 0, 0), CgroupPressure(800, 1.5, 7, 0.25))
    assert type(use.cpu_pressure.some.avg60) is int
    assert use.io_pressure == NO_PRESSURES


def test_many_cgroups_are_read_in_order(tmp_path: Path) -> None:
    cgroups = [f"/kubepods/pod{number}" for number in range(40)]
    for number in range(0, 40, 2):
        write_cgroup(tmp_path, cgroups[number], 1, pid=100 + number, memory=200_000 + number)
    reader = cgroup_reader(hierarchies(tmp_path, 1), CLOCK)
    uses = reader.uses(cgroups)
    assert [use and use.memory for use in uses] == [None if n % 2 else 200_000 + n for n in range(40)]
    assert reader.processes(cgroups) == [[] if n % 2 else [100 + n] for n in range(40)]
    uncounted = reader.uses(cgroups, processes=False)
    assert [use.processes for use in uncounted if use is not None] == [0] * 20
    details = reader.details(cgroups[:2], [None, CgroupDetail(cpu_shares=77)])
    assert [each.cpu_shares for each in details] == [102, 77]


def test_limits_are_read_again_when_another_one_is_in_force(tmp_path: Path) -> None:
    write_cgroup(tmp_path, POD, 1)
    memory = tmp_path / "memory" / POD[1:]
    stat = (memory / "memory.stat").read_text()
    reader = cgroup_reader(hierarchies(tmp_path, 1), CLOCK)

    def limits() -> tuple[int, int]:
        use = reader.use(POD)
        assert use is not None
        return use.memory_limit, use.swap_limit

    assert limits() == (67108864, NO_LIMIT)
    (memory / "memory.limit_in_bytes").write_text("4096\n")
    assert limits() == (67108864, NO_LIMIT)
    (memory / "memory.stat").write_text(stat.replace("67108864", "4096"))
    assert limits() == (4096, NO_LIMIT)
    # No limit is in force: there is none of its own. Only one above is: there is none either.
    (memory / "memory.stat").write_text(stat.replace("67108864", str(NO_LIMIT)))
    assert limits() == (NO_LIMIT, NO_LIMIT)
    (memory / "memory.limit_in_bytes").write_text(f"{NO_LIMIT}\n")
    (memory / "memory.stat").write_text(stat.replace("67108864", "8192"))
    assert limits() == (NO_LIMIT, NO_LIMIT)
    # Without a memory.stat they are what the files say, without these none.
    (memory / "memory.stat").unlink()
    (memory / "memory.memsw.limit_in_bytes").write_text("12288\n")
    assert limits() == (NO_LIMIT, 12288)


@pytest.mark.parametrize("version", [1, 2])
def test_what_else_is_known_of_a_cgroup(tmp_path: Path, version: int) -> None:
    write_cgroup(tmp_path, POD, version, pid=77)
    detail = cgroup_reader(hierarchies(tmp_path, version), CLOCK).detail(POD)
    assert (detail.cpu_period, detail.cpu_quota) == (100_000, 10_000)
    assert (detail.memory_peak, detail.memory_failures, detail.oom_kills, detail.threads) == (999424, 7, 2, 2)
    total = (("Total", 12288),) if version == 1 else ()
    assert detail.io == (DiskIO("254:0", 8192, 4096, 2, 1, total),)
    assert detail.created_ns > 0
    if version == 1:
        assert (detail.cpu_user, detail.cpu_shares, detail.threads_limit) == (2_370_000_000, 102, 0)
        assert (detail.throttled, detail.burst_periods) == (20942055880, 1)
    else:
        assert (detail.cpu_user, detail.cpu_shares, detail.threads_limit) == (1_500_000, 80, 100)
        assert (detail.throttled, detail.burst_periods) == (250_000_000, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_that_is_gone(tmp_path: Path, version: int) -> None:
    reader = cgroup_reader(hierarchies(tmp_path, version), CLOCK)
    assert reader.use("/kubepods/podx") is None
    assert reader.detail("/kubepods/podx").created_ns == 0
    assert reader.children("/kubepods/podx") == []
    assert reader.processes(["/kubepods/podx"]) == [[]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.sampled_from([(1, controller, name) for controller in V1_FILES for name in V1_FILES[controller]])
    | st.sampled_from([(2, "", name) for name in V2_FILES]),
    st.binary(max_size=60) | st.none(),
)
def test_one_bad_or_missing_file_costs_only_what_it_says(
    tmp_path: Path, which: tuple[int, str, str], content: bytes | None
) -> None:
    version, controller, name = which
    write_cgroup(tmp_path, POD, version, pid=7)
    path = tmp_path / controller / POD[1:] / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    reader = cgroup_reader(hierarchies(tmp_path, version), CLOCK)
    use, detail = reader.use(POD), reader.detail(POD)
    assert use is not None
    for value in (use.cpu or 0, use.memory or 0, use.working_set, use.rss, detail.cpu_quota, detail.periods):
        assert 0 <= value <= MAX


def test_the_root_of_version_2_has_the_machines_memory(tmp_path: Path) -> None:
    write_cgroup(tmp_path, "/", 2)
    (tmp_path / "memory.current").unlink()
    use = cgroup_reader(hierarchies(tmp_path, 2), CLOCK).use("/")
    assert use is not None
    assert use.memory is not None
    assert use.memory > 1 << 20


@pytest.mark.parametrize(
    ("driver", "pod", "container"),
    [
        ("cgroupfs", "/kubepods/besteffort/podu-1", "abc"),
        (
            "systemd",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice",
            "cri-containerd-abc.scope",
        ),
    ],
)
def test_cgroups_are_found_whatever_the_driver_calls_them(
    tmp_path: Path, driver: str, pod: str, container: str
) -> None:
    write_cgroup(tmp_path, f"{pod}/{container}", 2)
    write_cgroup(tmp_path, pod.replace("1", "2"), 2)
    reader = cgroup_reader(hierarchies(tmp_path, 2), CLOCK)
    found = map_cgroups(reader, CgroupNames("/", driver), {"u-1": ["abc"], "gone": []})
    assert found.pods == {"u-1": pod}
    assert found.containers == {"abc": f"{pod}/{container}"}
    # What is known is not looked for again; a pod with something new is.
    assert map_cgroups(reader, CgroupNames("/", driver), {"u-1": ["abc"]}, found) == found
    write_cgroup(tmp_path, f"{pod}/def", 2)
    assert map_cgroups(reader, CgroupNames("/", driver), {"u-1": ["abc"]}, found) == found
    more = map_cgroups(reader, CgroupNames("/", driver), {"u-1": ["abc", "def"], "gone": []}, found)
    assert more.containers == {**found.containers, "def": f"{pod}/def"}


def test_the_id_in_a_cgroups_name() -> None:
    assert container_id("crio-0123.scope") == "0123"
    assert container_id("0123") == "0123"


def test_the_machine(tmp_path: Path) -> None:
    write_machine(tmp_path)
    proc = str(tmp_path)
    assert node_reader.boot_time(proc) == 1795258200 * 10**9
    tasks = node_reader.processes_of_machine(CLOCK, proc)
    assert (tasks.limit, tasks.running) == (32768, 166)
    assert node_reader.cgroup_of(proc=proc) == "/agent"
    (tmp_path / "self/cgroup").write_text("4:memory:/process_api/x\n2:cpuacct:/\n1:cpu:/\n0::/\n")
    assert node_reader.cgroup_of(proc=proc) == ""  # CPU and memory disagree
    (tmp_path / "self/cgroup").write_text("4:memory:/\n2:cpu,cpuacct:/\n1:name=systemd:/kubelet.service\n")
    assert node_reader.cgroup_of(proc=proc) == "/kubelet.service"  # systemd's tree decides
    assert block_devices(proc) == {"254:0": "/dev/vda"}
    network, gone = node_reader.NetworkReader(CLOCK, proc).of([1, 2])
    assert network is not None
    assert [each.name for each in network.interfaces] == ["eth0"]
    assert gone is None


def test_nothing_is_known_of_a_machine_without_proc(tmp_path: Path) -> None:
    proc = str(tmp_path / "none")
    assert node_reader.boot_time(proc) == 0
    assert node_reader.processes_of_machine(CLOCK, proc).limit is None
    assert node_reader.cgroup_of(proc=proc) == ""
    assert block_devices(proc) == {}
    assert node_reader.filesystem_of(proc, CLOCK) is None


def test_open_files_of_processes_and_of_one_that_ended(tmp_path: Path) -> None:
    write_machine(tmp_path)
    found = open_files([1, 4711], str(tmp_path))
    assert (found.descriptors, found.sockets, found.limit) == (3, 1, 20000)
    assert file_limit(b"Max open files  unlimited  unlimited  files\n") == -1
    assert file_limit(b"Max open files\n") is None
    assert open_files([], str(tmp_path)).limit is None


def test_no_more_open_files_are_listed_than_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in "123":
        (tmp_path / pid / "fd").mkdir(parents=True)
        for number in range(30):
            (tmp_path / pid / "fd" / str(number)).symlink_to("socket:[1]")
    size = (tmp_path / "1" / "fd").stat().st_size  # of real ones: the number of open files, or 0
    listed = []
    scandir = os.scandir

    def counting(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(cgroup_details, "_MOST_DESCRIPTORS", 40)
    monkeypatch.setattr(os, "listdir", None)
    monkeypatch.setattr(os, "scandir", counting)
    found = open_files([1, 2, 3], str(tmp_path))
    assert listed == [f"{tmp_path}/1/fd", f"{tmp_path}/2/fd"]
    assert (found.descriptors, found.sockets) == (30 + max(11, size) + size, 30)


def test_what_files_take(tmp_path: Path) -> None:
    data = tmp_path / "volume"
    (data / "deep" / "er").mkdir(parents=True)
    (data / "a").write_bytes(bytes(100_000))
    os.link(data / "a", data / "deep" / "same")
    (data / "deep" / "er" / "b").write_bytes(b"x")
    (data / "link").symlink_to("/etc")
    blocks = sum(
        os.lstat(path).st_blocks * 512
        for path in (data, data / "deep", data / "deep/er", data / "a", data / "deep/er/b", data / "link")
    )
    use = disk.tree_use(str(data), CLOCK, 100)
    assert use is not None
    assert (use.used, use.inodes) == (blocks, 6)
    flat = disk.files_use(str(data), CLOCK)
    assert flat is not None
    assert flat.inodes == 2  # the file and the link, no directories
    with pytest.raises(disk.TooManyFiles):
        disk.tree_use(str(data), CLOCK, 3)


def test_each_name_of_a_file_counts_for_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for number in range(19):
        os.link(tmp_path / "file", tmp_path / str(number))
    pauses: list[float] = []
    monkeypatch.setattr(disk, "_PAUSE_EVERY", 5)
    monkeypatch.setattr(time, "sleep", pauses.append)
    use = disk.tree_use(str(tmp_path), CLOCK, 21, pause=True)
    assert use is not None
    assert use.inodes == 2
    assert len(pauses) == 4
    with pytest.raises(disk.TooManyFiles):
        disk.tree_use(str(tmp_path), CLOCK, 20)


def nested(top: Path, name: str, levels: int) -> int:
    """Makes directories in each other, however long their path; a descriptor of the deepest."""
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=descriptor)
        above, descriptor = descriptor, os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(above)
    return descriptor


def test_files_below_a_path_that_is_too_long_are_counted(tmp_path: Path) -> None:
    deepest = nested(tmp_path, "x" * 250, 20)
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=deepest)
    os.write(file, bytes(range(256)) * 4000)
    os.close(file)
    os.close(deepest)
    use = disk.tree_use(str(tmp_path), CLOCK, 100)
    assert use is not None
    assert use.inodes == 22
    assert use.used >= 1_024_000


def test_directories_below_a_long_path_take_little_memory(tmp_path: Path) -> None:
    deepest = nested(tmp_path, "x" * 250, 14)
    for number in range(1000):
        os.mkdir(str(number), dir_fd=deepest)
    os.close(deepest)
    tracemalloc.start()
    try:
        use = disk.tree_use(str(tmp_path), CLOCK, 2000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert use is not None
    assert use.inodes == 1015
    assert peak < 500_000


def test_a_walk_goes_down_some_levels_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(nested(tmp_path, "d", 20))
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(disk, "_DEEPEST", 21)
    use = disk.tree_use(str(tmp_path), CLOCK, 100)
    assert use is not None
    assert use.inodes == 21
    monkeypatch.setattr(disk, "_DEEPEST", 20)
    with pytest.raises(disk.TooManyFiles):
        disk.tree_use(str(tmp_path), CLOCK, 100)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_walk_asks_nothing_of_what_is_mounted_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    with hung_filesystem(tmp_path / "deep/away") as away:
        use = must_end(lambda: disk.tree_use(str(tmp_path), CLOCK, 100), away)
    assert use is not None
    assert use.inodes == 3


@pytest.mark.parametrize("path", ["/none/such", "/nul\0l", "/" + "x" * 5000])
def test_files_that_are_not_there_take_nothing(path: str) -> None:
    assert disk.tree_use(path, CLOCK, 10) is None
    assert disk.files_use(path, CLOCK) is None
    assert disk.file_use(path, CLOCK) is None
    assert node_reader.filesystem_of(path, CLOCK) is None
