"""Reads what cgroups have used, version 1 and 2. Blocking: to be called in a thread.

A file that is missing, or a cgroup that vanishes in between, gives zeros or None and never an error. What
counts as memory in use, working set and so on is cAdvisor's rule (`container/libcontainer`), so that figures
stay comparable when a node changes its agent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from trio_kubelet.clock import Clock
from trio_kubelet.stats import text
from trio_kubelet.stats.values import MAX, CgroupDetail, CgroupUse

_READ = 64 * 1024
_MICRO = 1000
_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def read_file(path: str) -> bytes | None:
    """The beginning of a file, None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return os.read(descriptor, _READ)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_number(path: str) -> int | None:
    """A file that holds one number."""
    return text.number(read_file(path))


class CgroupReader(Protocol):
    """Reads the cgroups of a machine; a cgroup is named by its path below the hierarchies' roots."""

    def use(self, cgroup: str) -> CgroupUse | None:
        """What it has used; None if there is no such cgroup."""
        ...

    def detail(self, cgroup: str, known: CgroupDetail | None = None) -> CgroupDetail:
        """What else is known of it. With `known` what it is set to is taken from there and not read again."""
        ...

    def children(self, cgroup: str) -> list[str]:
        """Names of the cgroups right below."""
        ...

    def processes(self, cgroup: str) -> list[int]:
        """Processes right in it."""
        ...


def cgroup_reader(hierarchies: Mapping[str, str], clock: Clock) -> CgroupReader:
    """The reader for the hierarchies that `find_hierarchies` found."""
    if "" in hierarchies:
        return _Version2(hierarchies[""], clock)
    return _Version1(hierarchies, clock)


def container_id(directory: str) -> str:
    """The container whose cgroup has this last path component (`ID`, `cri-containerd-ID.scope`)."""
    if directory.endswith(".scope"):
        return directory.removesuffix(".scope").rpartition("-")[2]
    return directory


