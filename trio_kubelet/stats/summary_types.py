"""The objects of `/stats/summary` (`stats/v1alpha1`): names as on the wire, fields in the kubelet's order."""

from __future__ import annotations

import msgspec


class _Object(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """What is None is left out."""


class PSIData(msgspec.Struct, frozen=True, gc=False):
    """Stalls of one kind: microseconds in total, averages in percent. Zeros are written."""

    total: int
    avg10: int | float
    avg60: int | float
    avg300: int | float


class PSIStats(msgspec.Struct, frozen=True, gc=False):
    """Stalls on one resource."""

    full: PSIData
    some: PSIData


class CPUStats(_Object, gc=False):
    """CPU use: over the last interval, and since the beginning."""

    time: str
    usage_nano_cores: int | None = None
    usage_core_nano_seconds: int | None = None
    psi: PSIStats | None = None


class MemoryStats(_Object, gc=False):
    """Memory in bytes."""

    time: str
    available_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    rss_bytes: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    psi: PSIStats | None = None


class IOStats(_Object, gc=False):
    """Stalls on disks."""

    time: str
    psi: PSIStats | None = None


class SwapStats(_Object, gc=False):
    """Swap in bytes."""

    time: str
    swap_available_bytes: int | None = None
    swap_usage_bytes: int | None = None


class InterfaceStats(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Counters of an interface; the name is always written."""

    name: str
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None


class NetworkStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """The default interface's counters (`eth0`), and all interfaces."""

    time: str
    name: str
    rx_bytes: int | None = None
    rx_errors: int | None = None
    tx_bytes: int | None = None
    tx_errors: int | None = None
    interfaces: list[InterfaceStats] | None = None


class FsStats(_Object, gc=False):
    """Space and inodes of a filesystem, or of something on it."""

    time: str
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    used_bytes: int | None = None
    inodes_free: int | None = None
    inodes: int | None = None
    inodes_used: int | None = None


class PVCReference(msgspec.Struct, frozen=True, gc=False):
    """The claim a volume came from."""

    name: str
    namespace: str


class VolumeHealthStats(msgspec.Struct, frozen=True, gc=False):
    """What a volume's driver says of its health."""

    abnormal: bool


class VolumeStats(FsStats, gc=False):
    """A volume of a pod."""

    name: str | None = None
    pvc_ref: PVCReference | None = msgspec.field(default=None, name="pvcRef")
    volume_health_stats: VolumeHealthStats | None = None


class ContainerStats(_Object, gc=False):
    """A container, or a cgroup of the node."""

    name: str
    start_time: str
    cpu: CPUStats | None = None
    memory: MemoryStats | None = None
    io: IOStats | None = None
    rootfs: FsStats | None = None
    logs: FsStats | None = None
    swap: SwapStats | None = None


class PodReference(msgspec.Struct, frozen=True, gc=False):
    """Which pod."""

    name: str
    namespace: str
    uid: str


class ProcessStats(msgspec.Struct, frozen=True, gc=False):
    """How many processes."""

    process_count: int


class PodStats(_Object, gc=False):
    """A pod."""

    pod_ref: PodReference
    start_time: str
    containers: list[ContainerStats]
    cpu: CPUStats | None = None
    memory: MemoryStats | None = None
    io: IOStats | None = None
    network: NetworkStats | None = None
    volume: list[VolumeStats] | None = None
    ephemeral_storage: FsStats | None = msgspec.field(default=None, name="ephemeral-storage")
    process_stats: ProcessStats | None = msgspec.field(default=None, name="process_stats")
    swap: SwapStats | None = None


class RuntimeStats(_Object, gc=False):
    """The filesystems of the runtime."""

    image_fs: FsStats | None = None
    container_fs: FsStats | None = None


class RlimitStats(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tasks of the machine."""

    time: str
    maxpid: int | None = None
    curproc: int | None = None


class NodeStats(_Object, kw_only=True, gc=False):
    """The node."""

    node_name: str
    system_containers: list[ContainerStats] | None = None
    start_time: str
    cpu: CPUStats | None = None
    memory: MemoryStats | None = None
    io: IOStats | None = None
    network: NetworkStats | None = None
    fs: FsStats | None = None
    runtime: RuntimeStats | None = None
    rlimit: RlimitStats | None = None
    swap: SwapStats | None = None
