"""Reads what the node as a whole has and uses. Blocking: to be called in a thread. Nothing here raises."""

from __future__ import annotations

import os
from collections.abc import Iterable

from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.machine import text
from trio_kubelet.machine.cgroup_reader import read_number
from trio_kubelet.machine.values import Filesystem, Network, Processes
from trio_kubelet.native.figures import FigureReader
from trio_kubelet.native.pure_figures import TEXT, Figure, read_file


def boot_time(proc: str = "/proc") -> int:
    """When the machine was started, to the second; 0 if that cannot be found out."""
    return text.field(read_file(f"{proc}/stat") or b"", b"btime") * NANOSECONDS


class NetworkReader:
    """Reads the network namespaces of processes."""

    def __init__(self, clock: Clock, proc: str = "/proc") -> None:
        self._clock = clock
        self._reader = FigureReader([Figure(f"{proc}/", "/net/dev", kind=TEXT)])

    def of(self, processes: Iterable[int]) -> list[Network | None]:
        """The namespace of each process, in order; None for one that has ended."""
        now = self._clock.now_ns()
        return [
            Network(now, text.interfaces(reading.text())) if reading.there else None
            for reading in self._reader.read([str(pid) for pid in processes])
        ]


def are_apart(one: str, other: str) -> bool:
    """Whether two paths are on different filesystems; False if that cannot be told."""
    try:
        return os.stat(one).st_dev != os.stat(other).st_dev
    except OSError:
        return False


def filesystem_of(path: str, clock: Clock) -> Filesystem | None:
    """The filesystem that `path` is on."""
    try:
        status = os.statvfs(path)
    except (OSError, ValueError):
        return None
    return Filesystem(
        at_ns=clock.now_ns(),
        available=status.f_bavail * status.f_frsize,
        capacity=status.f_blocks * status.f_frsize,
        used=max(0, status.f_blocks - status.f_bfree) * status.f_frsize,
        inodes=status.f_files,
        inodes_free=status.f_ffree,
    )


def processes_of_machine(clock: Clock, proc: str = "/proc") -> Processes:
    """The smaller of the two limits on tasks, and how many tasks there are (kubelet: `pidlimit.Stats`)."""
    limits = [read_number(f"{proc}/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    known = [limit for limit in limits if limit is not None]
    words = (read_file(f"{proc}/loadavg") or b"").split()
    running = text.number(words[3].partition(b"/")[2]) if len(words) > 3 else None
    return Processes(clock.now_ns(), min(known, default=None), running)


def cgroup_of(process: int | str = "self", proc: str = "/proc") -> str:
    """The cgroup a process is in as the kubelet sees it (`getContainer`): on version 1 CPU and memory have to
    have it in the same one, and systemd's tree decides where there is one. "" where there is none such.
    """
    found: dict[str, str] = {}
    for line in (read_file(f"{proc}/{process}/cgroup") or b"").decode("utf-8", "replace").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found.update(dict.fromkeys(parts[1].split(","), parts[2]))
    if "cpu" not in found and "memory" not in found:
        return found.get("", "")
    one = found.get("cpu", "")
    return found.get("name=systemd", one) if one == found.get("memory") else ""