class _Version1:
    def __init__(self, hierarchies: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        nowhere = "/nonexistent"
        self._cpu = hierarchies.get("cpu", nowhere)
        self._cpuacct = hierarchies.get("cpuacct", nowhere)
        self._memory = hierarchies.get("memory", nowhere)
        self._pids = hierarchies.get("pids", nowhere)
        self._blkio = hierarchies.get("blkio", nowhere)

    def use(self, cgroup: str) -> CgroupUse | None:
        memory = f"{self._memory}{cgroup}/memory."
        cpu = read_number(f"{self._cpuacct}{cgroup}/cpuacct.usage")
        usage = read_number(memory + "usage_in_bytes")
        if cpu is None and usage is None:
            return None
        stat = read_file(memory + "stat") or b""
        inactive = text.field(stat, b"total_inactive_file")
        return CgroupUse(
            at_ns=self._clock.now_ns(),
            cpu=cpu,
            memory=usage,
            working_set=max(0, (usage or 0) - inactive),
            rss=text.field(stat, b"total_rss"),
            cache=text.field(stat, b"total_cache"),
            swap=text.field(stat, b"total_swap"),
            mapped=text.field(stat, b"total_mapped_file"),
            active_file=text.field(stat, b"total_active_file"),
            inactive_file=inactive,
            page_faults=text.field(stat, b"pgfault"),
            major_page_faults=text.field(stat, b"pgmajfault"),
            memory_limit=_or_max(read_number(memory + "limit_in_bytes")),
            swap_limit=_or_zero(read_number(memory + "memsw.limit_in_bytes")),
            processes=text.lines_of(read_file(f"{self._cpu}{cgroup}/cgroup.procs")),
        )

    def detail(self, cgroup: str, known: CgroupDetail | None = None) -> CgroupDetail:
        cpu, memory = f"{self._cpu}{cgroup}/cpu.", f"{self._memory}{cgroup}/memory."
        if known is None:
            limit = read_number(f"{self._pids}{cgroup}/pids.max")
            known = CgroupDetail(
                created_ns=_created(f"{self._memory}{cgroup}", "cgroup.clone_children"),
                cpu_shares=_or_zero(read_number(cpu + "shares")),
                cpu_period=_or_zero(read_number(cpu + "cfs_period_us")),
                cpu_quota=_or_zero(read_number(cpu + "cfs_quota_us")),
                memory_reservation=_or_zero(read_number(memory + "soft_limit_in_bytes")),
                threads_limit=0 if limit in (None, MAX) else limit,
            )
        stat = (known.cpu_quota and read_file(cpu + "stat")) or b""
        accounting = read_file(f"{self._cpuacct}{cgroup}/cpuacct.stat") or b""
        io = f"{self._blkio}{cgroup}/blkio.throttle.io_service"
        return msgspec.structs.replace(
            known,
            cpu_user=_times(text.field(accounting, b"user"), _TICK),
            cpu_system=_times(text.field(accounting, b"system"), _TICK),
            periods=text.field(stat, b"nr_periods"),
            throttled_periods=text.field(stat, b"nr_throttled"),
            throttled=text.field(stat, b"throttled_time"),
            burst_periods=text.field(stat, b"nr_bursts"),
            burst=text.field(stat, b"burst_time"),
            memory_peak=_or_zero(read_number(memory + "max_usage_in_bytes")),
            memory_failures=_or_zero(read_number(memory + "failcnt")),
            kernel_memory=_or_zero(read_number(memory + "kmem.usage_in_bytes")),
            oom_kills=text.field(read_file(memory + "oom_control") or b"", b"oom_kill"),
            threads=_or_zero(read_number(f"{self._pids}{cgroup}/pids.current")),
            io=text.disk_io_v1(read_file(io + "_bytes_recursive"), read_file(io + "d_recursive")),
        )

    def children(self, cgroup: str) -> list[str]:
        return _directories(f"{self._memory}{cgroup}")

    def processes(self, cgroup: str) -> list[int]:
        return list(_pids(read_file(f"{self._cpu}{cgroup}/cgroup.procs")))


class _Version2:
    def __init__(self, root: str, clock: Clock) -> None:
        self._root = root
        self._clock = clock

    def use(self, cgroup: str) -> CgroupUse | None:
        base = self._root + ("" if cgroup == "/" else cgroup)
        cpu_stat, stat = read_file(f"{base}/cpu.stat"), read_file(f"{base}/memory.stat") or b""
        usage = read_number(f"{base}/memory.current")
        swap = _or_zero(read_number(f"{base}/memory.swap.current"))
        if cgroup == "/":  # the root has no such files; libcontainer takes the machine's figures
            usage, swap = self._machine_memory()
        if cpu_stat is None and usage is None:
            return None
        inactive = text.field(stat, b"inactive_file")
        return CgroupUse(
            at_ns=self._clock.now_ns(),
            cpu=None if cpu_stat is None else _times(text.field(cpu_stat, b"usage_usec"), _MICRO),
            memory=usage,
            working_set=max(0, (usage or 0) - inactive),
            rss=text.field(stat, b"anon"),
            cache=text.field(stat, b"file"),
            swap=swap,
            mapped=text.field(stat, b"file_mapped"),
            active_file=text.field(stat, b"active_file"),
            inactive_file=inactive,
            page_faults=text.field(stat, b"pgfault"),
            major_page_faults=text.field(stat, b"pgmajfault"),
            memory_limit=_or_max(read_number(f"{base}/memory.max")),
            swap_limit=_or_zero(read_number(f"{base}/memory.swap.max")),
            processes=text.lines_of(read_file(f"{base}/cgroup.procs")),
            cpu_pressure=text.pressures(read_file(f"{base}/cpu.pressure")),
            memory_pressure=text.pressures(read_file(f"{base}/memory.pressure")),
            io_pressure=text.pressures(read_file(f"{base}/io.pressure")),
        )

    def detail(self, cgroup: str, known: CgroupDetail | None = None) -> CgroupDetail:
        base = self._root + ("" if cgroup == "/" else cgroup)
        if known is None:
            quota, _, period = (read_file(f"{base}/cpu.max") or b"").partition(b" ")
            allowed, limit = text.number(quota), read_number(f"{base}/pids.max")
            known = CgroupDetail(
                created_ns=_created(base, "cgroup.events"),
                cpu_shares=_shares(read_number(f"{base}/cpu.weight")),
                cpu_period=_or_zero(text.number(period)),
                cpu_quota=0 if allowed in (None, MAX) else allowed,
                memory_reservation=_or_zero(read_number(f"{base}/memory.min")),
                threads_limit=0 if limit in (None, MAX) else limit,
            )
        stat = read_file(f"{base}/cpu.stat") or b""
        events = read_file(f"{base}/memory.events") or b""
        return msgspec.structs.replace(  # kernel memory is not told apart on version 2, as with cAdvisor
            known,
            cpu_user=_times(text.field(stat, b"user_usec"), _MICRO),
            cpu_system=_times(text.field(stat, b"system_usec"), _MICRO),
            periods=text.field(stat, b"nr_periods"),
            throttled_periods=text.field(stat, b"nr_throttled"),
            throttled=_times(text.field(stat, b"throttled_usec"), _MICRO),
            burst_periods=text.field(stat, b"nr_bursts"),
            burst=_times(text.field(stat, b"burst_usec"), _MICRO),
            memory_peak=_or_zero(read_number(f"{base}/memory.peak")),
            memory_failures=text.field(events, b"max"),
            oom_kills=text.field(events, b"oom_kill"),
            threads=_or_zero(read_number(f"{base}/pids.current")),
            io=text.disk_io_v2(read_file(f"{base}/io.stat")),
        )

    def children(self, cgroup: str) -> list[str]:
        return _directories(self._root + ("" if cgroup == "/" else cgroup))

    def processes(self, cgroup: str) -> list[int]:
        return list(_pids(read_file(f"{self._root}{cgroup}/cgroup.procs")))

    def _machine_memory(self) -> tuple[int | None, int]:
        memory = (read_file("/proc/meminfo") or b"").replace(b":", b" ").replace(b" kB", b"")
        values = dict(line.split()[:2] for line in memory.splitlines() if len(line.split()) > 1)
        found = {name: (text.number(value) or 0) * 1024 for name, value in values.items()}
        total, swap = found.get(b"MemTotal"), found.get(b"SwapTotal", 0)
        if total is None:
            return None, 0
        return max(0, total - found.get(b"MemFree", 0)), max(0, swap - found.get(b"SwapFree", 0))


def _times(value: int, factor: int) -> int:
    return min(value * factor, MAX)


def _or_zero(value: int | None) -> int:
    return value or 0


def _or_max(value: int | None) -> int:
    return MAX if value is None else value


def _shares(weight: int | None) -> int:
    """cpu.shares of version 1 for cpu.weight of version 2 (KEP-2254)."""
    return 2 + (weight - 1) * 262_142 // 9999 if weight and weight <= 10_000 else 0


def _created(directory: str, steady: str) -> int:
    """When a cgroup was made: its directory changes with each one made below, this file does not."""
    found = []
    for path in (directory, f"{directory}/{steady}"):
        try:
            found.append(os.stat(path).st_mtime_ns)
        except OSError:
            continue
    return min(found, default=0)


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _pids(listing: bytes | None) -> Iterator[int]:
    for line in (listing or b"").splitlines():
        if pid := text.number(line):
            yield pid
