"""The PLEG's metrics: relists, the stream of runtime events, what is found running."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import DEFAULT_BUCKETS, MetricMaker


class PLEGMetrics:
    """What both PLEGs measure, under the kubelet's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.relist_duration = make.histogram(
            "kubelet_pleg_relist_duration_seconds",
            "Duration of one relist of the pod lifecycle event generator.",
        )
        self.relist_interval = make.histogram(
            "kubelet_pleg_relist_interval_seconds",
            "Time between two relists of the pod lifecycle event generator.",
        )
        self.pod_relist_duration = make.histogram(
            "kubelet_pleg_pod_relist_duration_seconds", "Duration of a relist of one pod."
        )
        self.last_seen = make.gauge(
            "kubelet_pleg_last_seen_seconds",
            "Unix time of the last active moment of the pod lifecycle event generator.",
        )
        make.plain_counter(
            "kubelet_pleg_discard_events", "Pod lifecycle events thrown away; stays 0, events wait instead."
        )
        self.waiting_events = make.gauge(
            "trio_kubelet_pleg_waiting_events",
            "Pod lifecycle events that wait for the sync loop to have room.",
        )
        self.phase_duration = make.histogram(
            "trio_kubelet_pleg_phase_duration_seconds",
            "Duration of the phases of a relist: list (calls to the runtime), compare.",
            ["phase"],
            buckets=(0.0005, 0.001, 0.0025, *DEFAULT_BUCKETS),
        )
        self.stream_ends = make.plain_counter(
            "kubelet_evented_pleg_connection_error_count", "Ends of the stream of runtime events."
        )
        self.stream_openings = make.plain_counter(
            "kubelet_evented_pleg_connection_success_count", "Openings of the stream of runtime events."
        )
        self.event_latency = make.histogram(
            "kubelet_evented_pleg_connection_latency_seconds", "Age of a runtime event when it is received."
        )
        self.running_pods = make.gauge("kubelet_running_pods", "Pods with a running sandbox.")
        self.running_containers = make.gauge(
            "kubelet_running_containers", "Containers by state.", ["container_state"]
        )
