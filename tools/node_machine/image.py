"""The root image: Debian 13 with systemd, containers and Python with what the project depends on."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

from tools.node_machine import archive
from tools.node_machine.cache import Unavailable, hash_of, kept, run, say
from trio_kubelet.standalone.packages import CONTAINERD_SUITES

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SUITE, PYTHON = "trixie", "3.13"
NEWER_SUITE = CONTAINERD_SUITES["2"]
"""Where the second containerd comes from, and a runc that knows user namespaces."""
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
    "linux-image-cloud-amd64",  # for qemu; User Mode Linux brings its own kernel
]
_NETWORK_DISKS = ["nfs-kernel-server", "nfs-common", "open-iscsi"]


def image() -> Path:
    """The directory of the image (`root.img`), of the key that logs in (`key`), and of a kernel for qemu
    (`vmlinuz`, `initrd`). Raises Unavailable.

    The Python packages in it are those of the day it was built; `packages` says which.
    """
    key = hash_of(SUITE, NEWER_SUITE, PYTHON, SIZE, " ".join(_PACKAGES), HERE / "setup-guest")
    return kept("image", key, _build)


def newer_wheels(built: Path) -> Path | None:
    """A directory of what the project depends on, None if the image has that. Raises Unavailable."""
    wanted = "\n".join(dependencies())
    if (built / "packages").read_text() == wanted:
        return None
    return kept("wheels", hash_of(PYTHON, wanted), _wheels)


def network_disks(built: Path) -> Path:
    """A directory of Debian packages for what only the emulated machine's kernel can do: iSCSI and NFS, both
    sides of each. Raises Unavailable.
    """

    def make(result: Path) -> None:
        say(f"fetching {', '.join(_NETWORK_DISKS)}")
        status = result.parent / "status"
        run(["debugfs", "-R", f"dump /var/lib/dpkg/status {status}", built / "root.img"])
        archive.fetch(_NETWORK_DISKS, SUITE, status, result)

    return kept("debs", hash_of(SUITE, built.name, " ".join(_NETWORK_DISKS)), make)


def dependencies() -> list[str]:
    """What building, running and testing the project needs of the package index."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    itself = re.compile(rf"{re.escape(project['project']['name'])}\[(\w+)\]")  # one extra may name another
    lines = [line for line in extras["dev"] if itself.fullmatch(line) is None]
    for line in extras["dev"]:
        if (named := itself.fullmatch(line)) is not None:
            lines += extras[named[1]]
    wanted = project["project"]["dependencies"] + lines
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
    (result / "packages").write_text("\n".join(dependencies()))
    newer = work / "containerd-2"
    for package in ("containerd", "runc"):
        archive.unpack(package, NEWER_SUITE, work, newer)
    say("making the root file system, about 4 minutes")
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
            "--customize-hook=mkdir -p $1/root/.cache/trio-kubelet",
            f"--customize-hook=copy-in {newer} /root/.cache/trio-kubelet",
            f"--customize-hook={HERE / 'setup-guest'} $1 {ADDRESS} {GATEWAY}",
            SUITE,
            tree,
            sources,
        ]
    )
    for name, pattern in (("vmlinuz", "vmlinuz-*"), ("initrd", "initrd.img-*")):
        (found,) = (tree / "boot").glob(pattern)
        shutil.copy(found, result / name)
    say("making the image")
    run(["mke2fs", "-q", "-t", "ext4", "-d", tree, result / "root.img", SIZE])
    shutil.rmtree(tree)


def _wheels(directory: Path) -> None:
    """The project's dependencies as the guest's Python wants them; what has no wheel comes as source, for the
    guest has a compiler.
    """
    pip: list[str | Path] = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    pip += ["download", "-d", directory]
    binary = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp"]
    wanted, sources = dependencies(), []
    while True:
        try:
            run([*pip, *binary, *wanted])
            break
        except Unavailable as error:
            missing = re.search(r"No matching distribution found for (\S+)", str(error))
            named = [line for line in wanted if missing is not None and line.startswith(missing[1])]
            if not named:
                raise
            sources += named
            wanted = [line for line in wanted if line not in named]
    if sources:
        run([*pip, "--no-deps", "--no-binary=:all:", *sources])
