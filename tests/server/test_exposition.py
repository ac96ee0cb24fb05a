"""The metrics text has the kubelet's names: no added suffixes, no creation times."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trio_kubelet.metrics import AgentMetrics, PlainCounter
from trio_kubelet.server.exposition import render


def lines(registry: CollectorRegistry) -> list[str]:
    return b"".join(render(registry)).decode().splitlines()


def test_counters_keep_their_names() -> None:
    registry = CollectorRegistry()
    Counter("a_total", "A.", registry=registry).inc()
    PlainCounter("b_count", "B.", registry=registry).inc(2)
    assert lines(registry) == [
        "# HELP a_total A.",
        "# TYPE a_total counter",
        "a_total 1",
        "# HELP b_count B.",
        "# TYPE b_count counter",
        "b_count 2",
    ]


def test_labels_are_escaped_and_empty_families_left_out() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", "G\nh.", ["x"], registry=registry)
    Gauge("unused", "U.", ["x"], registry=registry)
    gauge.labels('a"b\\c\n').set(3)
    assert lines(registry) == ["# HELP g G\\nh.", "# TYPE g gauge", 'g{x="a\\"b\\\\c\\n"} 3']


def test_histograms_have_buckets_sum_and_count() -> None:
    registry = CollectorRegistry()
    Histogram("h", "H.", buckets=(1, 2), registry=registry).observe(1.5)
    assert sorted(lines(registry)[2:]) == [
        'h_bucket{le="+Inf"} 1',
        'h_bucket{le="1"} 0',
        'h_bucket{le="2"} 1',
        "h_count 1",
        "h_sum 1.5",
    ]


def test_no_metric_of_the_agent_has_a_creation_time() -> None:
    assert not [line for line in lines(AgentMetrics().registry) if "_created" in line]
