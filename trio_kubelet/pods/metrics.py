"""The metrics of pods and their workers, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from trio_kubelet.common.metrics import MetricMaker

# fmt: off
POD_START_BUCKETS = (
    0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900,
    1200, 1800, 2700, 3600,
)
# fmt: on


class PodMetrics:
    """What the pods room measures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.desired_pods = make.gauge("kubelet_desired_pods", "Pods the sources want.", ["static"])
        self.active_pods = make.gauge(
            "kubelet_active_pods", "Wanted pods that are admitted and not over.", ["static"]
        )
        self.mirror_pods = make.gauge("kubelet_mirror_pods", "Mirror pods.")
        self.working_pods = make.gauge(
            "kubelet_working_pods", "Pods with a worker.", ["lifecycle", "config", "static"]
        )
        self.restarted_pods = make.counter(
            "kubelet_restarted_pods",
            "Pods started anew because their UID came back while the old one ended.",
            ["static"],
        )
        for static in ("", "true"):
            self.restarted_pods.labels(static)  # both are shown from the start
        self.watch_events_dropped = make.counter(
            "kubelet_pod_watch_events_dropped", "Events of pods that watchers on the node have missed."
        )
        self.orphaned_runtime_pods = make.counter(
            "kubelet_orphaned_runtime_pods", "Pods found in the runtime that nobody wants."
        )
        self.orphans = make.gauge(
            "kubelet_orphan_pod_cleaned_volumes",
            "Pods nobody wants of which the last housekeeping found a directory to clean up.",
        )
        self.orphans_left = make.gauge(
            "kubelet_orphan_pod_cleaned_volumes_errors",
            "Those of them that an earlier housekeeping had found already.",
        )
        self.admission_rejections = make.counter(
            "kubelet_admission_rejections", "Pods refused by this node.", ["reason"]
        )
        self.preemptions = make.plain_counter(
            "kubelet_preemptions", "Pods ended to make room for a critical one.", ["preemption_signal"]
        )
        self.containers_per_pod = make.histogram(
            "kubelet_containers_per_pod_count", "Containers of admitted pods.", buckets=(1, 2, 4, 8, 16)
        )
        self.worker_duration = make.histogram(
            "kubelet_pod_worker_duration_seconds", "Time to act upon a change of one pod.", ["operation_type"]
        )
        self.worker_start_duration = make.histogram(
            "kubelet_pod_worker_start_duration_seconds", "Time from seeing a pod to the start of its worker."
        )
        self.start_duration = make.histogram(
            "kubelet_pod_start_duration_seconds",
            "Time from seeing a pod to seeing it run.",
            buckets=POD_START_BUCKETS,
        )
        self.terminated_containers = make.counter(
            "kubelet_terminated_containers",
            "Containers that were seen to have ended.",
            ["container_type", "exit_code", "reason"],
        )
        self.requested_resizes = make.counter(
            "kubelet_container_requested_resizes",
            "Amounts of containers that were asked to change.",
            ["resource", "requirement", "operation"],
        )
        self.resizes_pending = make.gauge(
            "kubelet_pod_pending_resizes", "Pods that wait for other resources.", ["reason"]
        )
        self.infeasible_resizes = make.counter(
            "kubelet_pod_infeasible_resizes", "Resizes that can never be made here.", ["reason_detail"]
        )
        self.deferred_resizes_accepted = make.counter(
            "kubelet_pod_deferred_accepted_resizes",
            "Resizes that were granted after they had to wait.",
            ["retry_trigger"],
        )
        self.resizes_in_progress = make.gauge(
            "kubelet_pod_in_progress_resizes", "Pods that are being resized."
        )
        self.ephemeral_containers = make.gauge(
            "kubelet_managed_ephemeral_containers", "Ephemeral containers of wanted pods."
        )
        self.stuck_workers = make.gauge(
            "trio_kubelet_stuck_pod_workers",
            "Pod workers that have been busy with one attempt for suspiciously long.",
        )
        self.housekeeping_duration = make.histogram(
            "trio_kubelet_housekeeping_duration_seconds", "Duration of one housekeeping of the sync loop."
        )

    def container_ended(self, kind: str, exit_code: int, reason: str) -> None:
        """A container of that type was seen to have ended."""
        self.terminated_containers.labels(kind, str(exit_code), reason).inc()


def status_sync_durations(registry: CollectorRegistry) -> Histogram:
    """How long statuses take to the API server; there without one too, and empty, as the kubelet has it."""
    return MetricMaker(registry).histogram(
        "kubelet_pod_status_sync_duration_seconds",
        "Time from a change of a pod's status until the API server has it.",
        buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0),
    )
