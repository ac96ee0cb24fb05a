"""Metrics of calls to CSI drivers, by the kubelet's name."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Histogram

from trio_kubelet.grpc.errors import Code

_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)


class CSIMetrics:
    """`csi_operations_seconds`: each call, whatever came of it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "csi_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
            ["driver_name", "method_name", "grpc_status_code", "migrated"],
            buckets=_BUCKETS,
            registry=registry,
        )

    def called(self, driver: str, method: str, code: Code, seconds: float, migrated: bool) -> None:
        """A call has ended."""
        self._seconds.labels(driver, method, code.go_name, str(migrated).lower()).observe(seconds)
