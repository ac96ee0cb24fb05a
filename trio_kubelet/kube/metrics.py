"""What is measured of the way to the API server, by the names every Kubernetes client has."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trio_kubelet.metrics import PlainCounter

_DURATIONS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_SIZES = (64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216)
_AGES = (60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000)


class KubeMetrics:
    """The metrics of one agent's API clients, certificates and events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        r = registry
        self.requests = Counter(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            ["code", "method", "host"],
            registry=r,
        )
        self.request_duration = Histogram(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host.",
            ["verb", "host"],
            buckets=_DURATIONS,
            registry=r,
        )
        self.limiter_duration = Histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Client side rate limiter latency in seconds. Broken down by verb, and host.",
            ["verb", "host"],
            buckets=_DURATIONS,
            registry=r,
        )
        self.request_size = Histogram(
            "rest_client_request_size_bytes",
            "Request size in bytes. Broken down by verb and host.",
            ["verb", "host"],
            buckets=_SIZES,
            registry=r,
        )
        self.response_size = Histogram(
            "rest_client_response_size_bytes",
            "Response size in bytes. Broken down by verb and host.",
            ["verb", "host"],
            buckets=_SIZES,
            registry=r,
        )
        self.client_renew_errors = PlainCounter(
            "kubelet_certificate_manager_client_expiration_renew_errors",
            "Counter of certificate renewal errors.",
            registry=r,
        )
        self.client_ttl = Gauge(
            "kubelet_certificate_manager_client_ttl_seconds",
            "Gauge of the TTL (time-to-live) of the Kubelet's client certificate, in seconds until expiry "
            "(negative if already expired). +Inf if the certificate is invalid or unused.",
            registry=r,
        )
        self.server_renew_errors = PlainCounter(
            "kubelet_server_expiration_renew_errors",
            "Counter of certificate renewal errors.",
            registry=r,
        )
        self.server_rotation = Histogram(
            "kubelet_certificate_manager_server_rotation_seconds",
            "Histogram of the number of seconds the previous certificate lived before being rotated.",
            buckets=_AGES,
            registry=r,
        )
        self.server_ttl = Gauge(
            "kubelet_certificate_manager_server_ttl_seconds",
            "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate, in seconds until "
            "expiry (negative if already expired). +Inf if the certificate is invalid or unused.",
            registry=r,
        )
        for gauge in (self.client_ttl, self.server_ttl):
            gauge.set(float("inf"))
        self.events_dropped = Counter(
            "trio_kubelet_events_dropped",
            "Events that did not reach the API server: the queue was full, it refused or stayed away.",
            ["cause"],
            registry=r,
        )
