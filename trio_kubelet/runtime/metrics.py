"""The metrics of sandboxes, containers and images, by the kubelet's names."""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client import CollectorRegistry, Counter, Histogram

from trio_kubelet.common.metrics import DEFAULT_BUCKETS

PULL_BUCKETS = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
# fmt: off
RESIZE_BUCKETS = (10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000)
# fmt: on
_SIZES = (
    0,
    10,
    100,
    500,
    1 << 10,
    5 << 10,
    10 << 10,
    20 << 10,
    30 << 10,
    40 << 10,
    60 << 10,
    100 << 10,
)  # MiB
_SIZE_LABELS = (
    "0-10MB",
    "10MB-100MB",
    "100MB-500MB",
    "500MB-1GB",
    "1GB-5GB",
    "5GB-10GB",
    "10GB-20GB",
    "20GB-30GB",
    "30GB-40GB",
    "40GB-60GB",
    "60GB-100GB",
    "GT100GB",
)


def size_label(size: int) -> str:
    """The class of an image's size in bytes."""
    if size <= 0:
        return "N/A"
    return _SIZE_LABELS[bisect_left(_SIZES, size / (1 << 20)) - 1]


class RuntimeMetrics:
    """What this room measures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        r = registry
        self.started_pods = Counter("kubelet_started_pods", "Pods whose sandbox was started.", registry=r)
        self.started_pods_errors = Counter(
            "kubelet_started_pods_errors", "Sandboxes that could not be started.", registry=r
        )
        self.started_user_namespaced_pods = Counter(
            "kubelet_started_user_namespaced_pods", "Pods started in a user namespace.", registry=r
        )
        self.started_user_namespaced_pods_errors = Counter(
            "kubelet_started_user_namespaced_pods_errors",
            "Pods that could not be started in a user namespace.",
            registry=r,
        )
        self.run_sandbox_duration = Histogram(
            "kubelet_run_podsandbox_duration_seconds",
            "Time it took to start a sandbox, by handler of the runtime class.",
            ["runtime_handler"],
            buckets=DEFAULT_BUCKETS,
            registry=r,
        )
        self.run_sandbox_errors = Counter(
            "kubelet_run_podsandbox_errors",
            "Sandboxes the runtime could not start, by handler of the runtime class.",
            ["runtime_handler"],
            registry=r,
        )
        self.started_containers = Counter(
            "kubelet_started_containers", "Containers whose start was tried.", ["container_type"], registry=r
        )
        self.started_containers_errors = Counter(
            "kubelet_started_containers_errors",
            "Containers that could not be started, by reason.",
            ["container_type", "code"],
            registry=r,
        )
        self.resize_duration = Histogram(
            "kubelet_pod_resize_duration_milliseconds",
            "Time it took to put a resize into force, by success.",
            ["success"],
            buckets=RESIZE_BUCKETS,
            registry=r,
        )
        self.ensure_image_requests = Counter(
            "kubelet_image_manager_ensure_image_requests",
            "Requests to make an image present.",
            ["pull_policy", "present_locally", "pull_required"],
            registry=r,
        )
        self.image_pull_duration = Histogram(
            "kubelet_image_pull_duration_seconds",
            "Time a pull took, waiting included, by size of the image.",
            ["image_size_in_bytes"],
            buckets=PULL_BUCKETS,
            registry=r,
        )
        self.image_volume_requested = Counter(
            "kubelet_image_volume_requested", "Image volumes that containers asked for.", registry=r
        )
        self.image_volume_mounted = Counter(
            "kubelet_image_volume_mounted_succeed", "Image volumes mounted.", registry=r
        )
        self.image_volume_errors = Counter(
            "kubelet_image_volume_mounted_errors", "Image volumes that could not be mounted.", registry=r
        )
        self.sleep_hooks_cut_short = Counter(
            "kubelet_sleep_action_terminated_early",
            "Sleeping hooks that were ended before their time.",
            registry=r,
        )
        self.http_fallbacks = Counter(
            "kubelet_lifecycle_handler_http_fallbacks",
            "HTTPS hooks that were answered over plain HTTP.",
            registry=r,
        )
