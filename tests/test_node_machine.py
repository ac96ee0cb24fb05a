"""What runs of the machine for tests leave to each other: nothing. No machine is started here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.node_machine import boot, cache

PROJECT = Path(__file__).parents[1]
_WAITS = "import sys, time; print(flush=True); time.sleep(600)"
_MAKES = """
import sys, time
from pathlib import Path
from tools.node_machine.cache import kept

def make(result: Path) -> None:
    with Path(sys.argv[1]).open("a") as made:
        made.write("made ")
    time.sleep(0.3)
    (result / "file").write_text("whole")

print((kept("thing", "key", make) / "file").read_text())
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.communicate()


def waiting(*words: str) -> subprocess.Popen[bytes]:
    """A process with these words in its command line, once it has them."""
    process = subprocess.Popen([sys.executable, "-c", _WAITS, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_machine_that_was_left_is_ended_and_one_in_use_is_not(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    starter, other = waiting("tools.node_machine"), waiting("something else")
    processes += [starter, other]
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    runs = cache.root() / "run"
    machines = {}
    for what, owner in (("used", starter.pid), ("reused id", other.pid), ("left", int(gone.stdout))):
        directory = runs / f"{owner}-abc"
        directory.mkdir(parents=True)
        (directory / "root.cow").write_bytes(b"changes")
        machines[what] = (directory, waiting(f"uml_dir={directory}"))
        processes.append(machines[what][1])
    boot.end_leftovers()
    assert machines["used"][1].poll() is None
    assert (machines["used"][0] / "root.cow").exists()
    for what in ("reused id", "left"):
        directory, process = machines[what]
        assert process.wait(10) == -9, what
        assert not directory.exists(), what
    assert [each.poll() for each in (starter, other)] == [None, None]


def test_two_that_build_at_once_build_once_and_find_it_whole(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    made = tmp_path / "made"
    command = [sys.executable, "-c", _MAKES, str(made)]
    processes += [subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == [b"whole\n"] * 3
    assert made.read_text() == "made "


def test_what_failed_or_was_killed_half_way_is_not_there(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    def fail(result: Path) -> None:
        (result / "file").write_text("half")
        raise cache.Unavailable("no")

    with pytest.raises(cache.Unavailable):
        cache.kept("thing", "key", fail)
    assert not list(cache.root().glob("*thing-*"))

    slow = _MAKES.replace("0.3", "600")
    processes.append(subprocess.Popen([sys.executable, "-c", slow, str(tmp_path / "made")], cwd=PROJECT))
    deadline = time.monotonic() + 30
    while not (tmp_path / "made").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    processes[0].kill()
    processes[0].wait()

    def make(result: Path) -> None:
        (result / "file").write_text("whole")

    assert len(list(cache.root().glob("new-thing-*"))) == 1
    assert (cache.kept("thing", "key", make) / "file").read_text() == "whole"
    assert not list(cache.root().glob("new-thing-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_a_killed_one_had_mounted_is_not_removed_with_it(tmp_path: Path) -> None:
    left, others = cache.root() / "new-thing-left" / "tree" / "sys", tmp_path / "others"
    for directory in (left, others):
        directory.mkdir(parents=True)
    (others / "file").touch()
    subprocess.run(["mount", "--bind", others, left], check=True)
    try:
        cache.kept("thing", "key", lambda result: None)
        assert not (cache.root() / "new-thing-left").exists()
        assert (others / "file").exists()
    finally:
        subprocess.run(["umount", "-q", left], check=False)


def test_where_it_cannot_be_had_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """77, which `.ci/run` takes for no failure."""
    monkeypatch.setenv("MACHINE", "other")
    command = [sys.executable, "-m", "tools.node_machine", "test"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 77
    assert done.stderr == "node machine: MACHINE=other: there are uml and qemu\n"
    monkeypatch.setenv("MACHINE", "uml")
    monkeypatch.setenv("PATH", "/nowhere")  # what builds it is not there, and cannot be installed
    done = subprocess.run([*command[:-1], "build"], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 77
    assert "apt-get: not installed" in done.stderr
