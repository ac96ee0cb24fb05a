"""What was measured, as plain values: the collector makes them, the pages are pure functions of them.

Sizes in bytes, times in nanoseconds. None is "not known": a file that is not there, a number that is not one.
They form no cycles, so that the garbage collector need not know of the thousands of them (`gc=False`).
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX: Final = 2**64 - 1
"""The largest number the API can carry; also what the kernel's `max` is read as."""

UNLIMITED: Final = 1 << 62
"""A memory limit above this is none: the kernel rounds the largest one down to a page."""


class CgroupPressure(msgspec.Struct, frozen=True, gc=False):
    """One kind of pressure: microseconds stalled since the cgroup was made, and averages in percent."""

    total: int = 0
    avg10: int | float = 0
    avg60: int | float = 0
    avg300: int | float = 0


class Pressures(msgspec.Struct, frozen=True, gc=False):
    """Pressure on one resource: all tasks stalled, and at least one."""

    full: CgroupPressure = CgroupPressure()
    some: CgroupPressure = CgroupPressure()


NO_PRESSURES: Final = Pressures()


class CgroupUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a cgroup and those below it have used until `at_ns`, and the memory limits it has."""

    at_ns: int
    cpu: int | None = None  # nanoseconds
    memory: int | None = None
    working_set: int = 0
    rss: int = 0
    cache: int = 0
    swap: int = 0
    mapped: int = 0
    active_file: int = 0
    inactive_file: int = 0
    page_faults: int = 0
    major_page_faults: int = 0
    memory_limit: int = MAX
    swap_limit: int = MAX
    processes: int = 0
    cpu_pressure: Pressures = NO_PRESSURES
    memory_pressure: Pressures = NO_PRESSURES
    io_pressure: Pressures = NO_PRESSURES


class DiskIO(msgspec.Struct, frozen=True, gc=False):
    """What went to and from one device; `device` is `major:minor`. `other_bytes` are the further kinds of
    transfer that version 1 tells (`Sync`, `Total`).
    """

    device: str
    read_bytes: int = 0
    write_bytes: int = 0
    reads: int = 0
    writes: int = 0
    other_bytes: tuple[tuple[str, int], ...] = ()


class DeviceIO(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a block device has done since the machine was started; sectors of 512 bytes, milliseconds."""

    reads: int = 0
    reads_merged: int = 0
    sectors_read: int = 0
    read_ms: int = 0
    writes: int = 0
    writes_merged: int = 0
    sectors_written: int = 0
    write_ms: int = 0
    in_progress: int = 0
    busy_ms: int = 0
    weighted_ms: int = 0


class CgroupDetail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What `/metrics/cadvisor` shows of a cgroup beyond its use. CPU times in nanoseconds, quota in µs."""

    created_ns: int = 0
    cpu_user: int = 0
    cpu_system: int = 0
    periods: int = 0
    throttled_periods: int = 0
    throttled: int = 0
    burst_periods: int = 0
    burst: int = 0
    cpu_shares: int = 0
    cpu_period: int = 0
    cpu_quota: int = 0  # 0: none
    memory_peak: int = 0
    memory_failures: int = 0
    kernel_memory: int = 0
    memory_reservation: int = 0
    oom_kills: int = 0
    threads: int = 0
    threads_limit: int = 0  # 0: none
    io: tuple[DiskIO, ...] = ()


class Interface(msgspec.Struct, frozen=True, gc=False):
    """Counters of one network interface."""

    name: str
    rx_bytes: int | None = None
    rx_packets: int | None = None
    rx_errors: int | None = None
    rx_dropped: int | None = None
    tx_bytes: int | None = None
    tx_packets: int | None = None
    tx_errors: int | None = None
    tx_dropped: int | None = None


class Network(msgspec.Struct, frozen=True, gc=False):
    """The interfaces of a network namespace."""

    at_ns: int
    interfaces: tuple[Interface, ...] = ()


class Filesystem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole filesystem."""

    at_ns: int
    available: int
    capacity: int
    used: int
    inodes: int
    inodes_free: int


class DiskUse(msgspec.Struct, frozen=True, gc=False):
    """What files take."""

    at_ns: int
    used: int = 0
    inodes: int = 0


class RuntimeDisk(msgspec.Struct, frozen=True, gc=False):
    """What the runtime says a filesystem or layer of its own takes."""

    at_ns: int
    used: int | None
    inodes: int | None
    mountpoint: str | None


class Processes(msgspec.Struct, frozen=True, gc=False):
    """Tasks of the machine: how many there may be, how many there are."""

    at_ns: int
    limit: int | None
    running: int | None


class VolumeUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One volume of a pod. `ephemeral`: it counts as the pod's local ephemeral storage. `abnormal`: what its
    driver says of its health, None if it says nothing.
    """

    name: str
    at_ns: int
    available: int
    capacity: int
    used: int
    inodes: int
    inodes_free: int
    inodes_used: int
    ephemeral: bool
    claim: str = ""  # the PersistentVolumeClaim's name
    namespace: str = ""
    abnormal: bool | None = None


class RuntimeUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the runtime says a container uses; the parts are None where it says nothing."""

    cpu_at_ns: int | None = None
    cpu: int | None = None
    nano_cores: int | None = None
    cpu_pressure: Pressures | None = None
    memory_at_ns: int | None = None
    memory_available: int | None = None
    memory: int | None = None
    working_set: int | None = None
    rss: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    memory_pressure: Pressures | None = None
    swap_at_ns: int | None = None
    swap: int | None = None
    swap_available: int | None = None
    io_at_ns: int | None = None
    io_pressure: Pressures | None = None
    layer: RuntimeDisk | None = None


class ContainerSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A running container. `use` is its cgroup's; `nano_cores` is computed from two samples of that."""

    id: str
    name: str
    image: str
    created_ns: int
    cgroup: str = ""
    runtime: RuntimeUse | None = None
    use: CgroupUse | None = None
    nano_cores: int | None = None
    logs: DiskUse | None = None


class PodSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod with a sandbox; `cgroup` and `sandbox_cgroup` are "" where they were not found. `use` is without
    processes: those are in the cgroups below.
    """

    sandbox_id: str
    name: str
    namespace: str
    uid: str
    created_ns: int
    containers: tuple[ContainerSample, ...] = ()
    cgroup: str = ""
    sandbox_cgroup: str = ""
    use: CgroupUse | None = None
    nano_cores: int | None = None
    network: Network | None = None
    logs: DiskUse | None = None
    etc_hosts: DiskUse | None = None
    volumes: tuple[VolumeUse, ...] | None = None


class SystemSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A cgroup of the node: the root, that of all pods, of the agent, of the runtime."""

    name: str
    use: CgroupUse
    started_ns: int
    nano_cores: int | None = None


class NodeSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The node as a whole."""

    name: str
    booted_ns: int
    memory_capacity: int = MAX
    swap_capacity: int = 0
    root: SystemSample | None = None
    system: tuple[SystemSample, ...] = ()
    network: Network | None = None
    filesystem: Filesystem | None = None
    image_disk: RuntimeDisk | None = None
    container_disk: RuntimeDisk | None = None  # None: that of the images
    filesystems: dict[str, Filesystem] = {}  # by mount point that the runtime named
    processes: Processes | None = None


class StatsSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything at one moment. `failed`: the runtime did not answer; pods are then as it last told."""

    at_ns: int
    node: NodeSample
    pods: tuple[PodSample, ...] = ()
    failed: bool = False
