"""The kernel's cgroup hierarchies as directories and files, version 1 and 2. Blocking.

Version 1 has a tree for each controller, version 2 one for all. A cgroup here is a path below those trees'
roots (`/kubepods/burstable/podUID`) and is made and removed in all of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import msgspec

_CPU_PERIOD = "cpu.cfs_period_us"
_CPU_QUOTA = "cpu.cfs_quota_us"
_DEFAULT_PERIOD_US = 100_000
# A cgroup is there when it is in these trees: a Go kubelet does not make it in every other one.
_DECISIVE = frozenset({"", "cpu", "cpuacct", "cpuset", "memory", "hugetlb", "pids", "name=systemd"})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a cgroup is limited to; None or empty leaves a limit as it is, -1 lifts it. Bytes and µs.

    `huge_pages` is by page size in the kernel's spelling (`2MB`); `unified` are files of version 2.
    """

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory: int | None = None
    pids: int | None = None
    huge_pages: Mapping[str, int] = {}
    unified: Mapping[str, str] = {}


def find_hierarchies() -> dict[str, str]:
    """Controllers and where their trees are mounted; `""` is version 2, `name=…` a tree without any.

    A tree mounted twice counts where its path is shorter. A version 2 tree next to version 1 ones has no
    controllers, but runtimes put their containers there too; it is called `unified`.
    """
    found: dict[str, str] = {}
    unified = ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            path = before.split(" ")[4]
            kind, _, options = after.strip().split(" ", 2)
            if kind == "cgroup2" and not unified:
                unified = path
            elif kind == "cgroup":
                for controller in options.split(","):
                    is_tree = controller.startswith("name=") or controller in _controllers()
                    if is_tree and (controller not in found or len(path) < len(found[controller])):
                        found[controller] = path
    if not unified:
        return found
    return {**found, "unified": unified} if found else {"": unified}


def _controllers() -> set[str]:
    with open("/proc/cgroups", encoding="ascii") as file:
        return {line.split("\t")[0] for line in file if not line.startswith("#")}


