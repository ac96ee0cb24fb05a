"""What is measured of the way to the API server, by the names every Kubernetes client has."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Gauge

from trio_kubelet.common.metrics import MetricMaker, PlainCounter
from trio_kubelet.common.quick_metrics import QuickHistogram

_DURATIONS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_SIZES = (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
_AGES = (60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000)
_PLUGIN_AGES = (600, 1800, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000)


class RequestMetrics:
    """Requests to API servers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)

        def by_verb(name: str, text: str, buckets: tuple[float, ...]) -> QuickHistogram:
            text += " Broken down by verb, and host."
            return make.quick_histogram(f"rest_client_{name}", text, ["verb", "host"], buckets)

        self.requests = make.quick_counter(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            ["code", "method", "host"],
        )
        self.retries = make.counter(
            "rest_client_request_retries",
            "Number of request retries, partitioned by status code, verb, and host.",
            ["code", "verb", "host"],
        )
        self.request_duration = by_verb("request_duration_seconds", "Request latency in seconds.", _DURATIONS)
        self.limiter_duration = by_verb(
            "rate_limiter_duration_seconds", "Client side rate limiter latency in seconds.", _DURATIONS
        )
        self.request_size = by_verb("request_size_bytes", "Request size in bytes.", _SIZES)
        self.response_size = by_verb("response_size_bytes", "Response size in bytes.", _SIZES)


class CertificateMetrics:
    """The node's certificates; the gauges are given functions by those who know."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)

        def seconds_left(which: str) -> Gauge:
            gauge = make.gauge(
                f"kubelet_certificate_manager_{which}_ttl_seconds",
                f"Seconds until the {which} certificate expires; +Inf if it is invalid or unused.",
            )
            gauge.set(math.inf)
            return gauge

        def errors(name: str) -> PlainCounter:
            return make.plain_counter(name, "Counter of certificate renewal errors.")

        self.client_renew_errors = errors("kubelet_certificate_manager_client_expiration_renew_errors")
        self.client_ttl = seconds_left("client")
        self.server_renew_errors = errors("kubelet_server_expiration_renew_errors")
        self.server_ttl = seconds_left("server")
        self.server_rotation = make.histogram(
            "kubelet_certificate_manager_server_rotation_seconds",
            "Histogram of the number of seconds the previous certificate lived before being rotated.",
            buckets=_AGES,
        )


class PluginMetrics:
    """The credential plugin of the kubeconfig."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = MetricMaker(registry)
        self.plugin_calls = make.counter(
            "rest_client_exec_plugin_call",
            "Calls of credential plugins by what became of them (no_error, plugin_execution_error, "
            "plugin_not_found_error, client_internal_error) and exit code, which is 0 only if it went well.",
            ["code", "call_status"],
        )
        self.plugin_ttl = make.gauge(
            "rest_client_exec_plugin_ttl_seconds",
            "Seconds until the client certificate of the credential plugin expires; +Inf if there is none.",
        )
        self.plugin_ttl.set(math.inf)
        self.plugin_rotation = make.histogram(
            "rest_client_exec_plugin_certificate_rotation_age",
            "Seconds the last client certificate of the credential plugin lived before it was replaced.",
            buckets=_PLUGIN_AGES,
        )


class KubeMetrics(RequestMetrics, CertificateMetrics, PluginMetrics):
    """The metrics of one agent's API clients, certificates and events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        RequestMetrics.__init__(self, registry)
        CertificateMetrics.__init__(self, registry)
        PluginMetrics.__init__(self, registry)
        self.events_dropped = MetricMaker(registry).counter(
            "trio_kubelet_events_dropped",
            "Events that did not reach the API server: the queue was full, it refused or stayed away.",
            ["cause"],
        )
