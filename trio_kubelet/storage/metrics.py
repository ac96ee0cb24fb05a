"""Metrics of calls to CSI drivers, and of what was read back from the disk, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import LabelValues, MetricMaker
from trio_kubelet.grpc.errors import Code
from trio_kubelet.volumes.metrics import BUCKETS


class CSIMetrics:
    """`csi_operations_seconds`: each call, whatever came of it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = MetricMaker(registry).histogram(
            "csi_operations_seconds",
            "Container Storage Interface operation duration with gRPC error code status total",
            ["driver_name", "method_name", "grpc_status_code", "migrated"],
            buckets=BUCKETS,
        )
        self._drivers = LabelValues(most=200, longest=128)  # a name is in some twenty lines

    def called(self, driver: str, method: str, code: Code, seconds: float, migrated: bool) -> None:
        """A call has ended."""
        name = self._drivers.counted(driver)
        self._seconds.labels(name, method, code.go_name, str(migrated).lower()).observe(seconds)


class ReadBackMetrics:
    """How many volumes were found on the disk at the start, and what became of those that tell nothing of
    themselves.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.found = make.counter(
            "reconstruct_volume_operations_total",
            "Volumes found on the disk at the start of the agent, whether it is known what they are or not.",
        )
        self.unknown = make.counter(
            "reconstruct_volume_operations_errors_total",
            "Volumes found on the disk of which it is not known what they are.",
        )
        self.cleaned = make.counter(
            "force_cleaned_failed_volume_operations_total",
            "Volumes of which it was not known what they are, and which were taken away.",
        )
        self.not_cleaned = make.counter(
            "force_cleaned_failed_volume_operation_errors_total",
            "Volumes of which it was not known what they are, and which could not be taken away.",
        )
