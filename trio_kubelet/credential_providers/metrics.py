"""Metrics of credential provider plugins, by the kubelet's names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.common.metrics import MetricMaker


class ProviderMetrics:
    """How plugins did, and which configuration they have."""

    def __init__(self, registry: CollectorRegistry, config_hash: str) -> None:
        make = MetricMaker(registry)
        self.errors = make.counter(
            "kubelet_credential_provider_plugin_errors", "Runs of a plugin that failed.", ["plugin_name"]
        )
        self.duration = make.histogram(
            "kubelet_credential_provider_plugin_duration", "Seconds a plugin ran.", ["plugin_name"]
        )
        make.gauge(
            "kubelet_credential_provider_config_info",
            "Hash of the configuration of the plugins; always 1.",
            ["hash"],
        ).labels(config_hash).set(1)
