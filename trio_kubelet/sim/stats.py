"""Made-up but plausible resource use: it grows with a container's age and differs between containers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.records import Container, Sandbox

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


def sandbox_stats(sandbox: Sandbox, containers: Iterable[Container], now_ns: int) -> cri.PodSandboxStats:
    """A pod's use: the sum of its containers, and its network."""
    stats = cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(
            id=sandbox.id,
            metadata=sandbox.config.metadata,
            labels=sandbox.config.labels,
            annotations=sandbox.config.annotations,
        )
    )
    linux = stats.linux
    linux.containers.extend(container_stats(c, now_ns) for c in containers)
    linux.cpu.timestamp = linux.memory.timestamp = linux.network.timestamp = linux.process.timestamp = now_ns
    linux.cpu.usage_core_nano_seconds.value = sum(
        c.cpu.usage_core_nano_seconds.value for c in linux.containers
    )
    linux.cpu.usage_nano_cores.value = sum(c.cpu.usage_nano_cores.value for c in linux.containers)
    _fill_memory(linux.memory, sum(c.memory.working_set_bytes.value for c in linux.containers))
    linux.process.process_count.value = len(linux.containers) + 1
    age_s = max(now_ns - sandbox.created_ns, 0) // 1_000_000_000
    interface = linux.network.default_interface
    interface.name = "eth0"
    interface.rx_bytes.value, interface.tx_bytes.value = 1000 * age_s, 700 * age_s
    interface.rx_errors.value = interface.tx_errors.value = 0
    return stats


METRIC: Final = cri.MetricDescriptor(
    name="container_cpu_usage_seconds_total",
    help="Cumulative cpu time consumed in seconds.",
    label_keys=["id", "name"],
)


def sandbox_metrics(sandbox: Sandbox, containers: Iterable[Container], now_ns: int) -> cri.PodSandboxMetrics:
    """A pod's metrics as `METRIC` describes them."""
    metrics = cri.PodSandboxMetrics(pod_sandbox_id=sandbox.id)
    for container in containers:
        entry = metrics.container_metrics.add(container_id=container.id)
        metric = entry.metrics.add(
            name=METRIC.name,
            timestamp=now_ns,
            metric_type=cri.COUNTER,
            label_values=[container.id, container.config.metadata.name],
        )
        metric.value.value = _age(container, now_ns) // 1_000_000_000
    return metrics
