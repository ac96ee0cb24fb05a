"""The registry as Prometheus text, by the kubelet's names.

prometheus-client's own writer adds `_total` to every counter and a `_created` sample to most metrics;
the kubelet's metrics have neither, so the text is written here. It is written in slices, metric by
metric, so that a large registry never holds the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KINDS = {"unknown": "untyped"}


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
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


def render_metric(metric: Metric) -> str:
    """One metric family; empty when it has no samples, as the kubelet leaves such families out."""
    samples = [s for s in metric.samples if not s.name.endswith("_created")]
    if not samples:
        return ""
    name = metric.name
    if metric.type == "counter" and samples[0].name == f"{name}_total":
        name = samples[0].name
    help_text = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
    head = f"# HELP {name} {help_text}\n# TYPE {name} {KINDS.get(metric.type, metric.type)}\n"
    return head + "".join(map(_sample, samples))


def render(registry: CollectorRegistry) -> Iterator[bytes]:
    """The whole registry, a slice per metric family."""
    for metric in registry.collect():
        rendered = render_metric(metric)
        if rendered:
            yield rendered.encode()
