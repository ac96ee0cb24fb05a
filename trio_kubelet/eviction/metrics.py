"""The kubelet's metrics of evictions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker


class EvictionMetrics:
    """`evictions` by the signal or limit; the age of the figures evictions were decided by."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.evictions = make.plain_counter(
            "kubelet_evictions", "Pods evicted, by signal.", ["eviction_signal"]
        )
        self.stats_age = make.histogram(
            "kubelet_eviction_stats_age_seconds",
            "Age of the figures by which a pod was evicted.",
            ["eviction_signal"],
        )
