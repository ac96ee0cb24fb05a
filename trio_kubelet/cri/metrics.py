"""Counts and times the calls to the runtime, under the names the kubelet uses for them."""

from __future__ import annotations

from trio_kubelet.cri.caller import KUBELET_OPERATIONS
from trio_kubelet.cri.errors import Code
from trio_kubelet.metrics import AgentMetrics


class CallMetrics:
    """A `CallHook` that feeds the runtime operation metrics."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics

    def __call__(self, method: str, seconds: float, code: Code) -> None:
        name = KUBELET_OPERATIONS.get(method, method)
        self._metrics.runtime_operations.labels(name).inc()
        self._metrics.runtime_operations_duration.labels(name).observe(seconds)
        if code is not Code.OK:
            self._metrics.runtime_operations_errors.labels(name).inc()
