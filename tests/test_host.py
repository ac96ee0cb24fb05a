"""The agent's own standing on its machine."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from trio_kubelet.common import log as logging
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.host import check_reserved_cpus, set_open_files

SETS = """
import resource
from trio_kubelet.host import set_open_files
set_open_files(300)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""

OPENS = """
import os
import re
from pathlib import Path
from trio_kubelet.host import FILES_WITH_ROOM, set_open_files
def room():
    return int(re.search(r"^FDSize:\\s+(\\d+)$", Path("/proc/self/status").read_text(), re.MULTILINE)[1])
set_open_files(FILES_WITH_ROOM + 1000)
before = room()
files = [os.open("/", os.O_PATH) for _ in range(FILES_WITH_ROOM - 100)]
assert room() == before, (before, room())
files += [os.open("/", os.O_PATH) for _ in range(200)]
assert room() > before, (before, room())
"""


def test_so_many_files_may_be_open() -> None:
    done = subprocess.run([sys.executable, "-c", SETS], capture_output=True, text=True, check=True)
    assert done.stdout == "(300, 300)\n"
    assert done.stderr == ""


def test_the_kernel_has_room_for_the_files_of_a_large_node_from_the_start() -> None:
    """While its table grows the event loop would stand."""
    done = subprocess.run([sys.executable, "-c", OPENS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_limit_that_may_not_be_raised_is_told_and_stays(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(pid: int, what: int, limits: tuple[int, int]) -> None:
        assert (pid, what, limits) == (0, resource.RLIMIT_NOFILE, (1_000_000, 1_000_000))
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "prlimit", refuse)
    set_open_files(1_000_000)
    logging.flush()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("E")
    assert '"Failed to set rlimit on max file handles"' in line


def test_only_cpus_that_are_there_can_be_kept_for_the_system() -> None:
    for reserved, online in (("", "0-3"), ("0,3", "0-3"), ("7", "")):  # nobody knows of the last
        check_reserved_cpus(reserved, online)
    with pytest.raises(ConfigurationError, match=r"^reserved-cpus: 3-4 is not a subset of online-cpus: 0-3$"):
        check_reserved_cpus("3-4", "0-3")
