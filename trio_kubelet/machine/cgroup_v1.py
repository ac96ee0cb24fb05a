"""Cgroups of version 1: a hierarchy for each controller. Blocking."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from trio_kubelet.common.clock import Clock
from trio_kubelet.machine import text
from trio_kubelet.machine.cgroup_files import created, no_limit, times
from trio_kubelet.machine.values import UNLIMITED, CgroupDetail, CgroupUse
from trio_kubelet.native.figures import FigureReader
from trio_kubelet.native.pure_figures import LINES, MAX, TEXT, DirectoryFigures, Figure

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

_MOST_LIMITS = 20_000
"""Cgroups whose limits are remembered; with more, those of cgroups long gone are forgotten with the rest."""


class _Limits(NamedTuple):
    """Limits of memory, and of memory and swap: those in force when its own were read, and these."""

    in_force: tuple[int | None, int | None]
    memory: int
    swap: int


class Version1:
    """What a `CgroupReader` asks, where there is version 1."""

    def __init__(self, hierarchies: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        nowhere = "/nonexistent"
        cpu = hierarchies.get("cpu", nowhere)
        cpuacct = hierarchies.get("cpuacct", nowhere)
        self._memory = memory = hierarchies.get("memory", nowhere)
        pids = hierarchies.get("pids", nowhere)
        blkio = hierarchies.get("blkio", nowhere)
        use = [
            Figure(cpuacct, "/cpuacct.usage"),
            Figure(memory, "/memory.usage_in_bytes"),
            Figure(memory, "/memory.stat", "total_inactive_file "),
            Figure(memory, "/memory.stat", "total_rss "),
            Figure(memory, "/memory.stat", "total_cache "),
            Figure(memory, "/memory.stat", "total_swap "),
            Figure(memory, "/memory.stat", "total_mapped_file "),
            Figure(memory, "/memory.stat", "total_active_file "),
            Figure(memory, "/memory.stat", "pgfault "),
            Figure(memory, "/memory.stat", "pgmajfault "),
            Figure(memory, "/memory.stat", "hierarchical_memory_limit "),
            Figure(memory, "/memory.stat", "hierarchical_memsw_limit "),
        ]
        self._own_limits = FigureReader(
            [Figure(memory, "/memory.limit_in_bytes"), Figure(memory, "/memory.memsw.limit_in_bytes")]
        )
        self._limits: dict[str, _Limits] = {}
        self._use = FigureReader(use)
        self._use_and_processes = FigureReader([*use, Figure(cpu, "/cgroup.procs", kind=LINES)])
        self._processes = FigureReader([Figure(cpu, "/cgroup.procs", kind=TEXT)])
        self._settings = FigureReader(
            [
                Figure(cpu, "/cpu.shares"),
                Figure(cpu, "/cpu.cfs_period_us"),
                Figure(cpu, "/cpu.cfs_quota_us"),
                Figure(memory, "/memory.soft_limit_in_bytes"),
                Figure(pids, "/pids.max"),
            ]
        )
        self._detail = FigureReader(
            [
                Figure(cpuacct, "/cpuacct.stat", "user "),
                Figure(cpuacct, "/cpuacct.stat", "system "),
                Figure(memory, "/memory.max_usage_in_bytes"),
                Figure(memory, "/memory.failcnt"),
                Figure(memory, "/memory.kmem.usage_in_bytes"),
                Figure(memory, "/memory.oom_control", "oom_kill "),
                Figure(pids, "/pids.current"),
                Figure(blkio, "/blkio.throttle.io_service_bytes_recursive", kind=TEXT),
                Figure(blkio, "/blkio.throttle.io_serviced_recursive", kind=TEXT),
            ]
        )
        names = ("nr_periods ", "nr_throttled ", "throttled_time ", "nr_bursts ", "burst_time ")
        self._quota = FigureReader([Figure(cpu, "/cpu.stat", name) for name in names])

    def uses(self, cgroups: Sequence[str], processes: bool) -> list[CgroupUse | None]:
        at_ns = self._clock.now_ns()
        reader = self._use_and_processes if processes else self._use
        readings = reader.read(cgroups)
        limits = self._limits_of(cgroups, readings)
        found: list[CgroupUse | None] = []
        for cgroup, (values, there, _) in zip(cgroups, readings, strict=True):
            if not there & 0b11:
                found.append(None)
                continue
            cpu, memory, inactive, rss, cache, swap, mapped, active, faults, major, *more = values
            use = CgroupUse(
                at_ns=at_ns,
                cpu=cpu if there & 1 else None,
                memory=memory if there & 2 else None,
                working_set=max(0, memory - inactive),
                rss=rss,
                cache=cache,
                swap=swap,
                mapped=mapped,
                active_file=active,
                inactive_file=inactive,
                page_faults=faults,
                major_page_faults=major,
                memory_limit=limits[cgroup].memory,
                swap_limit=limits[cgroup].swap,
                processes=more[2] if processes else 0,
            )
            found.append(use)
        return found

    def _limits_of(
        self, cgroups: Sequence[str], readings: Sequence[DirectoryFigures]
    ) -> Mapping[str, _Limits]:
        """The limits of cgroups whose use was read.

        What is in force for a cgroup, its own limit or one of those above, stands in `memory.stat`. Where
        nothing limits it, it has none; where that is as it was, its own is (those above are the sum of those
        below and change with them).
        """
        if len(self._limits) > _MOST_LIMITS:
            self._limits.clear()
        found, unknown = {}, {}
        for cgroup, reading in zip(cgroups, readings, strict=True):
            in_force = reading.get(10), reading.get(11)
            known = self._limits.get(cgroup)
            if known is not None and known.in_force == in_force:
                found[cgroup] = known
            elif min(each or 0 for each in in_force) > UNLIMITED:
                found[cgroup] = _Limits(in_force, in_force[0] or MAX, in_force[1] or 0)
            elif reading.there:
                unknown[cgroup] = in_force
        for cgroup, own in zip(unknown, self._own_limits.read(list(unknown)), strict=True):
            memory = own.get(0)
            limits = _Limits(unknown[cgroup], MAX if memory is None else memory, own.get(1) or 0)
            found[cgroup] = self._limits[cgroup] = limits
        return found

    def details(self, cgroups: Sequence[str], settings: Sequence[CgroupDetail]) -> list[CgroupDetail]:
        limited = [cgroup for cgroup, each in zip(cgroups, settings, strict=True) if each.cpu_quota]
        quotas = {
            cgroup: values for cgroup, (values, *_) in zip(limited, self._quota.read(limited), strict=True)
        }
        found = []
        for cgroup, each, (values, there, texts) in zip(
            cgroups, settings, self._detail.read(cgroups), strict=True
        ):
            user, system, peak, failures, kernel, kills, threads, *_ = values
            periods, throttled_periods, throttled, bursts, burst = quotas.get(cgroup, (0,) * 5)
            moved = texts[0] if there >> 7 & 1 else None, texts[-1] if there >> 8 & 1 else None
            detail = replace(
                each,
                cpu_user=times(user, _TICK),
                cpu_system=times(system, _TICK),
                periods=periods,
                throttled_periods=throttled_periods,
                throttled=throttled,
                burst_periods=bursts,
                burst=burst,
                memory_peak=peak,
                memory_failures=failures,
                kernel_memory=kernel,
                oom_kills=kills,
                threads=threads,
                io=text.disk_io_v1(*moved),
            )
            found.append(detail)
        return found

    def settings(self, cgroups: Sequence[str]) -> list[CgroupDetail]:
        found = []
        for cgroup, (values, *_) in zip(cgroups, self._settings.read(cgroups), strict=True):
            shares, period, quota, reservation, threads = values
            detail = CgroupDetail(
                created_ns=created(self.directory(cgroup), "cgroup.clone_children"),
                cpu_shares=shares,
                cpu_period=period,
                cpu_quota=quota,
                memory_reservation=reservation,
                threads_limit=no_limit(threads),
            )
            found.append(detail)
        return found

    def directory(self, cgroup: str) -> str:
        return f"{self._memory}{cgroup}"

    def process_lists(self, cgroups: Sequence[str]) -> list[bytes]:
        return [reading.text() for reading in self._processes.read(cgroups)]
