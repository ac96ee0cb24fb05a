"""The families of `/metrics/cadvisor` with one sample for each cgroup, interface or device: tables. Pure."""

from __future__ import annotations

from collections.abc import Callable

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.machine.values import UNLIMITED, DeviceIO, DiskIO, Filesystem, Interface
from trio_kubelet.stats.cgroup_details import CgroupRow
from trio_kubelet.stats.exposition import COUNTER, GAUGE

_MICROSECONDS = 1_000_000

Value = Callable[[CgroupRow], "int | float | None"]
"""A sample's value; None for no sample."""


def seconds(nanoseconds: int) -> float:
    """Seconds, as Prometheus wants them."""
    return nanoseconds / NANOSECONDS


def _limit(value: int) -> int:
    return 0 if value > UNLIMITED else value


def _quota(value: Callable[[CgroupRow], int | float]) -> Value:
    """A value that is shown of cgroups with a CPU quota only."""
    return lambda row: value(row) if row.detail.cpu_quota else None


FAMILIES: tuple[tuple[str, str, str, Value], ...] = (
    (
        "container_cpu_cfs_burst_periods_total",
        COUNTER,
        "Periods in which more than the quota was used.",
        _quota(lambda row: row.detail.burst_periods),
    ),
    (
        "container_cpu_cfs_burst_seconds_total",
        COUNTER,
        "CPU time used beyond the quota.",
        _quota(lambda row: seconds(row.detail.burst)),
    ),
    (
        "container_cpu_cfs_periods_total",
        COUNTER,
        "Periods in which the quota was looked at.",
        _quota(lambda row: row.detail.periods),
    ),
    (
        "container_cpu_cfs_throttled_periods_total",
        COUNTER,
        "Periods in which tasks were throttled.",
        _quota(lambda row: row.detail.throttled_periods),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Time for which tasks were throttled.",
        _quota(lambda row: seconds(row.detail.throttled)),
    ),
    (
        "container_cpu_system_seconds_total",
        COUNTER,
        "CPU time in the kernel.",
        lambda row: seconds(row.detail.cpu_system),
    ),
    (
        "container_cpu_user_seconds_total",
        COUNTER,
        "CPU time in user mode.",
        lambda row: seconds(row.detail.cpu_user),
    ),
    (
        "container_file_descriptors",
        GAUGE,
        "Files the processes hold open.",
        lambda row: row.files.descriptors,
    ),
    ("container_memory_cache", GAUGE, "Page cache in bytes.", lambda row: row.use.cache),
    (
        "container_memory_failcnt",
        COUNTER,
        "How often the memory limit was hit.",
        lambda row: row.detail.memory_failures,
    ),
    (
        "container_memory_kernel_usage",
        GAUGE,
        "Kernel memory in bytes.",
        lambda row: row.detail.kernel_memory,
    ),
    ("container_memory_mapped_file", GAUGE, "Mapped files in bytes.", lambda row: row.use.mapped),
    (
        "container_memory_max_usage_bytes",
        GAUGE,
        "The most memory that was in use.",
        lambda row: row.detail.memory_peak,
    ),
    (
        "container_memory_rss",
        GAUGE,
        "Anonymous memory in bytes, without swap and huge pages.",
        lambda row: row.use.rss,
    ),
    ("container_memory_swap", GAUGE, "Swap in bytes.", lambda row: row.use.swap),
    (
        "container_memory_total_active_file_bytes",
        GAUGE,
        "Page cache that was used recently.",
        lambda row: row.use.active_file,
    ),
    (
        "container_memory_total_inactive_file_bytes",
        GAUGE,
        "Page cache that can be reclaimed first.",
        lambda row: row.use.inactive_file,
    ),
    (
        "container_memory_usage_bytes",
        GAUGE,
        "Memory in use, whatever for.",
        lambda row: row.use.memory or 0,
    ),
    (
        "container_memory_working_set_bytes",
        GAUGE,
        "Memory in use without inactive page cache.",
        lambda row: row.use.working_set,
    ),
    (
        "container_oom_events_total",
        COUNTER,
        "Processes killed for want of memory.",
        lambda row: row.detail.oom_kills,
    ),
    ("container_processes", GAUGE, "Processes.", lambda row: row.processes),
    ("container_sockets", GAUGE, "Sockets the processes hold open.", lambda row: row.files.sockets),
    ("container_threads", GAUGE, "Threads.", lambda row: row.detail.threads),
    (
        "container_threads_max",
        GAUGE,
        "Threads there may be, 0 for no limit.",
        lambda row: row.detail.threads_limit,
    ),
)
"""Name, kind, meaning, value."""

CONSTANTS: tuple[tuple[str, str, str, int], ...] = (
    ("container_cpu_load_average_10s", "", "Not measured, as by a kubelet.", 0),
    ("container_cpu_load_d_average_10s", "", "Not measured, as by a kubelet.", 0),
    ("container_health_state", "", "Not known to the node, as to a kubelet.", -1),
    *(
        ("container_tasks_state", state, "Not measured, as by a kubelet.", 0)
        for state in ("iowaiting", "running", "sleeping", "stopped", "uninterruptible")
    ),
)
"""What a kubelet serves without knowing it: name, `state` label if any, meaning, value; gauges."""

