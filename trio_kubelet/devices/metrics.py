"""Metrics of device plugins, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from trio_kubelet.common.metrics import DEFAULT_BUCKETS


class DeviceMetrics:
    """How often plugins register, and how long they take to allocate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registrations = Counter(
            "kubelet_device_plugin_registration",
            "Cumulative number of device plugin registrations. Broken down by resource name.",
            ["resource_name"],
            registry=registry,
        )
        self.allocation = Histogram(
            "kubelet_device_plugin_alloc_duration_seconds",
            "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
            ["resource_name"],
            buckets=DEFAULT_BUCKETS,
            registry=registry,
        )
