"""Made-up but plausible resource use: it grows with a container's age and differs between containers."""

from __future__ import annotations

from typing import Final

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.records import Container

_MIB: Final = 1 << 20
_NANO_CORES: Final = 5_000_000


def _weight(container: Container) -> int:
    """1 to 16, fixed for a container."""
    return 1 + int(container.id[:1], 16)


def _age(container: Container, now_ns: int) -> int:
    end = container.finished_ns or now_ns
    return max(end - container.started_ns, 0) if container.started_ns else 0


def container_stats(container: Container, now_ns: int) -> cri.ContainerStats:
    """A container's use of CPU, memory and disk."""
    running = container.state == cri.CONTAINER_RUNNING
    weight = _weight(container)
    stats = cri.ContainerStats(
        attributes=cri.ContainerAttributes(
            id=container.id,
            metadata=container.config.metadata,
            labels=container.config.labels,
            annotations=container.config.annotations,
        )
    )
    stats.writable_layer.timestamp = now_ns
    stats.writable_layer.fs_id.mountpoint = "/var/lib/sim/snapshots"
    stats.writable_layer.used_bytes.value = weight * 4096
    stats.writable_layer.inodes_used.value = weight
    if running:
        stats.cpu.timestamp = stats.memory.timestamp = now_ns
        stats.cpu.usage_core_nano_seconds.value = _age(container, now_ns) * weight // 200
        stats.cpu.usage_nano_cores.value = _NANO_CORES * weight
        _fill_memory(stats.memory, weight * _MIB)
    return stats


def _fill_memory(memory: cri.MemoryUsage, used: int) -> None:
    memory.working_set_bytes.value = used
    memory.usage_bytes.value = used + _MIB
    memory.rss_bytes.value = used // 2
    memory.page_faults.value = used // 4096
    memory.major_page_faults.value = 0
