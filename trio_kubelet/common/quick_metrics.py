"""Counters and histograms that the event loop's thread alone feeds and shows: numbers without locks.

What happens fifty times a second at rest, as a probe does, pays more for prometheus-client's locks and checks
than for what is counted; and thousands of series of a histogram are a lock for each bucket of each.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Count:
    """How often something happened."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Durations:
    """How long something took, or how large it was, by buckets; `bounds` are their upper ones in seconds or
    bytes, the last is endless.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Each upper bound, and how many were not above it."""
        return zip((*self.bounds, float("inf")), itertools.accumulate(self.counts), strict=True)


S = TypeVar("S")


class QuickFamily(Collector, Generic[S]):
    """A metric with labels, of which there is one `S` for each set of their values."""

    kind = ""

    def __init__(self, name: str, meaning: str, labels: Sequence[str], make: Callable[[], S]) -> None:
        self.name = name
        self.meaning = meaning
        self.label_names = tuple(labels)
        self.series: dict[tuple[str, ...], S] = {}
        self._make = make

    def labels(self, *values: str) -> S:
        """The series with these values; it is made if there is none."""
        found = self.series.get(values)
        if found is None:
            found = self.series[values] = self._make()
        return found

    def remove(self, *values: str) -> None:
        """The series goes, if there is one."""
        self.series.pop(values, None)

    def describe(self) -> Iterable[Metric]:
        """The metric without its series, by which a registry finds it by name."""
        return (self._family(),)

    @abstractmethod
    def collect(self) -> Iterable[Metric]: ...

    @abstractmethod
    def _family(self) -> Metric: ...


class QuickCounter(QuickFamily[Count]):
    """Its samples have `_total` behind its name, whether it was given with that or without."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str]) -> None:
        super().__init__(name.removesuffix("_total"), meaning, labels, Count)

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for values, count in self.series.items():
            family.add_metric(values, count.value)
        return (family,)

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.name, self.meaning, labels=self.label_names)


class QuickHistogram(QuickFamily[Durations]):
    """A histogram of seconds or bytes."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, meaning, labels, lambda: Durations(bounds))

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for values, durations in self.series.items():
            buckets = [(floatToGoString(bound), count) for bound, count in durations.buckets()]  # type: ignore[no-untyped-call]
            family.add_metric(values, buckets, durations.sum)
        return (family,)

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.name, self.meaning, labels=self.label_names)
