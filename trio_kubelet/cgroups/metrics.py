"""Metrics of cgroups, by the kubelet's names."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry

from trio_kubelet.cgroups.plan import PodRequests, protects_memory
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.qos import QOSClass


class CgroupMetrics:
    """What version of cgroups the machine has, and how long work on them takes."""

    def __init__(self, registry: CollectorRegistry, *, v2: bool) -> None:
        make = MetricMaker(registry)
        make.gauge("kubelet_cgroup_version", "Version of cgroups on this machine.").set(1 + v2)
        self._duration = make.histogram(
            "kubelet_cgroup_manager_duration_seconds",
            "Time it took to create, update or destroy a cgroup.",
            ["operation_type"],
        )

    def timed(self, operation: str) -> AbstractContextManager[object]:
        """Measures the block: `create`, `update` or `destroy`. For any thread."""
        return self._duration.labels(operation).time()


class MemoryQOSMetrics:
    """How much memory is protected; there only with the gate MemoryQoS."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._by_class = {
            qos: MetricMaker(registry).gauge(
                f"kubelet_memory_qos_node_memory_{kind}_bytes",
                f"Bytes of memory.{kind} that {qos.value} pods have together.",
            )
            for qos, kind in ((QOSClass.GUARANTEED, "min"), (QOSClass.BURSTABLE, "low"))
        }

    def set(self, asked: Iterable[PodRequests], node: NodeContext) -> None:
        """What the pods ask for counts where it is protected."""
        sums = dict.fromkeys(self._by_class, 0)
        if protects_memory(node):
            for pod in asked:
                if pod.qos in sums:
                    sums[pod.qos] += pod.memory
        for qos, total in sums.items():
            self._by_class[qos].set(total)
