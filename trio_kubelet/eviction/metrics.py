"""The kubelet's metrics of evictions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from trio_kubelet.common.metrics import DEFAULT_BUCKETS, PlainCounter


class EvictionMetrics:
    """`evictions` by the signal or limit; the age of the figures evictions were decided by."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.evictions = PlainCounter(
            "kubelet_evictions",
            "Pods evicted, by signal.",
            ["eviction_signal"],
            registry=registry,
        )
        self.stats_age = Histogram(
            "kubelet_eviction_stats_age_seconds",
            "Age of the figures by which a pod was evicted.",
            ["eviction_signal"],
            buckets=DEFAULT_BUCKETS,
            registry=registry,
        )
