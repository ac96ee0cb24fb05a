"""Metrics of dynamic resources, by the kubelet's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker

_STEPS: Final = 14
_BUCKETS: Final = tuple(0.1 * (40 / 0.1) ** (step / _STEPS) for step in range(_STEPS + 1))
"""From 0.1 s to 40 s, for calls have 45 s."""


class DraMetrics:
    """How long operations and calls take, and how many claims are in use."""

    def __init__(self, registry: CollectorRegistry, claims_in_use: Callable[[], Mapping[str, int]]) -> None:
        make = MetricMaker(registry)
        self.operations = make.histogram(
            "dra_operations_duration_seconds",
            "Latency histogram in seconds for the duration of handling all ResourceClaims referenced "
            "by a pod when the pod starts or stops.",
            ["operation_name", "is_error"],
            buckets=_BUCKETS,
        )
        self.calls = make.histogram(
            "dra_grpc_operations_duration_seconds",
            "Duration in seconds of the DRA gRPC operations",
            ["driver_name", "method_name", "grpc_status_code"],
            buckets=_BUCKETS,
        )
        make.counted(
            "dra_resource_claims_in_use",
            "The number of ResourceClaims that are currently in use on the node, by driver name "
            "and across all drivers (<any>).",
            ["driver_name"],
            lambda: {(driver,): number for driver, number in claims_in_use().items()},
        )
