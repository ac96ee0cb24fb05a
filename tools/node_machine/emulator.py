"""The same machine emulated by qemu: ten times as slow, but with huge pages and NUMA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

NEEDS = {"qemu-system-x86_64": "qemu-system-x86"}
_NODE_MEMORY = "2G"
_NODES, _CPUS_PER_NODE = 2, 2
_HUGE_PAGES = 64  # of 2 MiB
_CPU = "Nehalem,-cx16"
"""Without `cmpxchg16b`: qemu 7.2 gets its flags wrong at times, which ends the kernel."""


def command(directory: Path, built: Path, disks: Sequence[Path]) -> list[str]:
    """The first disk has the root; all are the machine's own."""
    drives = [f"if=virtio,format=raw,cache=unsafe,file={path}" for path in disks]
    nodes = [
        words
        for number in range(_NODES)
        for words in (
            ["-object", f"memory-backend-ram,id=memory{number},size={_NODE_MEMORY}"],
            ["-numa", f"node,nodeid={number},cpus={_cpus(number)},memdev=memory{number}"],
        )
    ]
    kernel_line = [
        "root=/dev/vda",
        "rw",
        "console=ttyS0",
        "net.ifnames=0",
        "psi=1",
        "mitigations=off",  # changes of page tables at each system call are what an emulator is slowest at
        "hugepagesz=2M",
        f"hugepages={_HUGE_PAGES}",
        "systemd.show_status=no",
    ]
    return [
        "qemu-system-x86_64",
        *("-machine", "q35", "-accel", "tcg,thread=single", "-cpu", _CPU),
        *("-smp", str(_NODES * _CPUS_PER_NODE), "-m", f"{int(_NODE_MEMORY[:-1]) * _NODES}G"),
        *(word for pair in nodes for word in pair),
        *("-display", "none", "-serial", "stdio", "-monitor", "none"),
        *("-name", str(directory)),
        *(word for drive in drives for word in ("-drive", drive)),
        *(
            "-netdev",
            "tap,id=net0,ifname=tap0,script=no,downscript=no",
            "-device",
            "virtio-net-pci,netdev=net0",
        ),
        *(
            "-kernel",
            str(built / "vmlinuz"),
            "-initrd",
            str(built / "initrd"),
            "-append",
            " ".join(kernel_line),
        ),
    ]


def _cpus(node: int) -> str:
    return f"{node * _CPUS_PER_NODE}-{(node + 1) * _CPUS_PER_NODE - 1}"
