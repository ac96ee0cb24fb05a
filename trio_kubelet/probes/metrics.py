"""The metrics of `/metrics/probes`; a registry of their own, as there may be thousands of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.probes.types import ProbeKey


class ProbeMetrics:
    """Results and durations by probe, under the kubelet's names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        make = MetricMaker(self.registry)
        labels = ["probe_type", "container", "pod", "namespace"]
        self._total = make.counter(
            "prober_probe_total", "Runs of a container's probe by result.", [*labels, "pod_uid", "result"]
        )
        self._duration = make.histogram(
            "prober_probe_duration_seconds", "Duration of a container's probes that did not fail.", labels
        )

    def count(self, key: ProbeKey, pod: v1.Pod, failed: bool, seconds: float) -> None:
        """One run that told something."""
        labels = self._labels(key, pod)
        result = "failed" if failed else "successful"
        self._total.labels(*labels, key.pod_uid, result).inc()
        if not failed:
            self._duration.labels(*labels).observe(seconds)

    def forget(self, key: ProbeKey, pod: v1.Pod) -> None:
        """The probe ended: its series go."""
        labels = self._labels(key, pod)
        # By value: the removal by label names looks at the series of all probes.
        self._duration.remove(*labels)
        for result in ("successful", "failed"):
            self._total.remove(*labels, key.pod_uid, result)

    @staticmethod
    def _labels(key: ProbeKey, pod: v1.Pod) -> tuple[str, str, str, str]:
        return key.kind.capitalize(), key.container, pod.metadata.name, pod.metadata.namespace
