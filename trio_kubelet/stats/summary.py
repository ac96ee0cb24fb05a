"""From measurements to the objects of `/stats/summary`. Pure.

What each field means is the rule of the kubelet's CRI stats provider with its default settings: pods and
system containers from their cgroups, containers from the runtime where their cgroup is not known, else from
their cgroup. Figures that only the runtime gives are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.machine.values import (
    MAX,
    NO_PRESSURES,
    UNLIMITED,
    CgroupPressure,
    CgroupUse,
    ContainerSample,
    DiskUse,
    Filesystem,
    Network,
    NodeSample,
    PodSample,
    Pressures,
    RuntimeDisk,
    RuntimeUse,
    SystemSample,
    VolumeUse,
)
from trio_kubelet.stats.summary_types import (
    ContainerStats,
    CPUStats,
    FsStats,
    InterfaceStats,
    IOStats,
    MemoryStats,
    NetworkStats,
    NodeStats,
    PodReference,
    PodStats,
    ProcessStats,
    PSIData,
    PSIStats,
    PVCReference,
    RlimitStats,
    RuntimeStats,
    SwapStats,
    VolumeHealthStats,
    VolumeStats,
)

DEFAULT_INTERFACE = "eth0"

S = TypeVar("S", CPUStats, MemoryStats, SwapStats)


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return rfc3339(seconds * NANOSECONDS)


def _time(at_ns: int) -> str:
    return _second(at_ns // NANOSECONDS)


def _psi_data(pressure: CgroupPressure) -> PSIData:
    return PSIData(pressure.total, pressure.avg10, pressure.avg60, pressure.avg300)


_NO_PSI = PSIStats(_psi_data(CgroupPressure()), _psi_data(CgroupPressure()))


def _psi(pressures: Pressures | None) -> PSIStats | None:
    if pressures is None:
        return None
    if pressures is NO_PRESSURES:
        return _NO_PSI
    return PSIStats(_psi_data(pressures.full), _psi_data(pressures.some))


def _left(limit: int, used: int) -> int | None:
    """What a limit leaves; None where there is none."""
    return max(0, limit - used) if limit <= UNLIMITED else None


def _sum(first: int | None, second: int | None) -> int | None:
    """As the kubelet's 64 bits add; what is not known adds nothing."""
    if first is None or second is None:
        return second if first is None else first
    return (first + second) & MAX


def cgroup_cpu(use: CgroupUse, nano_cores: int | None) -> CPUStats:
    """CPU of a cgroup; a rate that is not known yet is 0."""
    return CPUStats(
        time=_time(use.at_ns),
        usage_nano_cores=nano_cores or 0,
        usage_core_nano_seconds=use.cpu or 0,
        psi=_psi(use.cpu_pressure),
    )


def cgroup_memory(use: CgroupUse, limit: int) -> MemoryStats:
    """Memory of a cgroup with that limit."""
    if use.memory is None:
        return MemoryStats(time=_time(use.at_ns), working_set_bytes=0)
    return MemoryStats(
        time=_time(use.at_ns),
        available_bytes=_left(limit, use.working_set),
        usage_bytes=use.memory,
        working_set_bytes=use.working_set,
        rss_bytes=use.rss,
        page_faults=use.page_faults,
        major_page_faults=use.major_page_faults,
        psi=_psi(use.memory_pressure),
    )


def cgroup_swap(use: CgroupUse, limit: int) -> SwapStats | None:
    """Swap of a cgroup with that limit."""
    if use.memory is None:
        return None
    available = _left(limit, use.swap)
    return SwapStats(time=_time(use.at_ns), swap_available_bytes=available, swap_usage_bytes=use.swap)


def _io(use: CgroupUse) -> IOStats:
    return IOStats(time=_time(use.at_ns), psi=_psi(use.io_pressure))


