"""The registry as Prometheus text, by the kubelet's names.

prometheus-client's own writer adds `_total` to every counter and a `_created` sample to most metrics;
the kubelet's metrics have neither, so the text is written here. It is written in slices, so that a large
registry never holds the event loop: metrics with labels are rendered child by child instead of by `collect`,
which would make all samples of a metric at once.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from trio_kubelet.common.quick_metrics import Count, Durations, QuickCounter, QuickHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
KINDS = {"unknown": "untyped"}
SLICE = 300  # lines, about a millisecond


class WrittenCollector(Collector):
    """Writes its lines itself, for families with many constant samples."""

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """The lines of one family, its head included."""

    def collect(self) -> Iterable[Metric]:
        """Nothing: there are only lines."""
        return ()


def _escape(value: str) -> str:
    if "\\" in value or "\n" in value or '"' in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _number(value: float) -> str:
    if -1e6 < value < 1e6 and value == int(value):
        return str(int(value))
    written: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return written.removesuffix(".0")


def _label(name: str, value: str) -> str:
    # Go writes the bound 1 as "1"; rules that select a bucket by name depend on it.
    return f'{name}="{_escape(value.removesuffix(".0") if name == "le" else value)}"'


def _sample(sample: Sample) -> str:
    labels = ",".join(_label(name, value) for name, value in sorted(sample.labels.items()))
    braces = f"{{{labels}}}" if labels else ""
    stamp = f" {int(float(sample.timestamp) * 1000)}" if sample.timestamp is not None else ""
    return f"{sample.name}{braces} {_number(sample.value)}{stamp}\n"


def head(name: str, kind: str, documentation: str) -> str:
    """The two lines above a family's samples."""
    help_text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {help_text}\n# TYPE {name} {KINDS.get(kind, kind)}\n"


def render_metric(metric: Metric) -> Iterator[str]:
    """The lines of one metric family; none when it has no samples: the kubelet leaves such families out."""
    name = metric.name
    for number, sample in enumerate(s for s in metric.samples if not s.name.endswith("_created")):
        if not number:
            if metric.type == "counter" and sample.name == f"{name}_total":
                name = sample.name
            yield head(name, metric.type, metric.documentation)
        yield _sample(sample)


def render_labelled(collector: MetricWrapperBase) -> Iterator[str]:
    """The lines of a metric with labels, child by child."""
    name, kind = collector._name, collector._type or "untyped"
    shown = f"{name}_total" if isinstance(collector, Counter) else name
    names = sorted(range(len(collector._labelnames)), key=collector._labelnames.__getitem__)
    children = list(collector._metrics.items())
    if children:
        yield head(shown, kind, collector._documentation)
    for values, child in children:
        pairs = [(collector._labelnames[i], _escape(values[i])) for i in names]
        if isinstance(child, Histogram):
            yield _histogram(name, pairs, child)
            continue
        labels = ",".join(f'{label}="{value}"' for label, value in pairs)
        for sample in child._child_samples():
            if sample.name != "_created":
                yield f"{name}{sample.name}{{{labels}}} {_number(sample.value)}\n"


def render_quick(family: QuickCounter | QuickHistogram) -> Iterator[str]:
    """The same of a metric that is fed without locks."""
    shown = f"{family.name}_total" if family.kind == "counter" else family.name
    names = sorted(range(len(family.label_names)), key=family.label_names.__getitem__)
    children = list[tuple[tuple[str, ...], Count | Durations]](family.series.items())
    if children:
        yield head(shown, family.kind, family.meaning)
    for values, child in children:
        pairs = [(family.label_names[i], _escape(values[i])) for i in names]
        if isinstance(child, Durations):
            yield _bucket_lines(shown, pairs, child.buckets(), child.sum)
        else:
            labels = ",".join(f'{label}="{value}"' for label, value in pairs)
            yield f"{shown}{{{labels}}} {_number(child.value)}\n"


def _histogram(name: str, pairs: list[tuple[str, str]], child: Histogram) -> str:
    counts = itertools.accumulate(bucket.get() for bucket in child._buckets)
    return _bucket_lines(name, pairs, zip(child._upper_bounds, counts, strict=True), child._sum.get())


def _bucket_lines(
    name: str, pairs: list[tuple[str, str]], buckets: Iterable[tuple[float, float]], seconds: float
) -> str:
    before = "".join(f'{label}="{value}",' for label, value in pairs if label < "le")
    after = "".join(f',{label}="{value}"' for label, value in pairs if label > "le")
    total, lines = 0.0, []
    for bound, total in buckets:
        lines.append(f'{name}_bucket{{{before}le="{_number(bound)}"{after}}} {_number(total)}\n')
    labels = ",".join(f'{label}="{value}"' for label, value in pairs)
    braces = f"{{{labels}}}" if labels else ""
    lines.append(f"{name}_sum{braces} {_number(seconds)}\n")
    lines.append(f"{name}_count{braces} {_number(total)}\n")
    return "".join(lines)


def _families(registry: CollectorRegistry) -> Iterator[Iterable[str]]:
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase) and collector._labelnames:
            yield render_labelled(collector)
        elif isinstance(collector, QuickCounter | QuickHistogram):
            yield render_quick(collector)
        elif isinstance(collector, WrittenCollector):
            yield collector.lines()
        else:
            for metric in collector.collect():
                yield render_metric(metric)


def render(registry: CollectorRegistry) -> Iterator[bytes]:
    """The whole registry, in slices."""
    waiting: list[str] = []
    lines = 0
    for family in _families(registry):
        for text in family:
            waiting.append(text)
            lines += text.count("\n")
            if lines >= SLICE:
                yield _encoded(waiting)
                waiting, lines = [], 0
    if waiting:
        yield _encoded(waiting)


def _encoded(lines: Sequence[str]) -> bytes:
    """What is no text, as the name of a plugin's socket may be, keeps the other lines from nobody."""
    return "".join(lines).encode(errors="replace")
