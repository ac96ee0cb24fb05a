"""What is looked at to make a cgroup: on trees of plain files, and on this machine's own."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cgroups.machine import cgroup_root
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies

POD = "/kubepods/burstable/podu"
CPUSET = {"cpuset.cpus": "0-3\n", "cpuset.mems": "0\n"}
EMPTY = dict.fromkeys((*CPUSET, "cgroup.clone_children"), "\n")


def tree(root: Path, *levels: dict[str, str]) -> Path:
    """Cgroups with these files: the root of a tree, and those down to the pod's. Returns the last."""
    for name, files in zip(["", *POD.split("/")[1:]], levels, strict=False):
        root /= name
        root.mkdir(exist_ok=True)
        for file, content in files.items():
            (root / file).write_text(content)
    return root


def delegated(controllers: str, given: str) -> dict[str, str]:
    return {"cgroup.controllers": controllers, "cgroup.subtree_control": given}


def said(cgroup: Path) -> dict[str, str]:
    return {name: (cgroup / name).read_text().strip() for name in CPUSET}


def test_what_a_pod_has_of_all_controllers_tells_that_those_above_give_it_on(tmp_path: Path) -> None:
    has = {"cgroup.controllers": "cpu memory pids"}
    tree(tmp_path, has, {}, {}, has)  # no other file is there to be read
    CgroupTree({"": str(tmp_path)}).create(POD)


def test_a_controller_that_is_missing_below_is_given_on_by_those_that_do_not(tmp_path: Path) -> None:
    all_of_it = delegated("cpu cpuset memory", "cpu cpuset memory")
    tree(tmp_path, all_of_it, delegated("cpu cpuset memory", "cpu"), all_of_it, delegated("cpu", ""))
    CgroupTree({"": str(tmp_path)}).create(POD, besides=["cpuset"])
    assert (tmp_path / "kubepods/cgroup.subtree_control").read_text() == "+memory"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu cpuset memory"
    assert (tmp_path / "kubepods/burstable/cgroup.subtree_control").read_text() == "cpu cpuset memory"


def test_a_controller_that_systemd_keeps_for_itself_is_not_missed(tmp_path: Path) -> None:
    tree(tmp_path, {"cgroup.controllers": "cpu cpuset"}, {}, {}, {"cgroup.controllers": "cpu"})
    CgroupTree({"": str(tmp_path)}).create(POD, besides=["cpuset"])


def test_a_cpuset_gets_what_the_one_above_it_has(tmp_path: Path) -> None:
    pod = tree(tmp_path, {}, {}, CPUSET, EMPTY)  # those further up are not looked at
    CgroupTree({"cpuset": str(tmp_path)}).create(POD)
    assert said(pod) == {"cpuset.cpus": "0-3", "cpuset.mems": "0"}
    assert (pod / "cgroup.clone_children").read_text().strip() == "1"


def test_a_cpuset_that_has_some_keeps_them(tmp_path: Path) -> None:
    pod = tree(tmp_path, {}, {}, {}, {"cpuset.cpus": "2", "cpuset.mems": "1"})
    CgroupTree({"cpuset": str(tmp_path)}).create(POD)
    assert said(pod) == {"cpuset.cpus": "2", "cpuset.mems": "1"}


@pytest.mark.parametrize("name", ["d", "d" * 255])
def test_cgroups_nested_deeply_are_killed_and_removed(tmp_path: Path, name: str) -> None:
    """Deeper, too, than a path can be long."""
    above = os.open(tree(tmp_path, {}, {}, {}, {}), os.O_RDONLY)
    for _ in range(1000):
        os.mkdir(name, dir_fd=above)
        below = os.open(name, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    before = os.listdir("/proc/self/fd")
    with subprocess.Popen(["sleep", "1000"]) as process:
        procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CREAT, dir_fd=above)
        os.write(procs, f"{process.pid}\n".encode())
        os.close(procs)
        cgroups = CgroupTree({"": str(tmp_path)})
        assert cgroups.kill(POD) == 1
        assert process.wait(10) == -signal.SIGKILL
    os.unlink("cgroup.procs", dir_fd=above)
    assert cgroups.remove(POD)
    assert not tmp_path.joinpath(POD[1:]).exists()
    assert os.listdir("/proc/self/fd") == before
    os.close(above)


def test_cpusets_above_that_have_none_are_filled_first(tmp_path: Path) -> None:
    """Somebody made them and went, or was killed, before they had any."""
    pod = tree(tmp_path, CPUSET, CPUSET | {"cpuset.cpus": "1\n"}, EMPTY, EMPTY)
    CgroupTree({"cpuset": str(tmp_path)}).create(POD)
    for cgroup in (pod, pod.parent):
        assert said(cgroup) == {"cpuset.cpus": "1", "cpuset.mems": "0"}


@pytest.fixture
def root() -> Iterator[str]:
    with cgroup_root("cgroupfs") as root:
        yield root


@pytest.mark.parametrize("pod", ["/kubepods/podu", "/kubepods/besteffort/podu"])
def test_a_process_can_run_in_a_new_cgroup_of_this_machine(root: str, pod: str) -> None:
    """None of those above it is there before. In one that a runtime makes below it, it can at once."""
    trees = find_hierarchies()
    CgroupTree(trees).create(root + pod)
    for path in {f"{tree}{root}{pod}" for tree in trees.values()}:
        assert os.path.isdir(path)
    if (cpuset := trees.get("cpuset")) is not None:
        assert Path(cpuset, "cgroup.clone_children").read_text() == "0\n", "the machine's own stays as it is"
        container = Path(f"{cpuset}{root}{pod}/container")
        container.mkdir()
        assert said(container) == said(Path(cpuset))
    else:
        has = Path(f"{trees['']}{root}{pod}/cgroup.controllers").read_text().split()
        assert {"cpu", "memory", "pids"} <= set(has)


def test_the_second_pod_of_a_class_costs_few_calls(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files opened: version 1 two of the new cpuset, version 2 the controllers of the root and of the pod."""
    trees = CgroupTree(find_hierarchies())
    trees.create(f"{root}/kubepods/besteffort/podone")
    opened, made, real_open, mkdir = [], [], os.open, os.mkdir

    def refused(*args: object, **kwargs: object) -> None:
        raise AssertionError("open() asks the kernel more than is needed")

    def noted_open(path: str, *args: int) -> int:
        opened.append(path)
        return real_open(path, *args)

    def noted_mkdir(path: str, mode: int) -> None:
        made.append(path)
        mkdir(path, mode)

    monkeypatch.setattr(os, "open", noted_open)
    monkeypatch.setattr(os, "mkdir", noted_mkdir)
    monkeypatch.setattr(builtins, "open", refused)
    trees.create(f"{root}/kubepods/besteffort/podtwo")
    monkeypatch.undo()
    assert len(made) == len(set(find_hierarchies().values()))
    assert len(opened) == 2, opened