def network_stats(network: Network | None) -> NetworkStats | None:
    """A network namespace; the default interface's counters stand beside the list."""
    if network is None:
        return None
    listed = [
        InterfaceStats(each.name, each.rx_bytes, each.rx_errors, each.tx_bytes, each.tx_errors)
        for each in network.interfaces
    ]
    first = next((each for each in listed if each.name == DEFAULT_INTERFACE), InterfaceStats(""))
    return NetworkStats(
        time=_time(network.at_ns),
        name=first.name,
        rx_bytes=first.rx_bytes,
        rx_errors=first.rx_errors,
        tx_bytes=first.tx_bytes,
        tx_errors=first.tx_errors,
        interfaces=listed or None,
    )


def _on_filesystem(
    at_ns: int, filesystem: Filesystem | None, used: int | None, inodes_used: int | None
) -> FsStats:
    if filesystem is None:
        return FsStats(time=_time(at_ns), used_bytes=used, inodes_used=inodes_used)
    return FsStats(
        time=_time(at_ns),
        available_bytes=filesystem.available,
        capacity_bytes=filesystem.capacity,
        used_bytes=used,
        inodes_free=filesystem.inodes_free,
        inodes=filesystem.inodes,
        inodes_used=inodes_used,
    )


def _runtime_fs(of_runtime: RuntimeDisk | None, node: NodeSample) -> FsStats | None:
    if of_runtime is None:
        return None
    filesystem = node.filesystems.get(of_runtime.mountpoint or "")
    return _on_filesystem(of_runtime.at_ns, filesystem, of_runtime.used, of_runtime.inodes)


def _files(use: DiskUse | None, node: NodeSample) -> FsStats | None:
    return None if use is None else _on_filesystem(use.at_ns, node.filesystem, use.used, use.inodes)


def _runtime_cpu(runtime: RuntimeUse, now_ns: int, nano_cores: int | None) -> CPUStats:
    if runtime.cpu_at_ns is None:
        return CPUStats(time=_time(now_ns), usage_nano_cores=0, usage_core_nano_seconds=0)
    return CPUStats(
        time=_time(runtime.cpu_at_ns),
        usage_nano_cores=nano_cores if runtime.nano_cores is None else runtime.nano_cores,
        usage_core_nano_seconds=runtime.cpu,
        psi=_psi(runtime.cpu_pressure),
    )


def _runtime_memory(runtime: RuntimeUse, now_ns: int) -> MemoryStats:
    if runtime.memory_at_ns is None:
        return MemoryStats(time=_time(now_ns), usage_bytes=0, working_set_bytes=0, rss_bytes=0)
    return MemoryStats(
        time=_time(runtime.memory_at_ns),
        available_bytes=runtime.memory_available,
        usage_bytes=runtime.memory,
        working_set_bytes=runtime.working_set,
        rss_bytes=runtime.rss,
        page_faults=runtime.page_faults,
        major_page_faults=runtime.major_page_faults,
        psi=_psi(runtime.memory_pressure),
    )


def _runtime_swap(runtime: RuntimeUse, now_ns: int) -> SwapStats:
    if runtime.swap_at_ns is None:
        return SwapStats(time=_time(now_ns), swap_available_bytes=0, swap_usage_bytes=0)
    return SwapStats(
        time=_time(runtime.swap_at_ns),
        swap_available_bytes=runtime.swap_available,
        swap_usage_bytes=runtime.swap,
    )


def _from_cgroup(container: ContainerSample, use: CgroupUse, start: str) -> ContainerStats:
    """A container by its cgroup; without a limit nothing is said of what is available."""
    runtime = container.runtime or RuntimeUse()
    rate = runtime.nano_cores if container.nano_cores is None else container.nano_cores
    memory, swap = cgroup_memory(use, use.memory_limit), cgroup_swap(use, use.swap_limit)
    return ContainerStats(
        name=container.name,
        start_time=start,
        cpu=cgroup_cpu(use, rate),
        memory=memory,
        io=_io(use),
        swap=swap,
    )


