"""The metrics of `/metrics/probes`; a registry of their own, as there may be thousands of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.metrics import BETA, MetricMaker
from trio_kubelet.common.quick_metrics import Count, Durations, QuickCounter, QuickHistogram
from trio_kubelet.probes.types import ProbeKey


class ProbeMetrics:
    """Results and durations by probe, under the kubelet's names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        make = MetricMaker(self.registry)
        labels = ["probe_type", "container", "pod", "namespace"]
        self._total = MetricMaker(self.registry, BETA).quick_counter(
            "prober_probe_total", "Runs of a container's probe by result.", [*labels, "pod_uid", "result"]
        )
        self._duration = make.quick_histogram(
            "prober_probe_duration_seconds", "Duration of a container's probes that did not fail.", labels
        )

    def series(self, key: ProbeKey, pod: v1.Pod) -> ProbeSeries:
        """Those of one probe; none of them exists before there is something to count."""
        return ProbeSeries(self._total, self._duration, key, pod.metadata.name, pod.metadata.namespace)


class ProbeSeries:
    """What is counted of one probe. Series are kept: to find one by its labels takes longer than to count."""

    __slots__ = ("_duration", "_durations", "_labels", "_pod_uid", "_total", "_totals")

    def __init__(
        self, total: QuickCounter, duration: QuickHistogram, key: ProbeKey, pod_name: str, namespace: str
    ) -> None:
        self._total, self._duration = total, duration
        self._labels = key.kind.capitalize(), key.container, pod_name, namespace
        self._pod_uid = key.pod_uid
        self._totals: dict[str, Count] = {}  # by result
        self._durations: Durations | None = None

    def count(self, failed: bool, seconds: float) -> None:
        """One run that told something."""
        result = "failed" if failed else "successful"
        if (total := self._totals.get(result)) is None:
            total = self._totals[result] = self._total.labels(*self._labels, self._pod_uid, result)
        total.value += 1
        if not failed:
            if self._durations is None:
                self._durations = self._duration.labels(*self._labels)
            self._durations.observe(seconds)

    def forget(self) -> None:
        """The probe ended: its series go."""
        # By value: the removal by label names looks at the series of all probes.
        self._duration.remove(*self._labels)
        for result in self._totals:
            self._total.remove(*self._labels, self._pod_uid, result)
