"""The agent and the host's processes in their cgroups: on trees of plain files, and on this machine's."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
import trio

from tests.cgroups.machine import wait_for
from trio_kubelet.base import start_system_cgroups
from trio_kubelet.cgroups import files
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.cgroups.system import SystemCgroups
from trio_kubelet.common import log as logging
from trio_kubelet.config.types import KubeletConfiguration, cgroup_path

if TYPE_CHECKING:
    from trio_kubelet.host import Machine

AGENT, INIT, THREAD, SHELL = 500, 1, 2, 700
OWN, SYSTEM = "/node/agent", "/system"
V1 = {
    "cpu": "cpu,cpuacct",
    "cpuacct": "cpu,cpuacct",
    "memory": "memory",
    "devices": "devices",
    "name=systemd": "systemd",
    "name=mine": "mine",
    "unified": "unified",
}
MOVED_IN = ["cpu,cpuacct", "memory", "devices", "systemd"]


class Kernel:
    """Trees of cgroups and processes: what is written to `cgroup.procs` moves one."""

    def __init__(self, root: Path, hierarchies: Mapping[str, str], cgroups: list[str]) -> None:
        self.root, self.proc = root / "cgroup", root / "proc"
        self.hierarchies = {controller: str(self.root / name) for controller, name in hierarchies.items()}
        self.moves: list[tuple[str, str, int]] = []
        self.ended: set[int] = set()
        self.full: set[str] = set()  # trees that take no process
        self.born: list[int] = []  # begin in the root cgroup when another one leaves it
        for name in set(hierarchies.values()):
            (self.root / name).mkdir(parents=True)
            (self.root / name / "cgroup.procs").touch()
            for cgroup in ["", *cgroups] if not name else []:
                (self.root / cgroup.strip("/")).mkdir(parents=True, exist_ok=True)
                (self.root / cgroup.strip("/") / "cgroup.controllers").write_text("cpu memory")
        for process in (INIT, AGENT, SHELL):
            self.begin(process)
        self.begin(THREAD, program=False)

    def begin(self, process: int, *, program: bool = True, namespace: str = "pid:[1]") -> None:
        directory = self.proc / str(process)
        (directory / "ns").mkdir(parents=True)
        (directory / "ns/pid").symlink_to(namespace)
        if program:
            (directory / "exe").symlink_to("/bin/sh")
        (directory / "oom_score_adj").write_text("0\n")
        for name in set(self.hierarchies.values()):
            with open(f"{name}/cgroup.procs", "a") as file:
                file.write(f"{process}\n")
        self.show(process, dict.fromkeys(self.hierarchies, "/"))

    def show(self, process: int, where: Mapping[str, str]) -> None:
        lines = [f"0:{'' if name == 'unified' else name}:{path}" for name, path in where.items()]
        (self.proc / str(process) / "cgroup").write_text("\n".join(lines) + "\n")

    def write(self, path: str, value: str) -> None:
        directory, name = os.path.split(path)
        assert name == "cgroup.procs"
        process = int(value)
        root = next(each for each in self.hierarchies.values() if directory.startswith(f"{each}/"))
        tree, cgroup = os.path.relpath(root, self.root), directory.removeprefix(root)
        if process in self.ended:
            self._leave(process)
            raise ProcessLookupError(errno.ESRCH, "No such process")
        if tree in self.full:
            raise OSError(errno.EBUSY, "Device or resource busy")
        assert os.path.isdir(directory)
        self.moves.append((tree, cgroup, process))
        listed = Path(root, "cgroup.procs")
        listed.write_text("".join(f"{each}\n" for each in listed.read_text().split() if each != value))
        where = {
            line.split(":")[1] or ("unified" if len(self.hierarchies) > 1 else ""): line.split(":")[2]
            for line in (self.proc / value / "cgroup").read_text().splitlines()
        }
        where.update({name: cgroup for name, path in self.hierarchies.items() if path == root})
        self.show(process, where)
        if self.born:
            self.begin(self.born.pop())

    def _leave(self, process: int) -> None:
        for root in set(self.hierarchies.values()):
            listed = Path(root, "cgroup.procs")
            rest = [each for each in listed.read_text().split() if each != str(process)]
            listed.write_text("".join(f"{each}\n" for each in rest))

    def cgroups(self, agent: str = "", system: str = "") -> SystemCgroups:
        return SystemCgroups(
            CgroupTree(self.hierarchies),
            agent=agent,
            system=system,
            oom_score_adj=-999,
            process=AGENT,
            proc=str(self.proc),
        )

    def oom_score(self) -> str:
        return (self.proc / str(AGENT) / "oom_score_adj").read_text().strip()


def kernel(root: Path, hierarchies: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(root, hierarchies, ["/node", OWN, SYSTEM])
    monkeypatch.setattr(files, "_write", made.write)
    return made


@pytest.fixture
def v1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return kernel(tmp_path, V1, monkeypatch)


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return kernel(tmp_path, {"": ""}, monkeypatch)


def errors(capfd: pytest.CaptureFixture[str]) -> list[str]:
    logging.flush()
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("E")]


async def test_the_agent_is_in_its_cgroup_in_every_tree_of_version_1(v1: Kernel) -> None:
    cgroups = v1.cgroups(OWN)
    await cgroups.settle()
    assert v1.moves == [(tree, OWN, AGENT) for tree in MOVED_IN]
    assert v1.oom_score() == "-999"
    assert not (v1.root / "unified/node").exists()
    await cgroups.settle()
    assert len(v1.moves) == len(MOVED_IN), "who is there stays"


async def test_the_agent_is_in_its_cgroup_of_version_2(v2: Kernel) -> None:
    await v2.cgroups(OWN).settle()
    assert v2.moves == [(".", OWN, AGENT)]
    assert v2.oom_score() == "-999"


async def test_the_agent_is_brought_back_each_minute(v2: Kernel, autojump_clock: trio.abc.Clock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(v2.cgroups(OWN).run)
        await trio.sleep(30)
        v2.show(AGENT, {"": "/elsewhere"})
        (v2.proc / str(AGENT) / "oom_score_adj").write_text("5\n")
        await trio.sleep(50)
        nursery.cancel_scope.cancel()
    assert v2.moves == [(".", OWN, AGENT)] * 2
    assert v2.oom_score() == "-999"


@pytest.mark.parametrize("first", ["pid:[2]", None], ids=["another namespace", "not to be known"])
async def test_an_agent_with_process_ids_of_its_own_moves_nothing(
    v2: Kernel, first: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    link = v2.proc / "1/ns/pid"
    link.unlink()
    if first is not None:
        link.symlink_to(first)
    await v2.cgroups(OWN, SYSTEM).settle()
    assert v2.moves == []
    assert len(errors(capfd)) == (3 if first is None else 0)


async def test_processes_of_the_root_cgroup_are_moved_but_the_first_and_the_kernels(v1: Kernel) -> None:
    await v1.cgroups(system=SYSTEM).settle()
    assert {process for _, _, process in v1.moves} == {AGENT, SHELL}
    assert [tree for tree, _, process in v1.moves if process == SHELL] == MOVED_IN
    assert (v1.root / "devices/cgroup.procs").read_text().split() == [str(INIT), str(THREAD)]


async def test_the_agent_is_not_among_the_hosts_processes(v2: Kernel) -> None:
    await v2.cgroups(OWN, SYSTEM).settle()
    assert v2.moves == [(".", OWN, AGENT), (".", SYSTEM, SHELL)]


async def test_processes_that_began_meanwhile_are_moved_too(v2: Kernel) -> None:
    v2.born = [801, 800]
    await v2.cgroups(system=SYSTEM).settle()
    assert [process for _, _, process in v2.moves] == [AGENT, SHELL, 800, 801]


async def test_a_root_cgroup_that_never_empties_is_left_until_the_next_turn(v2: Kernel) -> None:
    v2.born = list(range(1000, 1100))
    await v2.cgroups(system=SYSTEM).settle()
    assert len(v2.moves) < 100


async def test_many_processes_are_moved(v2: Kernel) -> None:
    for process in range(2000, 2100):
        v2.begin(process)
    await v2.cgroups(system=SYSTEM).settle()
    assert len(v2.moves) == 102


async def test_a_process_that_ended_meanwhile_is_no_error(
    v1: Kernel, capfd: pytest.CaptureFixture[str]
) -> None:
    v1.ended.add(SHELL)
    await v1.cgroups(system=SYSTEM).settle()
    assert {process for _, _, process in v1.moves} == {AGENT}
    assert errors(capfd) == []


async def test_a_cgroup_that_takes_no_process_is_told_once_and_tried_again(
    v2: Kernel, capfd: pytest.CaptureFixture[str]
) -> None:
    cgroups = v2.cgroups(OWN)
    v2.full = {"."}
    await cgroups.settle()
    (line,) = errors(capfd)
    assert "Failed to ensure state" in line
    assert f'containerName="{OWN}"' in line
    assert "device or resource busy" in line
    assert v2.oom_score() == "-999"
    await cgroups.settle()
    assert errors(capfd) == []
    v2.full = set()
    await cgroups.settle()
    assert v2.moves == [(".", OWN, AGENT)]
    v2.full = {"."}
    v2.show(AGENT, {"": "/"})
    await cgroups.settle()
    assert len(errors(capfd)) == 1


async def test_an_oom_score_that_cannot_be_set_is_told_besides(
    v2: Kernel, capfd: pytest.CaptureFixture[str]
) -> None:
    score = v2.proc / str(AGENT) / "oom_score_adj"
    score.unlink()
    cgroups = v2.cgroups(OWN)
    await cgroups.settle()
    assert v2.moves == [(".", OWN, AGENT)]
    assert len(errors(capfd)) == 1
    v2.full = {"."}
    v2.show(AGENT, {"": "/"})
    await cgroups.settle()
    (line,) = errors(capfd)
    assert "device or resource busy" in line


async def test_one_tree_that_refuses_keeps_a_process_out_of_no_other(
    v1: Kernel, capfd: pytest.CaptureFixture[str]
) -> None:
    v1.full = {"cpu,cpuacct"}
    await v1.cgroups(system=SYSTEM).settle()
    assert [tree for tree, _, process in v1.moves if process == SHELL] == MOVED_IN[1:]
    assert len(errors(capfd)) == 1


@pytest.mark.parametrize(
    ("fields", "tasks"),
    [({}, 0), ({"kubelet_cgroups": "/a"}, 1), ({"system_cgroups": "/s", "cgroup_root": "/"}, 1)],
)
async def test_a_node_without_these_fields_has_no_task(fields: dict[str, str], tasks: int) -> None:
    machine = cast("Machine", SimpleNamespace(hierarchies={}))
    async with trio.open_nursery() as nursery:
        start_system_cgroups(msgspec.structs.replace(KubeletConfiguration(), **fields), machine, nursery)
        assert len(nursery.child_tasks) == tasks
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("", ""),
        ("/a/b", "/a/b"),
        ("a.slice", "/a.slice"),
        ("//a/", "/a"),
        ("/a/../../../b", "/b"),
        ("/", "/"),
    ],
)
def test_the_cgroup_that_a_field_names(name: str, path: str) -> None:
    assert cgroup_path(name) == path


def said(process: int, file: str) -> str:
    return Path(f"/proc/{process}/{file}").read_text()


@contextmanager
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.node
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_a_process_of_this_machine(tmp_path: Path) -> None:
    """Where the kernel does not say which ids its first process has, this is told instead."""
    tree, cgroup = CgroupTree(find_hierarchies()), f"/trio-kubelet-test-{secrets.token_hex(4)}"
    try:
        with sleeper() as process:
            (tmp_path / str(process)).symlink_to(f"/proc/{process}")
            (tmp_path / "1/ns").mkdir(parents=True)
            (tmp_path / "1/ns/pid").symlink_to(os.readlink(f"/proc/{process}/ns/pid"))
            cgroups = SystemCgroups(
                tree, agent=f"{cgroup}/agent", oom_score_adj=321, process=process, proc=str(tmp_path)
            )
            await cgroups.settle()
            lines = said(process, "cgroup").splitlines()
            moved = [line for line in lines if line.endswith(f":{cgroup}/agent")]
            # On version 1 every tree but that of version 2 next to it.
            assert len(moved) == len([line for line in lines if tree.is_v2 or not line.startswith("0::")])
            assert tree.processes(f"{cgroup}/agent", 10) == [process]
            assert said(process, "oom_score_adj") == "321\n"
    finally:
        await wait_for(lambda: tree.remove(cgroup), 5)
    assert not tree.exists_somewhere(cgroup)