def _from_runtime(container: ContainerSample, runtime: RuntimeUse, start: str, now_ns: int) -> ContainerStats:
    at_ns = now_ns if runtime.io_at_ns is None else runtime.io_at_ns
    return ContainerStats(
        name=container.name,
        start_time=start,
        cpu=_runtime_cpu(runtime, now_ns, container.nano_cores),
        memory=_runtime_memory(runtime, now_ns),
        io=IOStats(time=_time(at_ns), psi=_psi(runtime.io_pressure)),
        swap=_runtime_swap(runtime, now_ns),
    )


def container_stats(
    container: ContainerSample, node: NodeSample, now_ns: int, disks: bool
) -> ContainerStats | None:
    """A container; None if neither the runtime nor a cgroup tells anything of it."""
    start = _time(container.created_ns)
    if container.use is not None:
        stats = _from_cgroup(container, container.use, start)
    elif container.runtime is not None:
        stats = _from_runtime(container, container.runtime, start, now_ns)
    else:
        return None
    if not disks:
        return msgspec.structs.replace(stats, io=None)
    layer = container.runtime.layer if container.runtime is not None else None
    return msgspec.structs.replace(stats, rootfs=_runtime_fs(layer, node), logs=_files(container.logs, node))


def _volume_stats(volume: VolumeUse) -> VolumeStats:
    return VolumeStats(
        time=_time(volume.at_ns),
        available_bytes=volume.available,
        capacity_bytes=volume.capacity,
        used_bytes=volume.used,
        inodes_free=volume.inodes_free,
        inodes=volume.inodes,
        inodes_used=volume.inodes_used,
        name=volume.name,
        pvc_ref=PVCReference(volume.claim, volume.namespace) if volume.claim else None,
        volume_health_stats=VolumeHealthStats(volume.abnormal) if volume.abnormal is not None else None,
    )


def ephemeral_storage(
    pod: PodSample, containers: Iterable[ContainerStats], node: NodeSample
) -> FsStats | None:
    """What a pod takes of the node's disk: writable layers, logs, ephemeral volumes, its `/etc/hosts`."""
    if node.filesystem is None:
        return None
    parts: list[tuple[str, int | None, int | None]] = []
    for container in containers:
        if container.rootfs is not None:  # as the kubelet: logs count beside a layer
            found = (container.rootfs, container.logs)
            parts += [(each.time, each.used_bytes, each.inodes_used) for each in found if each is not None]
    parts += [
        (_time(each.at_ns), each.used, each.inodes_used) for each in pod.volumes or () if each.ephemeral
    ]
    parts += [
        (_time(each.at_ns), each.used, each.inodes) for each in (pod.logs, pod.etc_hosts) if each is not None
    ]
    used = inodes = None
    latest = _time(node.filesystem.at_ns)
    for at, bytes_used, inodes_used in parts:
        used, inodes, latest = _sum(used, bytes_used), _sum(inodes, inodes_used), max(latest, at)
    total = _on_filesystem(node.filesystem.at_ns, node.filesystem, used, inodes)
    return msgspec.structs.replace(total, time=latest)


def _summed(kind: type[S], parts: Iterable[S | None], *names: str) -> S | None:
    """The sums of figures over containers, read with the last; None of none."""
    found = [each for each in parts if each is not None]
    if not found:
        return None
    sums: dict[str, Any] = {name: sum(getattr(each, name) or 0 for each in found) & MAX for name in names}
    return kind(time=found[-1].time, **sums)


def _sum_cpu(containers: Iterable[ContainerStats]) -> CPUStats | None:
    return _summed(CPUStats, (each.cpu for each in containers), "usage_nano_cores", "usage_core_nano_seconds")


