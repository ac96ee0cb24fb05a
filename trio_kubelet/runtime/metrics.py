"""The metrics of sandboxes, containers and images, by the kubelet's names."""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import BETA, MetricMaker

PULL_BUCKETS = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
# fmt: off
RESIZE_BUCKETS = (10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000)
# fmt: on
_SIZES = (0, 10, 100, 500, 1 << 10, 5 << 10, 10 << 10, 20 << 10, 30 << 10, 40 << 10, 60 << 10, 100 << 10)
"""Where classes of sizes begin, in MiB."""
_NAMES = ("0", "10MB", "100MB", "500MB", "1GB", "5GB", "10GB", "20GB", "30GB", "40GB", "60GB", "100GB")


def size_label(size: int) -> str:
    """The class of an image's size in bytes."""
    if size <= 0:
        return "N/A"
    number = bisect_left(_SIZES, size / (1 << 20))
    return f"{_NAMES[number - 1]}-{_NAMES[number]}" if number < len(_NAMES) else "GT100GB"


class RuntimeMetrics:
    """What this room measures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.started_pods = make.counter("kubelet_started_pods", "Pods whose sandbox was started.")
        self.started_pods_errors = make.counter(
            "kubelet_started_pods_errors", "Sandboxes that could not be started."
        )
        self.started_user_namespaced_pods = make.counter(
            "kubelet_started_user_namespaced_pods", "Pods started in a user namespace."
        )
        self.started_user_namespaced_pods_errors = make.counter(
            "kubelet_started_user_namespaced_pods_errors",
            "Pods that could not be started in a user namespace.",
        )
        self.run_sandbox_duration = make.histogram(
            "kubelet_run_podsandbox_duration_seconds",
            "Time it took to start a sandbox, by handler of the runtime class.",
            ["runtime_handler"],
        )
        self.run_sandbox_errors = make.counter(
            "kubelet_run_podsandbox_errors",
            "Sandboxes the runtime could not start, by handler of the runtime class.",
            ["runtime_handler"],
        )
        self.started_containers = make.counter(
            "kubelet_started_containers", "Containers whose start was tried.", ["container_type"]
        )
        self.started_containers_errors = make.counter(
            "kubelet_started_containers_errors",
            "Containers that could not be started, by reason.",
            ["container_type", "code"],
        )
        self.resize_duration = make.histogram(
            "kubelet_pod_resize_duration_milliseconds",
            "Time it took to put a resize into force, by success.",
            ["success"],
            buckets=RESIZE_BUCKETS,
        )
        self.ensure_image_requests = make.counter(
            "kubelet_image_manager_ensure_image_requests",
            "Requests to make an image present.",
            ["pull_policy", "present_locally", "pull_required"],
        )
        self.image_pull_duration = make.histogram(
            "kubelet_image_pull_duration_seconds",
            "Time a pull took, waiting included, by size of the image.",
            ["image_size_in_bytes"],
            buckets=PULL_BUCKETS,
        )
        beta = MetricMaker(registry, BETA)
        self.image_volume_requested = beta.counter(
            "kubelet_image_volume_requested", "Image volumes that containers asked for."
        )
        self.image_volume_mounted = beta.counter(
            "kubelet_image_volume_mounted_succeed", "Image volumes mounted."
        )
        self.image_volume_errors = beta.counter(
            "kubelet_image_volume_mounted_errors", "Image volumes that could not be mounted."
        )
        self.sleep_hooks_cut_short = make.counter(
            "kubelet_sleep_action_terminated_early", "Sleeping hooks that were ended before their time."
        )
        self.http_fallbacks = make.counter(
            "kubelet_lifecycle_handler_http_fallbacks", "HTTPS hooks that were answered over plain HTTP."
        )
