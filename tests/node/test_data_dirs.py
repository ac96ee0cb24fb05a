"""The agent's directories and its shared root directory, each test in a mount namespace of its own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trio_kubelet.node.directories import make_data_dirs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

_PROLOGUE = """
import os, sys
from trio_kubelet.node.directories import make_data_dirs
from trio_kubelet.common.mountinfo import mounts
from trio_kubelet.volumes.linux import MS_BIND, mount, mounts_below, unmount

root = sys.argv[1]

def make():
    make_data_dirs(root, root + "-logs", root + "-links", checkpoints=True)

def here(path=root):
    return [(found.path, found.shared) for found in mounts() if found.path.startswith(path)]
"""


def in_own_namespace(root: Path, code: str, propagation: str = "private", *through: str) -> None:
    """Runs Python, by way of the command `through`, where nothing that is mounted is seen from outside."""
    namespace = ["unshare", "--mount", f"--propagation={propagation}"]
    command = [*namespace, *through, sys.executable, "-c", _PROLOGUE + code]
    done = subprocess.run([*command, str(root)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@needs_root
def test_a_private_root_directory_becomes_a_shared_mount_and_stays_one(tmp_path: Path) -> None:
    in_own_namespace(
        tmp_path / "root",
        """
make()
assert here() == [(root, True)], here()
make()  # another start
assert here() == [(root, True)], here()
os.mkdir(root + "/pods/a")
mount("tmpfs", root + "/pods/a", "tmpfs")
assert here() == [(root, True), (root + "/pods/a", True)], here()
""",
    )


@needs_root
def test_what_was_mounted_below_before_stays_in_sight_and_can_go(tmp_path: Path) -> None:
    in_own_namespace(
        tmp_path / "root",
        """
secret = root + "/pods/a/volumes/s"
os.makedirs(secret)
mount("tmpfs", secret, "tmpfs")
open(secret + "/key", "w").close()
make()
assert os.listdir(secret) == ["key"]
assert here() == [(root, True), (secret, True)], here()
unmount(secret)
os.rmdir(secret)
""",
    )


@needs_root
def test_a_root_directory_on_a_shared_mount_is_left_alone(tmp_path: Path) -> None:
    in_own_namespace(tmp_path / "root", "make()\nassert here() == [], here()", propagation="shared")


@needs_root
def test_a_root_directory_that_is_a_mount_is_shared_where_it_is(tmp_path: Path) -> None:
    in_own_namespace(
        tmp_path / "root",
        """
os.mkdir(root)
mount("tmpfs", root, "tmpfs")
make()
assert here() == [(root, True)], here()
""",
    )


@needs_root
def test_who_may_not_mount_has_directories_all_the_same(tmp_path: Path) -> None:
    """As the simulated node of a user who is not root, or of one in a container."""
    code = 'make()\nassert here() == [], here()\nassert os.path.isdir(root + "/pods")'
    unprivileged = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    in_own_namespace(tmp_path / "root", code, "private", *unprivileged)


@needs_root
def test_directories_and_modes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    in_own_namespace(root, "os.umask(0o022)\nmake()")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.iterdir()]}
    assert modes == {
        "root": 0o750,
        "pods": 0o750,
        "plugins": 0o750,
        "plugins_registry": 0o750,
        "pod-resources": 0o750,
        "checkpoints": 0o700,
    }
    assert stat.S_IMODE((tmp_path / "root-logs").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "root-links").stat().st_mode) == 0o755


def test_the_step_that_failed_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "root"
    with pytest.raises(
        OSError, match=f"error creating root directory: mkdir {tmp_path}/file/?.*: not a direct"
    ):
        make_data_dirs(str(root), str(tmp_path / "logs"), str(tmp_path / "links"), checkpoints=True)