def _sum_memory(containers: Iterable[ContainerStats]) -> MemoryStats | None:
    sizes = ("available_bytes", "usage_bytes", "working_set_bytes", "rss_bytes")
    parts = (each.memory for each in containers)
    return _summed(MemoryStats, parts, *sizes, "page_faults", "major_page_faults")


def _sum_swap(containers: Iterable[ContainerStats]) -> SwapStats | None:
    parts = (each.swap for each in containers)
    return _summed(SwapStats, parts, "swap_available_bytes", "swap_usage_bytes")


def pod_stats(pod: PodSample, node: NodeSample, now_ns: int, disks: bool) -> PodStats | None:
    """A pod; None if nothing is known of any container. `disks` False leaves all but CPU and memory out."""
    every = (container_stats(each, node, now_ns, disks) for each in pod.containers)
    containers = [each for each in every if each is not None]
    if not containers:
        return None
    use = pod.use
    stats = PodStats(
        pod_ref=PodReference(pod.name, pod.namespace, pod.uid),
        start_time=_time(pod.created_ns),
        containers=containers,
        cpu=_sum_cpu(containers) if use is None else cgroup_cpu(use, pod.nano_cores),
        memory=_sum_memory(containers) if use is None else cgroup_memory(use, use.memory_limit),
        swap=_sum_swap(containers) if use is None else cgroup_swap(use, use.swap_limit),
    )
    if not disks:
        return stats
    counts = [each.use.processes for each in pod.containers if each.use is not None]
    return msgspec.structs.replace(
        stats,
        io=IOStats(time=stats.cpu.time) if use is None and stats.cpu else _io(use) if use else None,
        network=network_stats(pod.network),
        volume=[_volume_stats(each) for each in pod.volumes or ()] or None,
        ephemeral_storage=ephemeral_storage(pod, containers, node),
        process_stats=ProcessStats(sum(counts)) if counts else None,
    )


def idle_stats(pod: PodSample) -> PodStats:
    """A pod in which no container runs: what its cgroup holds still, if it has one."""
    return PodStats(
        pod_ref=PodReference(pod.name, pod.namespace, pod.uid),
        start_time=_time(pod.created_ns),
        containers=[],
        memory=cgroup_memory(pod.use, pod.use.memory_limit) if pod.use is not None else None,
    )


def _system_stats(sample: SystemSample, disks: bool) -> ContainerStats:
    use = sample.use
    return ContainerStats(
        name=sample.name,
        start_time=_time(sample.started_ns),
        cpu=cgroup_cpu(use, sample.nano_cores),
        memory=cgroup_memory(use, use.memory_limit),
        io=_io(use) if disks else None,
        swap=cgroup_swap(use, use.swap_limit),
    )


def node_stats(node: NodeSample, disks: bool) -> NodeStats:
    """The node. Its limits are the machine's memory and swap, not those of the root cgroup."""
    system = [_system_stats(each, disks) for each in node.system] or None
    stats = NodeStats(node_name=node.name, system_containers=system, start_time=_time(node.booted_ns))
    if node.root is not None:
        use = node.root.use
        stats = msgspec.structs.replace(
            stats,
            cpu=cgroup_cpu(use, node.root.nano_cores),
            memory=cgroup_memory(use, node.memory_capacity),
            swap=cgroup_swap(use, node.swap_capacity),
            io=_io(use) if disks else None,
        )
    if not disks:
        return stats
    image_fs = _runtime_fs(node.image_disk, node)
    tasks, disk = node.processes, node.filesystem
    return msgspec.structs.replace(
        stats,
        network=network_stats(node.network),
        fs=None
        if disk is None
        else _on_filesystem(disk.at_ns, disk, disk.used, disk.inodes - disk.inodes_free),
        runtime=RuntimeStats(
            image_fs=image_fs, container_fs=_runtime_fs(node.container_disk, node) or image_fs
        ),
        rlimit=RlimitStats(_time(tasks.at_ns), tasks.limit, tasks.running) if tasks is not None else None,
    )
