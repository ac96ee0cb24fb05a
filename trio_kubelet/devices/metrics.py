"""Metrics of device plugins, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker


class DeviceMetrics:
    """How often plugins register, and how long they take to allocate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.registrations = make.counter(
            "kubelet_device_plugin_registration",
            "Cumulative number of device plugin registrations. Broken down by resource name.",
            ["resource_name"],
        )
        self.allocation = make.histogram(
            "kubelet_device_plugin_alloc_duration_seconds",
            "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.",
            ["resource_name"],
        )
