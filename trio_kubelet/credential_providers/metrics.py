"""Metrics of credential provider plugins, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trio_kubelet.common.metrics import DEFAULT_BUCKETS


class ProviderMetrics:
    """How plugins did, and which configuration they have."""

    def __init__(self, registry: CollectorRegistry, config_hash: str) -> None:
        self.errors = Counter(
            "kubelet_credential_provider_plugin_errors",
            "Runs of a plugin that failed.",
            ["plugin_name"],
            registry=registry,
        )
        self.duration = Histogram(
            "kubelet_credential_provider_plugin_duration",
            "Seconds a plugin ran.",
            ["plugin_name"],
            buckets=DEFAULT_BUCKETS,
            registry=registry,
        )
        Gauge(
            "kubelet_credential_provider_config_info",
            "Hash of the configuration of the plugins; always 1.",
            ["hash"],
            registry=registry,
        ).labels(config_hash).set(1)
