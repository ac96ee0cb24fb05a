"""What lies below the CRI services: a thing that carries one call to a runtime.

There are two: a gRPC channel over a unix socket (`cri.grpc`) and a simulated runtime in memory (`sim.door`).
The mapping from the services' methods to requests and answers (`cri.services`) is written once, above this
seam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.common.quick_metrics import Count, Durations
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import Code

M = TypeVar("M", bound=Message)

CallHook = Callable[[str, float, Code], None]
"""Called after each call with the method's name, its duration in seconds and its status."""


PATHS: Final[dict[str, str]] = {
    method.name: f"/{service.full_name}/{method.name}"
    for service in cri.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""The HTTP/2 path of each CRI method."""

KUBELET_OPERATIONS: Final[dict[str, str]] = {
    "Version": "version",
    "Status": "status",
    "CreateContainer": "create_container",
    "StartContainer": "start_container",
    "StopContainer": "stop_container",
    "RemoveContainer": "remove_container",
    "ListContainers": "list_containers",
    "StreamContainers": "list_containers",
    "ContainerStatus": "container_status",
    "UpdateContainerResources": "update_container",
    "ReopenContainerLog": "reopen_container_log",
    "ExecSync": "exec_sync",
    "Exec": "exec",
    "Attach": "attach",
    "RunPodSandbox": "run_podsandbox",
    "StopPodSandbox": "stop_podsandbox",
    "RemovePodSandbox": "remove_podsandbox",
    "PodSandboxStatus": "podsandbox_status",
    "ListPodSandbox": "list_podsandbox",
    "StreamPodSandboxes": "list_podsandbox",
    "ContainerStats": "container_stats",
    "ListContainerStats": "list_container_stats",
    "PortForward": "port_forward",
    "UpdatePodSandboxResources": "update_podsandbox_resources",
    "UpdateRuntimeConfig": "update_runtime_config",
    "ListImages": "list_images",
    "ImageStatus": "image_status",
    "PullImage": "pull_image",
    "RemoveImage": "remove_image",
    "ImageFsInfo": "image_fs_info",
    "CheckpointContainer": "checkpoint_container",
    "GetContainerEvents": "get_container_events",
    "RuntimeConfig": "runtime_config",
}
"""The `operation_type` under which the kubelet's runtime metrics count a CRI method."""


class CallMetrics:
    """A `CallHook` that feeds the runtime operation metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self._calls = make.quick_counter(
            "kubelet_runtime_operations", "Calls to the container runtime by type.", ["operation_type"]
        )
        self._errors = make.quick_counter(
            "kubelet_runtime_operations_errors",
            "Failed calls to the container runtime by type.",
            ["operation_type"],
        )
        self._duration = make.quick_histogram(
            "kubelet_runtime_operations_duration_seconds",
            "Duration of calls to the container runtime by type.",
            ["operation_type"],
            buckets=tuple(0.005 * 2.5**i for i in range(14)),
        )

        self._of_methods: dict[str, tuple[Count, Durations]] = {}

    def __call__(self, method: str, seconds: float, code: Code) -> None:
        known = self._of_methods.get(method)
        if known is None:
            name = KUBELET_OPERATIONS.get(method, method)
            known = self._of_methods[method] = self._calls.labels(name), self._duration.labels(name)
        calls, duration = known
        calls.value += 1
        duration.observe(seconds)
        if code is not Code.OK:
            self._errors.labels(KUBELET_OPERATIONS.get(method, method)).value += 1
