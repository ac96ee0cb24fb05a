"""The PLEG's metrics: relists, the stream of runtime events, what is found running."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, Histogram

from trio_kubelet.common.metrics import DEFAULT_BUCKETS, PlainCounter


class PLEGMetrics:
    """What both PLEGs measure, under the kubelet's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.relist_duration = Histogram(
            "kubelet_pleg_relist_duration_seconds",
            "Duration of one relist of the pod lifecycle event generator.",
            buckets=DEFAULT_BUCKETS,
            registry=registry,
        )
        self.relist_interval = Histogram(
            "kubelet_pleg_relist_interval_seconds",
            "Time between two relists of the pod lifecycle event generator.",
            buckets=DEFAULT_BUCKETS,
            registry=registry,
        )
        self.pod_relist_duration = Histogram(
            "kubelet_pleg_pod_relist_duration_seconds",
            "Duration of a relist of one pod.",
            buckets=DEFAULT_BUCKETS,
            registry=registry,
        )
        self.last_seen = Gauge(
            "kubelet_pleg_last_seen_seconds",
            "Unix time of the last active moment of the pod lifecycle event generator.",
            registry=registry,
        )
        PlainCounter(
            "kubelet_pleg_discard_events",
            "Pod lifecycle events thrown away; stays 0, events wait instead.",
            registry=registry,
        )
        self.waiting_events = Gauge(
            "trio_kubelet_pleg_waiting_events",
            "Pod lifecycle events that wait for the sync loop to have room.",
            registry=registry,
        )
        self.phase_duration = Histogram(
            "trio_kubelet_pleg_phase_duration_seconds",
            "Duration of the phases of a relist: list (calls to the runtime), compare.",
            ["phase"],
            buckets=(0.0005, 0.001, 0.0025, *DEFAULT_BUCKETS),
            registry=registry,
        )
        self.stream_ends = PlainCounter(
            "kubelet_evented_pleg_connection_error_count",
            "Ends of the stream of runtime events.",
            registry=registry,
        )
        self.stream_openings = PlainCounter(
            "kubelet_evented_pleg_connection_success_count",
            "Openings of the stream of runtime events.",
            registry=registry,
        )
        self.event_latency = Histogram(
            "kubelet_evented_pleg_connection_latency_seconds",
            "Age of a runtime event when it is received.",
            buckets=DEFAULT_BUCKETS,
            registry=registry,
        )
        self.running_pods = Gauge("kubelet_running_pods", "Pods with a running sandbox.", registry=registry)
        self.running_containers = Gauge(
            "kubelet_running_containers", "Containers by state.", ["container_state"], registry=registry
        )