class CgroupTree:
    """All hierarchies of the machine. Methods raise OSError."""

    def __init__(
        self,
        hierarchies: Mapping[str, str],
        timed: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`timed` measures what is done to one cgroup: create, update or destroy."""
        self._hierarchies = dict(hierarchies)
        self._timed = timed

    @property
    def is_v2(self) -> bool:
        """Whether the machine has the one tree of version 2."""
        return "" in self._hierarchies

    def exists(self, cgroup: str) -> bool:
        """Whether the cgroup is there, in all hierarchies that count."""
        roots = (root for controller, root in self._hierarchies.items() if controller in _DECISIVE)
        return all(os.path.isdir(f"{root}{cgroup}") for root in roots)

    def create(self, cgroup: str) -> None:
        """Makes the cgroup and those above it."""
        with self._timed("create"):
            self._create(cgroup)

    def _create(self, cgroup: str) -> None:
        for controller, root in self._hierarchies.items():
            path = root
            for part in cgroup.strip("/").split("/"):
                parent, path = path, f"{path}/{part}"
                if self.is_v2:
                    _delegate(parent)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o755)
                if controller == "cpuset":
                    _inherit_cpuset(parent, path)

    def apply(self, cgroup: str, limits: Limits) -> None:
        """Sets the limits that are given; those of controllers the machine does not have are left out."""
        with self._timed("update"):
            self._apply(cgroup, limits)

    def _apply(self, cgroup: str, limits: Limits) -> None:
        settings = _v2_files(limits) if self.is_v2 else _v1_files(limits)
        for controller, name, value in settings:
            root = self._hierarchies.get("" if self.is_v2 else controller)
            if root is None:
                continue
            path = f"{root}{cgroup}/{name}"
            if name == _CPU_PERIOD and limits.cpu_quota:
                # The kernel checks quota against period at each write, so one order may not do.
                with contextlib.suppress(OSError):
                    _write(f"{root}{cgroup}/{_CPU_QUOTA}", str(limits.cpu_quota))
            if controller == "hugetlb" and not os.path.exists(path):
                continue
            _write(path, value)

    def limits(self, cgroup: str) -> Limits:
        """CPU and memory the cgroup is limited to, -1 for no limit. Version 1 shows no limit of memory as one
        of nearly 2^63 bytes.
        """
        if self.is_v2:
            quota, period = self._read("", cgroup, "cpu.max").split()
            return Limits(
                cpu_shares=cpu_shares(int(self._read("", cgroup, "cpu.weight"))),
                cpu_quota=_or_unlimited(quota),
                cpu_period=int(period),
                memory=_or_unlimited(self._read("", cgroup, "memory.max")),
            )
        return Limits(
            cpu_shares=int(self._read("cpu", cgroup, "cpu.shares")),
            cpu_quota=int(self._read("cpu", cgroup, _CPU_QUOTA)),
            cpu_period=int(self._read("cpu", cgroup, _CPU_PERIOD)),
            memory=int(self._read("memory", cgroup, "memory.limit_in_bytes")),
        )

    def memory_in_use(self, cgroup: str) -> int:
        """Bytes of memory in use in the cgroup and below."""
        if self.is_v2:
            return int(self._read("", cgroup, "memory.current"))
        return int(self._read("memory", cgroup, "memory.usage_in_bytes"))

    def _read(self, controller: str, cgroup: str, name: str) -> str:
        with open(f"{self._hierarchies[controller]}{cgroup}/{name}", encoding="ascii") as file:
            return file.read().strip()

    def children(self, cgroup: str) -> set[str]:
        """Names of the cgroups right below, in any hierarchy."""
        names: set[str] = set()
        for path in self._paths(cgroup):
            with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
                names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return names

    def kill(self, cgroup: str) -> int:
        """Kills every process in the cgroup and below; returns how many were found."""
        found: set[int] = set()
        for path in self._paths(cgroup):
            for directory in _directories(path):
                found.update(_processes(directory))
                # A frozen process takes no signal.
                with contextlib.suppress(OSError):
                    _write(f"{directory}/freezer.state", "THAWED")
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return len(found)

    def remove(self, cgroup: str) -> bool:
        """Removes the cgroup and those below it; whether all of it is gone. False while it has processes."""
        with self._timed("destroy"):
            return self._remove(cgroup)

    def _remove(self, cgroup: str) -> bool:
        gone = True
        for path in self._paths(cgroup):
            for directory in _directories(path):
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                        raise
                    gone = False
        return gone

    def _paths(self, cgroup: str) -> Iterator[str]:
        return (f"{root}{cgroup}" for root in self._hierarchies.values())


def cpu_weight(shares: int) -> int:
    """cpu.weight of version 2 for cpu.shares of version 1 (KEP-2254)."""
    return 1 + (min(shares, 262_144) - 2) * 9999 // 262_142


def cpu_shares(weight: int) -> int:
    """cpu.shares of version 1 for cpu.weight of version 2; what `cpu_weight` rounds off is lost."""
    return (weight - 1) * 262_142 // 9999 + 2


def _v1_files(limits: Limits) -> Iterator[tuple[str, str, str]]:
    if limits.cpu_shares is not None:
        yield "cpu", "cpu.shares", str(limits.cpu_shares)
    if limits.cpu_period:
        yield "cpu", _CPU_PERIOD, str(limits.cpu_period)
    if limits.cpu_quota:
        yield "cpu", _CPU_QUOTA, str(limits.cpu_quota)
    if limits.memory:
        yield "memory", "memory.limit_in_bytes", str(limits.memory)
    if limits.pids is not None:
        yield "pids", "pids.max", _or_max(limits.pids)
    for size, limit in limits.huge_pages.items():
        yield "hugetlb", f"hugetlb.{size}.limit_in_bytes", str(limit)


def _v2_files(limits: Limits) -> Iterator[tuple[str, str, str]]:
    if limits.cpu_shares is not None:
        yield "cpu", "cpu.weight", str(cpu_weight(limits.cpu_shares))
    if limits.cpu_quota:
        period = limits.cpu_period or _DEFAULT_PERIOD_US
        yield "cpu", "cpu.max", f"{_or_max(limits.cpu_quota)} {period}"
    if limits.memory:
        yield "memory", "memory.max", _or_max(limits.memory)
    if limits.pids is not None:
        yield "pids", "pids.max", _or_max(limits.pids)
    for size, limit in limits.huge_pages.items():
        yield "hugetlb", f"hugetlb.{size}.max", str(limit)
    for name, value in limits.unified.items():
        yield "", name, value


def _or_max(limit: int) -> str:
    return "max" if limit <= 0 else str(limit)


def _or_unlimited(text: str) -> int:
    return -1 if text == "max" else int(text)


def _delegate(parent: str) -> None:
    """Lets cgroups below `parent` have all its controllers."""
    with open(f"{parent}/cgroup.controllers", encoding="ascii") as file:
        controllers = file.read().split()
    for controller in controllers:
        with contextlib.suppress(OSError):  # one that cannot be delegated must not keep the others back
            _write(f"{parent}/cgroup.subtree_control", f"+{controller}")


def _inherit_cpuset(parent: str, path: str) -> None:
    """A new cpuset of version 1 has no CPUs and no memory, and takes no process until it has."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        with open(f"{path}/{name}", encoding="ascii") as file:
            if file.read().strip():
                continue
        with open(f"{parent}/{name}", encoding="ascii") as file:
            _write(f"{path}/{name}", file.read().strip())


def _directories(path: str) -> list[str]:
    """The cgroup and all below it, the deepest first; empty if it is not there."""
    return [directory for directory, _, _ in os.walk(path, topdown=False)]


def _processes(directory: str) -> Iterator[int]:
    """Processes in one cgroup; 0 stands for one this process cannot see."""
    with contextlib.suppress(OSError), open(f"{directory}/cgroup.procs", encoding="ascii") as file:
        yield from (int(line) for line in file if line.strip() not in ("", "0"))


def _write(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
