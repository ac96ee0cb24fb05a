"""Kernel parameters that pods name: how they are spelt, and which namespace each of them belongs to."""

from __future__ import annotations

import re
from typing import Final

_IPC: Final = frozenset(
    {
        "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced",
        "kernel.shm", "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.msg",
    }
)  # fmt: skip


def normal_sysctl(name: str) -> str:
    """The spelling with dots between the parts: `net/ipv4/conf/eno2.100/x` is `net.ipv4.conf.eno2/100.x`."""
    first = re.search(r"[./]", name)
    if first is None or first[0] == ".":
        return name
    return name.translate(str.maketrans("./", "/."))


def sysctl_namespace(name: str) -> str:
    """`IPC`, `Net`, or "" for a parameter, in its normal spelling, that is not known to be namespaced."""
    if name in _IPC or name.startswith("fs.mqueue."):
        return "IPC"
    return "Net" if name.startswith("net.") else ""
