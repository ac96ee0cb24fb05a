"""Cgroups of version 2: one hierarchy. Blocking."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trio_kubelet.common.clock import Clock
from trio_kubelet.machine import text
from trio_kubelet.machine.cgroup_files import created, no_limit, times
from trio_kubelet.machine.values import NO_PRESSURES, CgroupDetail, CgroupPressure, CgroupUse, Pressures
from trio_kubelet.native.figures import FigureReader
from trio_kubelet.native.pure_figures import HUNDREDTHS, LINES, MAX, TEXT, Figure, read_file

_MICRO = 1000
_MEMORY = (
    "inactive_file ",
    "anon ",
    "file ",
    "file_mapped ",
    "active_file ",
    "pgfault ",
    "pgmajfault ",
)
_PRESSURE = tuple(
    (kind, field) for kind in ("full ", "some ") for field in ("total=", "avg10=", "avg60=", "avg300=")
)


def _pressure_figures(root: str, resource: str) -> list[Figure]:
    name = f"/{resource}.pressure"
    return [
        Figure(root, name, line, field, HUNDREDTHS if field.startswith("avg") else 0)
        for line, field in _PRESSURE
    ]


class Version2:
    """What a `CgroupReader` asks, where there is version 2."""

    def __init__(self, root: str, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        use = [
            Figure(root, "/cpu.stat", "usage_usec "),
            Figure(root, "/memory.current"),
            *(Figure(root, "/memory.stat", name) for name in _MEMORY),
            Figure(root, "/memory.swap.current"),
            Figure(root, "/memory.max"),
            Figure(root, "/memory.swap.max"),
            *_pressure_figures(root, "cpu"),
            *_pressure_figures(root, "memory"),
            *_pressure_figures(root, "io"),
        ]
        self._use = FigureReader(use)
        self._use_and_processes = FigureReader([*use, Figure(root, "/cgroup.procs", kind=LINES)])
        self._processes = FigureReader([Figure(root, "/cgroup.procs", kind=TEXT)])
        self._settings = FigureReader(
            [
                Figure(root, "/cpu.weight"),
                Figure(root, "/cpu.max"),
                Figure(root, "/cpu.max", field=" "),
                Figure(root, "/memory.min"),
                Figure(root, "/pids.max"),
            ]
        )
        self._detail = FigureReader(
            [
                Figure(root, "/cpu.stat", "user_usec "),
                Figure(root, "/cpu.stat", "system_usec "),
                Figure(root, "/cpu.stat", "nr_periods "),
                Figure(root, "/cpu.stat", "nr_throttled "),
                Figure(root, "/cpu.stat", "throttled_usec "),
                Figure(root, "/cpu.stat", "nr_bursts "),
                Figure(root, "/cpu.stat", "burst_usec "),
                Figure(root, "/memory.peak"),
                Figure(root, "/memory.events", "max "),
                Figure(root, "/memory.events", "oom_kill "),
                Figure(root, "/pids.current"),
                Figure(root, "/io.stat", kind=TEXT),
            ]
        )

    def uses(self, cgroups: Sequence[str], processes: bool) -> list[CgroupUse | None]:
        at_ns = self._clock.now_ns()
        reader = self._use_and_processes if processes else self._use
        found: list[CgroupUse | None] = []
        for cgroup, (values, there, _) in zip(cgroups, reader.read(cgroups), strict=True):
            cpu, memory, inactive, rss, cache, mapped, active, faults, major, swap, limit, swap_limit = (
                values[:12]
            )
            has_memory = bool(there & 2)
            if cgroup == "/":  # the root has no such files; libcontainer takes the machine's figures
                machine, swap = _machine_memory()
                memory, has_memory = machine or 0, machine is not None
            if not there & 1 and not has_memory:
                found.append(None)
                continue
            use = CgroupUse(
                at_ns=at_ns,
                cpu=times(cpu, _MICRO) if there & 1 else None,
                memory=memory if has_memory else None,
                working_set=max(0, memory - inactive),
                rss=rss,
                cache=cache,
                swap=swap,
                mapped=mapped,
                active_file=active,
                inactive_file=inactive,
                page_faults=faults,
                major_page_faults=major,
                memory_limit=limit if there >> 10 & 1 else MAX,
                swap_limit=swap_limit,
                cpu_pressure=_pressures(values, 12),
                memory_pressure=_pressures(values, 20),
                io_pressure=_pressures(values, 28),
                processes=values[36] if processes else 0,
            )
            found.append(use)
        return found

    def details(self, cgroups: Sequence[str], settings: Sequence[CgroupDetail]) -> list[CgroupDetail]:
        found = []
        for each, reading in zip(settings, self._detail.read(cgroups), strict=True):
            user, system, periods, throttled_periods, throttled, bursts, burst = reading.values[:7]
            peak, failures, kills, threads = reading.values[7:11]
            detail = replace(  # kernel memory is not told apart on version 2, as with cAdvisor
                each,
                cpu_user=times(user, _MICRO),
                cpu_system=times(system, _MICRO),
                periods=periods,
                throttled_periods=throttled_periods,
                throttled=times(throttled, _MICRO),
                burst_periods=bursts,
                burst=times(burst, _MICRO),
                memory_peak=peak,
                memory_failures=failures,
                oom_kills=kills,
                threads=threads,
                io=text.disk_io_v2(reading.text()),
            )
            found.append(detail)
        return found

    def settings(self, cgroups: Sequence[str]) -> list[CgroupDetail]:
        found = []
        for cgroup, (values, *_) in zip(cgroups, self._settings.read(cgroups), strict=True):
            weight, quota, period, reservation, threads = values
            detail = CgroupDetail(
                created_ns=created(self.directory(cgroup), "cgroup.events"),
                cpu_shares=_shares(weight),
                cpu_period=period,
                cpu_quota=no_limit(quota),
                memory_reservation=reservation,
                threads_limit=no_limit(threads),
            )
            found.append(detail)
        return found

    def directory(self, cgroup: str) -> str:
        return f"{self._root}{cgroup}"

    def process_lists(self, cgroups: Sequence[str]) -> list[bytes]:
        return [reading.text() for reading in self._processes.read(cgroups)]


def _pressures(values: Sequence[int], start: int) -> Pressures:
    some = values[start : start + 8]
    if not any(some):
        return NO_PRESSURES
    return Pressures(_pressure(*some[:4]), _pressure(*some[4:]))


def _pressure(total: int, avg10: int, avg60: int, avg300: int) -> CgroupPressure:
    return CgroupPressure(total, _percent(avg10), _percent(avg60), _percent(avg300))


def _percent(hundredths: int) -> int | float:
    if hundredths > 10_000:
        return 0
    return hundredths / 100 if hundredths % 100 else hundredths // 100


def _shares(weight: int) -> int:
    """cpu.shares of version 1 for cpu.weight of version 2 (KEP-2254)."""
    return 2 + (weight - 1) * 262_142 // 9999 if 0 < weight <= 10_000 else 0


def _machine_memory() -> tuple[int | None, int]:
    memory = (read_file("/proc/meminfo") or b"").replace(b":", b" ").replace(b" kB", b"")
    values = dict(line.split()[:2] for line in memory.splitlines() if len(line.split()) > 1)
    found = {name: (text.number(value) or 0) * 1024 for name, value in values.items()}
    total, swap = found.get(b"MemTotal"), found.get(b"SwapTotal", 0)
    if total is None:
        return None, 0
    return max(0, total - found.get(b"MemFree", 0)), max(0, swap - found.get(b"SwapFree", 0))
