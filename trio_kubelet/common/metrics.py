"""What metrics of all rooms share. Every metric has the kubelet's name: dashboards and alerts rely on it.

An agent has one registry of its own rather than prometheus-client's global one, so that tests can run several
agents in one process. Each room has a class of its metrics, which is given the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trio_kubelet.common.quick_metrics import QuickCounter, QuickHistogram

# The bucket layout the kubelet uses for most of its histograms.
DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


ALPHA, BETA, INTERNAL = "ALPHA", "BETA", "INTERNAL"
"""How stable Kubernetes promises a metric to be (`StabilityLevel` of its component-base)."""
_OWN = "trio_kubelet_"  # what only this agent has: nothing is promised


class LabelValues:
    """Values of a label that others choose: each is a series for ever, so what is too long for one, or comes
    after so many, counts as `other`.
    """

    def __init__(self, *, most: int, longest: int) -> None:
        self._most, self._longest = most, longest
        self._known = set[str]()

    def counted(self, value: str) -> str:
        """The value it counts under."""
        if len(value) <= self._longest and len(self._known) < self._most:
            self._known.add(value)
        return value if value in self._known else "other"


class PlainCounter(Gauge):
    """A counter whose name does not end in `_total`, as some of the kubelet's do not.

    prometheus-client would add the suffix; `server.http.exposition` writes the name as it is.
    """

    _type = "counter"


Counts = Callable[[], Mapping[tuple[str, ...], float]]
"""Values by the values of labels, found out when somebody asks."""


class _Counted(Collector):
    def __init__(self, family: Callable[[], CounterMetricFamily | GaugeMetricFamily], count: Counts) -> None:
        self._family, self._count = family, count

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        family = self._family()
        for labels, value in self._count().items():
            family.add_metric(labels, value)
        return (family,)


class MetricMaker:
    """Makes the metrics of one registry that are of one level, which pages show before the meaning."""

    def __init__(self, registry: CollectorRegistry, level: str = ALPHA) -> None:
        self._registry = registry
        self._level = level

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, self._help(name, meaning), labels, registry=self._registry)

    def plain_counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> PlainCounter:
        return PlainCounter(name, self._help(name, meaning), labels, registry=self._registry)

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, self._help(name, meaning), labels, registry=self._registry)

    def histogram(
        self, name: str, meaning: str, labels: Sequence[str] = (), buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> Histogram:
        text = self._help(name, meaning)
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

    def quick_counter(self, name: str, meaning: str, labels: Sequence[str]) -> QuickCounter:
        """For what happens all the time, in the event loop's thread."""
        made = QuickCounter(name, self._help(name, meaning), labels)
        self._registry.register(made)
        return made

    def quick_histogram(
        self, name: str, meaning: str, labels: Sequence[str], buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> QuickHistogram:
        """The same."""
        made = QuickHistogram(name, self._help(name, meaning), labels, buckets)
        self._registry.register(made)
        return made

    def counted(self, name: str, meaning: str, labels: Sequence[str], count: Counts) -> None:
        """A gauge whose values are counted when they are asked for."""
        text = self._help(name, meaning)
        self._registry.register(_Counted(lambda: GaugeMetricFamily(name, text, labels=labels), count))

    def counted_ever(self, name: str, meaning: str, labels: Sequence[str], count: Counts) -> None:
        """The same of a counter."""
        text = self._help(name, meaning)
        self._registry.register(_Counted(lambda: CounterMetricFamily(name, text, labels=labels), count))

    def _help(self, name: str, meaning: str) -> str:
        return meaning if name.startswith(_OWN) else f"[{self._level}] {meaning}"
