"""Counts and times the calls to the runtime, under the names the kubelet uses for them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.cri.caller import KUBELET_OPERATIONS
from trio_kubelet.grpc.errors import Code


class CallMetrics:
    """A `CallHook` that feeds the runtime operation metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self._calls = make.counter(
            "kubelet_runtime_operations", "Calls to the container runtime by type.", ["operation_type"]
        )
        self._errors = make.counter(
            "kubelet_runtime_operations_errors",
            "Failed calls to the container runtime by type.",
            ["operation_type"],
        )
        self._duration = make.histogram(
            "kubelet_runtime_operations_duration_seconds",
            "Duration of calls to the container runtime by type.",
            ["operation_type"],
            buckets=tuple(0.005 * 2.5**i for i in range(14)),
        )

    def __call__(self, method: str, seconds: float, code: Code) -> None:
        name = KUBELET_OPERATIONS.get(method, method)
        self._calls.labels(name).inc()
        self._duration.labels(name).observe(seconds)
        if code is not Code.OK:
            self._errors.labels(name).inc()
