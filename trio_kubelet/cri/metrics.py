"""Counts and times the calls to the runtime, under the names the kubelet uses for them."""

from __future__ import annotations

import re

from trio_kubelet.cri.errors import Code
from trio_kubelet.metrics import AgentMetrics

# Where the kubelet's operation_type is not simply the method in snake case.
_NAMES = {
    "RunPodSandbox": "run_podsandbox",
    "StopPodSandbox": "stop_podsandbox",
    "RemovePodSandbox": "remove_podsandbox",
    "PodSandboxStatus": "podsandbox_status",
    "ListPodSandbox": "list_podsandbox",
    "StreamPodSandboxes": "list_podsandbox",
    "StreamContainers": "list_containers",
    "PodSandboxStats": "podsandbox_stats",
    "ListPodSandboxStats": "list_podsandbox_stats",
    "ListPodSandboxMetrics": "list_podsandbox_metrics",
    "UpdateContainerResources": "update_container",
}


def operation_type(method: str) -> str:
    """The kubelet's name of a CRI method."""
    return _NAMES.get(method) or re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


class CallMetrics:
    """A `CallHook` that feeds the runtime operation metrics."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics

    def __call__(self, method: str, seconds: float, code: Code) -> None:
        name = operation_type(method)
        self._metrics.runtime_operations.labels(name).inc()
        self._metrics.runtime_operations_duration.labels(name).observe(seconds)
        if code is not Code.OK:
            self._metrics.runtime_operations_errors.labels(name).inc()
