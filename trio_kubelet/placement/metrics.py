"""Metrics of what is placed, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trio_kubelet.placement.cpu_policy import CPUPolicy, CPUState
from trio_kubelet.placement.topology import numa_of


class CPUMetrics:
    """Of the CPU manager."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "kubelet_cpu_manager_pinning_requests_total",
            "The number of cpu core allocations which required pinning.",
            registry=registry,
        )
        self.errors = Counter(
            "kubelet_cpu_manager_pinning_errors_total",
            "The number of cpu core allocations which required pinning failed.",
            registry=registry,
        )
        self._shared = Gauge(
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            registry=registry,
        )
        self._exclusive = Gauge(
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "The total number of CPUs exclusively allocated to containers running on this node",
            registry=registry,
        )
        self._per_numa = Gauge(
            "kubelet_cpu_manager_allocation_per_numa",
            "Number of CPUs allocated per NUMA node",
            ["numa_node"],
            registry=registry,
        )

    def show(self, policy: CPUPolicy, state: CPUState) -> None:
        """The sizes of the sets."""
        assigned = frozenset(
            cpu for containers in state.assigned.values() for cpus in containers.values() for cpu in cpus
        )
        self._shared.set(len(policy.available(state)) * 1000)
        self._exclusive.set(len(assigned))
        for node in policy.topology.numa_nodes():
            count = len(assigned & policy.topology.having([node], numa_of))
            self._per_numa.labels(str(node)).set(count)


class TopologyMetrics:
    """Of the topology manager."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "kubelet_topology_manager_admission_requests_total",
            "The number of admission requests where resources have to be aligned.",
            registry=registry,
        )
        self.errors = Counter(
            "kubelet_topology_manager_admission_errors_total",
            "The number of admission request failures where resources could not be aligned.",
            registry=registry,
        )
        self.duration = Histogram(
            "kubelet_topology_manager_admission_duration_ms",
            "Duration in milliseconds to serve a pod admission request.",
            buckets=[0.05 * 2**n for n in range(15)],
            registry=registry,
        )