PRESSURES: tuple[tuple[str, str, Value], ...] = (
    (
        "container_pressure_cpu_stalled_seconds_total",
        "Time all tasks waited for a CPU.",
        lambda row: row.use.cpu_pressure.full.total / _MICROSECONDS,
    ),
    (
        "container_pressure_cpu_waiting_seconds_total",
        "Time some task waited for a CPU.",
        lambda row: row.use.cpu_pressure.some.total / _MICROSECONDS,
    ),
    (
        "container_pressure_io_stalled_seconds_total",
        "Time all tasks waited for a disk.",
        lambda row: row.use.io_pressure.full.total / _MICROSECONDS,
    ),
    (
        "container_pressure_io_waiting_seconds_total",
        "Time some task waited for a disk.",
        lambda row: row.use.io_pressure.some.total / _MICROSECONDS,
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        "Time all tasks waited for memory.",
        lambda row: row.use.memory_pressure.full.total / _MICROSECONDS,
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        "Time some task waited for memory.",
        lambda row: row.use.memory_pressure.some.total / _MICROSECONDS,
    ),
)
"""Of pressure: name, meaning, value; counters."""

# What a cgroup is set to; without a moment, as it does not change by itself.
SETTINGS: tuple[tuple[str, str, Value], ...] = (
    ("container_spec_cpu_period", "The period of the CPU quota in µs.", lambda row: row.detail.cpu_period),
    ("container_spec_cpu_quota", "The CPU quota in µs.", lambda row: row.detail.cpu_quota or None),
    ("container_spec_cpu_shares", "The share of CPU.", lambda row: row.detail.cpu_shares),
    (
        "container_spec_memory_limit_bytes",
        "The memory limit, 0 for none.",
        lambda row: _limit(row.use.memory_limit),
    ),
    (
        "container_spec_memory_reservation_limit_bytes",
        "Reserved memory.",
        lambda row: _limit(row.detail.memory_reservation),
    ),
    (
        "container_spec_memory_swap_limit_bytes",
        "The swap limit, 0 for none.",
        lambda row: _limit(row.use.swap_limit),
    ),
    (
        "container_start_time_seconds",
        "When the cgroup was made, in seconds since the epoch.",
        lambda row: row.detail.created_ns // NANOSECONDS,
    ),
)
"""Of settings: name, meaning, value; gauges."""

NETWORK: tuple[tuple[str, str, Callable[[Interface], int | None]], ...] = (
    ("receive_bytes", "Bytes received.", lambda each: each.rx_bytes),
    ("receive_errors", "Errors while receiving.", lambda each: each.rx_errors),
    ("receive_packets_dropped", "Packets dropped while receiving.", lambda each: each.rx_dropped),
    ("receive_packets", "Packets received.", lambda each: each.rx_packets),
    ("transmit_bytes", "Bytes sent.", lambda each: each.tx_bytes),
    ("transmit_errors", "Errors while sending.", lambda each: each.tx_errors),
    ("transmit_packets_dropped", "Packets dropped while sending.", lambda each: each.tx_dropped),
    ("transmit_packets", "Packets sent.", lambda each: each.tx_packets),
)
"""Of an interface: the middle of the name, meaning, value; counters."""

DISK: tuple[tuple[str, str, Callable[[DiskIO], int]], ...] = (
    ("container_fs_reads_bytes_total", "Bytes read.", lambda each: each.read_bytes),
    ("container_fs_reads_total", "Reads completed.", lambda each: each.reads),
    ("container_fs_writes_bytes_total", "Bytes written.", lambda each: each.write_bytes),
    ("container_fs_writes_total", "Writes completed.", lambda each: each.writes),
)
"""Of a device: name, meaning, value; counters."""

DEVICE: tuple[tuple[str, str, str, Callable[[DeviceIO], int | float]], ...] = (
    ("container_fs_io_current", GAUGE, "Transfers under way.", lambda io: io.in_progress),
    ("container_fs_io_time_seconds_total", COUNTER, "Time with transfers.", lambda io: io.busy_ms / 1000),
    (
        "container_fs_io_time_weighted_seconds_total",
        COUNTER,
        "Time with transfers, times their number.",
        lambda io: io.weighted_ms / 1000,
    ),
    ("container_fs_read_seconds_total", COUNTER, "Time spent reading.", lambda io: io.read_ms / 1000),
    ("container_fs_reads_merged_total", COUNTER, "Reads merged.", lambda io: io.reads_merged),
    ("container_fs_sector_reads_total", COUNTER, "Sectors read.", lambda io: io.sectors_read),
    ("container_fs_sector_writes_total", COUNTER, "Sectors written.", lambda io: io.sectors_written),
    ("container_fs_write_seconds_total", COUNTER, "Time spent writing.", lambda io: io.write_ms / 1000),
    ("container_fs_writes_merged_total", COUNTER, "Writes merged.", lambda io: io.writes_merged),
)
"""Of the device of a filesystem of the machine: name, kind, meaning, value."""

SIZES: tuple[tuple[str, str, Callable[[Filesystem], int]], ...] = (
    ("container_fs_inodes_free", "Inodes that are free.", lambda each: each.inodes_free),
    ("container_fs_inodes_total", "Inodes.", lambda each: each.inodes),
    ("container_fs_limit_bytes", "Size of the filesystem.", lambda each: each.capacity),
    ("container_fs_usage_bytes", "Bytes in use on the filesystem.", lambda each: each.used),
)
"""Of a filesystem of the machine: name, meaning, value; gauges."""
