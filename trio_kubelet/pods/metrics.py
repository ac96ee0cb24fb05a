"""The metrics of pods and their workers, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trio_kubelet.metrics import DEFAULT_BUCKETS, PlainCounter

# fmt: off
POD_START_BUCKETS = (
    0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900,
    1200, 1800, 2700, 3600,
)
# fmt: on


class PodMetrics:
    """What the pods room measures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        r = registry
        self.desired_pods = Gauge("kubelet_desired_pods", "Pods the sources want.", ["static"], registry=r)
        self.active_pods = Gauge(
            "kubelet_active_pods", "Wanted pods that are admitted and not over.", ["static"], registry=r
        )
        self.mirror_pods = Gauge("kubelet_mirror_pods", "Mirror pods.", registry=r)
        self.working_pods = Gauge(
            "kubelet_working_pods", "Pods with a worker.", ["lifecycle", "config", "static"], registry=r
        )
        self.restarted_pods = Counter(
            "kubelet_restarted_pods",
            "Pods started anew because their UID came back while the old one ended.",
            ["static"],
            registry=r,
        )
        self.orphaned_runtime_pods = Counter(
            "kubelet_orphaned_runtime_pods", "Pods found in the runtime that nobody wants.", registry=r
        )
        self.orphans = Gauge(
            "kubelet_orphan_pod_cleaned_volumes",
            "Pods nobody wants of which the last housekeeping found a directory to clean up.",
            registry=r,
        )
        self.orphans_left = Gauge(
            "kubelet_orphan_pod_cleaned_volumes_errors",
            "Those of them that an earlier housekeeping had found already.",
            registry=r,
        )
        self.admission_rejections = Counter(
            "kubelet_admission_rejections", "Pods refused by this node.", ["reason"], registry=r
        )
        self.preemptions = PlainCounter(
            "kubelet_preemptions",
            "Pods ended to make room for a critical one.",
            ["preemption_signal"],
            registry=r,
        )
        self.containers_per_pod = Histogram(
            "kubelet_containers_per_pod_count",
            "Containers of admitted pods.",
            buckets=(1, 2, 4, 8, 16),
            registry=r,
        )
        self.worker_duration = Histogram(
            "kubelet_pod_worker_duration_seconds",
            "Time to act upon a change of one pod.",
            ["operation_type"],
            buckets=DEFAULT_BUCKETS,
            registry=r,
        )
        self.worker_start_duration = Histogram(
            "kubelet_pod_worker_start_duration_seconds",
            "Time from seeing a pod to the start of its worker.",
            buckets=DEFAULT_BUCKETS,
            registry=r,
        )
        self.start_duration = Histogram(
            "kubelet_pod_start_duration_seconds",
            "Time from seeing a pod to seeing it run.",
            buckets=POD_START_BUCKETS,
            registry=r,
        )
        self.terminated_containers = Counter(
            "kubelet_terminated_containers",
            "Containers that were seen to have ended.",
            ["container_type", "exit_code", "reason"],
            registry=r,
        )
        self.resizes_in_progress = Gauge(
            "kubelet_pod_in_progress_resizes", "Pods that are being resized.", registry=r
        )
        self.ephemeral_containers = Gauge(
            "kubelet_managed_ephemeral_containers", "Ephemeral containers of wanted pods.", registry=r
        )
        self.stuck_workers = Gauge(
            "trio_kubelet_stuck_pod_workers",
            "Pod workers that have been busy with one attempt for suspiciously long.",
            registry=r,
        )
        self.housekeeping_duration = Histogram(
            "trio_kubelet_housekeeping_duration_seconds",
            "Duration of one housekeeping of the sync loop.",
            buckets=DEFAULT_BUCKETS,
            registry=r,
        )

    def container_ended(self, kind: str, exit_code: int, reason: str) -> None:
        """A container of that type was seen to have ended."""
        self.terminated_containers.labels(kind, str(exit_code), reason).inc()
