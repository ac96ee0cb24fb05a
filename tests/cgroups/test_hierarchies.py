"""Where the machine's trees of cgroups are mounted, from the kernel's lists."""

from __future__ import annotations

import pytest

from trio_kubelet.cgroups import files
from trio_kubelet.common import mountinfo

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


def test_version_2_asks_nothing_of_version_1(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hierarchies(monkeypatch, UNIFIED, None) == {"": "/sys/fs/cgroup/unified"}
