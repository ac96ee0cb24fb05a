"""The root image: Debian 13 with systemd, containers and Python with what the project depends on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.node_machine import archive
from tools.node_machine.cache import hash_of, kept, run, say

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SUITE, PYTHON = "trixie", "3.13"
SIZE = "8G"  # sparse
ADDRESS, GATEWAY = "10.231.0.2", "10.231.0.1"

_NEEDS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "ssh-keygen": "openssh-client"}
_PACKAGES = [
    "systemd",
    "systemd-sysv",
    "libpam-systemd",
    "dbus",
    "udev",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "busybox-static",
    "python3",
    "python3-venv",
    "python3-dev",
    "gcc",
    "libc6-dev",
    "make",
    "iproute2",
    "iptables",
    "nftables",
    "openssh-server",
    "ca-certificates",
    "e2fsprogs",
    "xfsprogs",
    "quota",
    "procps",
    "psmisc",
    "git",
    "curl",
    "uidmap",
    "mount",
    "util-linux",
    "kmod",
]


def image() -> Path:
    """The directory of the image (`root.img`) and of the key that logs in (`key`). Raises Unavailable."""
    key = hash_of(SUITE, PYTHON, SIZE, " ".join(_PACKAGES), " ".join(_dependencies()), HERE / "setup-guest")
    return kept("image", key, _build)


def _dependencies() -> list[str]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["dev"]
    # Markers are about this Python, not the guest's, which wants all of them.
    return [
        line.partition(";")[0].strip() for line in (*project["build-system"]["requires"], "wheel", *wanted)
    ]


def _build(result: Path) -> None:
    archive.install(_NEEDS)
    work = result.parent
    tree = work / "tree"
    wheels = work / "wheels"
    say("fetching the Python packages")
    _wheels(wheels)
    say("making the root file system, about 3 minutes")
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "node-machine", "-f", result / "key"])
    sources = work / "sources.list"
    sources.write_text(archive.source_line(SUITE))
    run(
        [
            "nice",
            "mmdebstrap",
            "--variant=minbase",
            f"--include={','.join(_PACKAGES)}",
            f"--customize-hook=copy-in {wheels} /opt",
            f"--customize-hook=copy-in {result / 'key.pub'} /root",
            f"--customize-hook={HERE / 'setup-guest'} $1 {ADDRESS} {GATEWAY}",
            SUITE,
            tree,
            sources,
        ]
    )
    say("making the image")
    run(["mke2fs", "-q", "-t", "ext4", "-d", tree, result / "root.img", SIZE])
    shutil.rmtree(tree)


def _wheels(directory: Path) -> None:
    """The project's dependencies as the guest's Python wants them; what has no wheel comes as source."""
    pip = [sys.executable, "-m", "pip", "-q", "download", "-d", directory]
    binary = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp"]
    try:
        run([*pip, *binary, *_dependencies()])
    except Exception:
        # Some packages are published as source only; the guest has a compiler.
        for requirement in _dependencies():
            command = [str(word) for word in [*pip, *binary, requirement]]
            done = subprocess.run(command, capture_output=True, check=False, env=os.environ)
            if done.returncode:
                run([*pip, "--no-deps", "--no-binary=:all:", requirement])
