"""Metrics of what is placed, by the kubelet's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker

if TYPE_CHECKING:  # imported with the policy
    from trio_kubelet.placement.cpu_policy import CPUPolicy
    from trio_kubelet.placement.cpu_state import CPUState


class ResourceManagerMetrics:
    """Of what pods and containers are given, by resource (gate PodLevelResourceManagers)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.allocations = make.counter(
            "resource_manager_allocations_total",
            "Number of exclusive resource allocations performed by a resource manager.",
            ["resource_name", "source"],
        )
        self.errors = make.counter(
            "resource_manager_allocation_errors_total",
            "Number of errors encountered during exclusive resource allocation.",
            ["resource_name", "source"],
        )
        self.assignments = make.plain_counter(
            "resource_manager_container_assignments",
            "Number of containers with a specific type of resource assignment.",
            ["resource_name", "assignment_type"],
        )


class PinningMetrics:
    """Of a manager that gives containers something to themselves. `resource`: cpu, memory."""

    def __init__(
        self,
        registry: CollectorRegistry,
        resource: str,
        requests: str,
        errors: str,
        more: ResourceManagerMetrics | None,
    ) -> None:
        name = f"kubelet_{resource}_manager_pinning"
        make = MetricMaker(registry)
        self._requests = make.counter(f"{name}_requests_total", requests)
        self._errors = make.counter(f"{name}_errors_total", errors)
        self._resource = resource
        self._more = more

    def asked(self, count: int) -> None:
        """So many containers are to have something to themselves."""
        self._requests.inc(count)

    def failed(self, *, as_one: bool) -> None:
        """A container, or with `as_one` a pod, could not be given it."""
        self._errors.inc()
        if self._more is not None:
            self._more.errors.labels(self._resource, "pod" if as_one else "node").inc()

    def gave(self, kinds: int, *, as_one: bool) -> None:
        """A container was given `kinds` kinds of the resource, with `as_one` out of what its pod has; if
        none, it shares that.
        """
        if self._more is None:
            return
        how = ("pod_exclusive" if kinds else "pod_shared") if as_one else "node_exclusive"
        source, count = ("pod", 1) if as_one else ("node", kinds)
        self._more.allocations.labels(self._resource, source).inc(count)
        self._more.assignments.labels(self._resource, how).inc()


class CPUMetrics(PinningMetrics):
    """Of the CPU manager."""

    def __init__(self, registry: CollectorRegistry, more: ResourceManagerMetrics | None = None) -> None:
        super().__init__(
            registry,
            "cpu",
            "The number of cpu core allocations which required pinning.",
            "The number of cpu core allocations which required pinning failed.",
            more,
        )
        make = MetricMaker(registry)
        self._shared = make.gauge(
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
        )
        self._exclusive = make.gauge(
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "The total number of CPUs exclusively allocated to containers running on this node",
        )
        self._per_numa = make.gauge(
            "kubelet_cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node", ["numa_node"]
        )

    def show(self, policy: CPUPolicy, state: CPUState) -> None:
        """The sizes of the sets."""
        assigned = frozenset(
            cpu for containers in state.assigned.values() for cpus in containers.values() for cpu in cpus
        )
        self._shared.set(len(policy.available(state)) * 1000)
        self._exclusive.set(len(assigned))
        for node in policy.topology.numa_nodes():
            cpus = policy.topology.cpus.items()
            count = sum(cpu in assigned for cpu, where in cpus if where.numa == node)
            self._per_numa.labels(str(node)).set(count)


class AlignmentMetrics:
    """Of what containers were given from one place, or would have had to be."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self._aligned = make.plain_counter(
            "kubelet_container_aligned_compute_resources_count",
            "Cumulative number of aligned compute resources allocated to containers by alignment type.",
            ["scope", "boundary"],
        )
        self._failed = make.plain_counter(
            "kubelet_container_aligned_compute_resources_failure_count",
            "Cumulative number of failures to allocate aligned compute resources to containers by alignment "
            "type.",
            ["scope", "boundary"],
        )

    def show_cpus(self) -> None:
        """That there is a CPU policy."""
        for boundary in ("physical_cpu", "uncore_cache"):
            self._aligned.labels("container", boundary)
        self._failed.labels("container", "physical_cpu")

    def show_nodes(self) -> None:
        """That there is a topology policy."""
        for scope in ("container", "pod"):
            self._aligned.labels(scope, "numa_node")
            self._failed.labels(scope, "numa_node")

    def cores(self, *, whole: bool) -> None:
        """A container that has to have whole cores was given CPUs, or could not be."""
        (self._aligned if whole else self._failed).labels("container", "physical_cpu").inc()

    def cache(self) -> None:
        """All CPUs that a container was given share a cache."""
        self._aligned.labels("container", "uncore_cache").inc()

    def node(self, scope: str, *, one: bool) -> None:
        """What has to come from one NUMA node came from one, or could not. `scope`: container, pod."""
        (self._aligned if one else self._failed).labels(scope, "numa_node").inc()


class MemoryMetrics(PinningMetrics):
    """Of the memory manager."""

    def __init__(self, registry: CollectorRegistry, more: ResourceManagerMetrics | None = None) -> None:
        super().__init__(
            registry,
            "memory",
            "The number of memory pages allocations which required pinning.",
            "The number of memory pages allocations which required pinning that failed.",
            more,
        )


class TopologyMetrics:
    """Of the topology manager."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.requests = make.counter(
            "kubelet_topology_manager_admission_requests_total",
            "The number of admission requests where resources have to be aligned.",
        )
        self.errors = make.counter(
            "kubelet_topology_manager_admission_errors_total",
            "The number of admission request failures where resources could not be aligned.",
        )
        self.duration = make.histogram(
            "kubelet_topology_manager_admission_duration_ms",
            "Duration in milliseconds to serve a pod admission request.",
            buckets=[0.05 * 2**n for n in range(15)],
        )
