"""The kernel: a User Mode Linux of Debian's newest kernel source, with cgroup v2, PSI and BPF."""

from __future__ import annotations

import os
from pathlib import Path

from tools.node_machine import archive
from tools.node_machine.cache import hash_of, kept, run, say

HERE = Path(__file__).parent
PACKAGE, SUITE = "linux-source-7.2", "sid"
_PATCHES = ("vector.patch", "pin.patch")
"""The first keeps the network driver from a panic with a tap; the second makes system calls four times as
fast: a process's stub stays on the host CPU of the CPU thread it runs for."""

_NEEDS = {
    "gcc": "gcc",
    "make": "make",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "patch": "patch",
    "xz": "xz-utils",
    "/usr/include/gelf.h": "libelf-dev",
}


def kernel() -> Path:
    """The kernel's binary. Raises Unavailable."""
    key = hash_of(PACKAGE, SUITE, HERE / "kernel.config", *(HERE / name for name in _PATCHES))
    return kept("kernel", key, _build) / "linux"


def _build(result: Path) -> None:
    archive.install(_NEEDS)
    work = result.parent
    say(f"fetching {PACKAGE}")
    archive.unpack(PACKAGE, SUITE, work, work / "package")
    source = work / "source"
    source.mkdir()
    (tarball,) = (work / "package/usr/src").glob("linux-source-*.tar.xz")
    run(["tar", "xf", tarball, "-C", source, "--strip-components=1"])
    for name in _PATCHES:
        run(["patch", "-p1", "-i", HERE / name], cwd=source)
    say("building the kernel, about 7 minutes on two CPUs")
    make = ["nice", "make", "ARCH=um", f"-j{os.cpu_count()}"]
    run([*make, "defconfig"], cwd=source)
    run(["scripts/kconfig/merge_config.sh", "-m", ".config", HERE / "kernel.config"], cwd=source)
    run([*make, "olddefconfig"], cwd=source)
    run(make, cwd=source)
    run(["strip", "-o", result / "linux", "linux"], cwd=source)
