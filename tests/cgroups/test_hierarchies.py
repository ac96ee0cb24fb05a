"""Where the machine's trees of cgroups are mounted, from the kernel's lists."""

from __future__ import annotations

import pathlib

import pytest

from trio_kubelet.cgroups import files
from trio_kubelet.cgroups.files import CgroupTree
from trio_kubelet.cgroups.limits import Limits
from trio_kubelet.cgroups.plan import CgroupSettings
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.common import mountinfo
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.pods.doors import CgroupError

V1 = """\
30 1 0:26 / / rw - overlay overlay rw,lowerdir=/a - cgroup
31 30 0:27 / /sys/fs/cgroup rw - tmpfs cgroup rw
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct
33 31 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 31 0:28 / /mnt/a\\040second\\040and\\040longer\\040place rw - cgroup cgroup rw,cpu,cpuacct
"""
UNIFIED = "35 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"


def hierarchies(monkeypatch: pytest.MonkeyPatch, mounts: str, controllers: set[str] | None) -> dict[str, str]:
    def listed() -> set[str]:
        assert controllers is not None, "a kernel without version 1 has no such list"
        return controllers

    monkeypatch.setattr(mountinfo, "_read", lambda: mounts)
    monkeypatch.setattr(files, "_controllers", listed)
    return files.find_hierarchies()


def test_trees_of_version_1(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = {
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
        "name=systemd": "/sys/fs/cgroup/systemd",
    }
    assert hierarchies(monkeypatch, V1, {"cpu", "cpuacct"}) == trees
    both = {**trees, "unified": "/sys/fs/cgroup/unified"}
    assert hierarchies(monkeypatch, V1 + UNIFIED, {"cpu", "cpuacct"}) == both


def test_a_limit_without_its_controller_is_an_error(tmp_path: pathlib.Path) -> None:
    """Nobody would know that it is not in force. What lifts one, and huge pages, need none."""
    tree = CgroupTree({"cpu": str(tmp_path)})
    for file in ("cpu.shares", "cpu.cfs_quota_us"):
        (tmp_path / file).touch()
    tree.apply("", Limits(cpu_shares=2, cpu_quota=-1, memory=-1, pids=-1, huge_pages={"2MB": 0}))
    assert (tmp_path / "cpu.shares").read_text() == "2"
    for limits in (Limits(memory=4096), Limits(pids=10), Limits(cpuset="0")):
        with pytest.raises(OSError, match=r"cgroup controller (memory|pids|cpuset) is not mounted"):
            tree.apply("", limits)


class NothingMade:
    """A driver that notes what is to be made."""

    def __init__(self) -> None:
        self.made: list[Limits] = []

    async def create(self, cgroup: str, limits: Limits) -> None:
        self.made.append(limits)

    async def update(self, cgroup: str, limits: Limits) -> None:
        raise AssertionError

    async def remove(self, cgroup: str) -> bool:
        raise AssertionError


async def start(*controllers: str) -> list[Limits]:
    driver = NothingMade()
    node = NodeContext(node_name="n", cgroup_driver="cgroupfs")
    cgroups = PodCgroups(
        tree=CgroupTree({name: f"/nowhere/{name}" for name in controllers}),
        driver=driver,
        node=lambda: node,
        settings=CgroupSettings(node_pids=1000),
    )
    await cgroups.start()
    return driver.made


async def test_a_node_without_the_controllers_that_are_needed_does_not_start() -> None:
    with pytest.raises(CgroupError, match=r"Following Cgroup subsystem not mounted: \[cpuacct memory\]"):
        await start("cpu", "cpuset", "pids")
    for besides in (("pids",), ()):
        made = await start("cpu", "cpuacct", "cpuset", "memory", *besides)
        assert made[0].pids == (1000 if besides else None)


def test_version_2_asks_nothing_of_version_1(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hierarchies(monkeypatch, UNIFIED, None) == {"": "/sys/fs/cgroup/unified"}
