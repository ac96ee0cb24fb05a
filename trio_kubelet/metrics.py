"""The agent's metric registry; every metric has the kubelet's name (a contract with dashboards and alerts).

One registry per agent rather than prometheus-client's global one, so that tests can run several
agents in one process. Modules that measure take the metric objects they need as arguments.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# The bucket layouts the kubelet uses for its histograms.
DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class PlainCounter(Gauge):
    """A counter whose name does not end in `_total`, as some of the kubelet's do not.

    prometheus-client would add the suffix; `server.exposition` writes the name as it is.
    """

    _type = "counter"


class AgentMetrics:
    """The metrics of one agent, by the kubelet's names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        r = self.registry
        self.pleg_relist_duration = Histogram(
            "kubelet_pleg_relist_duration_seconds",
            "Duration of one relist of the pod lifecycle event generator.",
            buckets=DEFAULT_BUCKETS,
            registry=r,
        )
        self.pleg_relist_interval = Histogram(
            "kubelet_pleg_relist_interval_seconds",
            "Time between two relists of the pod lifecycle event generator.",
            buckets=DEFAULT_BUCKETS,
            registry=r,
        )
        self.pleg_last_seen = Gauge(
            "kubelet_pleg_last_seen_seconds",
            "Unix time of the last active moment of the pod lifecycle event generator.",
            registry=r,
        )
        self.pleg_discard_events = PlainCounter(
            "kubelet_pleg_discard_events",
            "Pod lifecycle events thrown away; stays 0, events wait instead.",
            registry=r,
        )
        self.pleg_waiting_events = Gauge(
            "trio_kubelet_pleg_waiting_events",
            "Pod lifecycle events that wait for the sync loop to have room.",
            registry=r,
        )
        self.pleg_phase = Histogram(
            "trio_kubelet_pleg_phase_duration_seconds",
            "Duration of the phases of a relist: list (calls to the runtime), compare.",
            ["phase"],
            buckets=(0.0005, 0.001, 0.0025, *DEFAULT_BUCKETS),
            registry=r,
        )
        self.evented_pleg_connection_error = PlainCounter(
            "kubelet_evented_pleg_connection_error_count",
            "Ends of the stream of runtime events.",
            registry=r,
        )
        self.evented_pleg_connection_success = PlainCounter(
            "kubelet_evented_pleg_connection_success_count",
            "Openings of the stream of runtime events.",
            registry=r,
        )
        self.evented_pleg_latency = Histogram(
            "kubelet_evented_pleg_connection_latency_seconds",
            "Age of a runtime event when it is received.",
            buckets=DEFAULT_BUCKETS,
            registry=r,
        )
        self.running_pods = Gauge("kubelet_running_pods", "Pods with a running sandbox.", registry=r)
        self.running_containers = Gauge(
            "kubelet_running_containers", "Containers by state.", ["container_state"], registry=r
        )
        self.runtime_operations = Counter(
            "kubelet_runtime_operations",
            "Calls to the container runtime by type.",
            ["operation_type"],
            registry=r,
        )
        self.runtime_operations_errors = Counter(
            "kubelet_runtime_operations_errors",
            "Failed calls to the container runtime by type.",
            ["operation_type"],
            registry=r,
        )
        self.runtime_operations_duration = Histogram(
            "kubelet_runtime_operations_duration_seconds",
            "Duration of calls to the container runtime by type.",
            ["operation_type"],
            buckets=tuple(0.005 * 2.5**i for i in range(14)),
            registry=r,
        )
