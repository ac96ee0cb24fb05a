"""The metrics text has the kubelet's names: no added suffixes, no creation times."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trio_kubelet.common.metrics import BETA, MetricMaker, PlainCounter
from trio_kubelet.cri.caller import CallMetrics
from trio_kubelet.grpc.errors import Code
from trio_kubelet.server.http.exposition import render


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


def test_a_quick_histogram_without_labels_is_there_from_the_first_value_on() -> None:
    registry = CollectorRegistry()
    quick = MetricMaker(registry).quick_histogram("h", "H.", (), (1, 2))
    assert lines(registry) == []
    quick.labels().observe(1.5)
    assert lines(registry)[2:] == [
        'h_bucket{le="1"} 0',
        'h_bucket{le="2"} 1',
        'h_bucket{le="+Inf"} 1',
        "h_sum 1.5",
        "h_count 1",
    ]


def test_a_metric_tells_how_stable_it_is() -> None:
    registry = CollectorRegistry()
    alpha, beta = MetricMaker(registry), MetricMaker(registry, BETA)
    alpha.gauge("g", "G.").set(1)
    alpha.plain_counter("p_count", "P.").inc()
    beta.counter("c", "C.").inc()
    beta.histogram("h", "H.").observe(1)
    alpha.quick_counter("qc", "Qc.", ["x"]).labels("1").value += 1
    beta.quick_histogram("qh", "Qh.", ["x"]).labels("1").observe(1)
    alpha.counted("n", "N.", ["x"], lambda: {("1",): 1})
    beta.counted_ever("e", "E.", ["x"], lambda: {("1",): 1})
    beta.gauge("trio_kubelet_own", "Nothing is promised.").set(1)
    assert [line for line in lines(registry) if line.startswith("# HELP")] == [
        "# HELP g [ALPHA] G.",
        "# HELP p_count [ALPHA] P.",
        "# HELP c_total [BETA] C.",
        "# HELP h [BETA] H.",
        "# HELP qc_total [ALPHA] Qc.",
        "# HELP qh [BETA] Qh.",
        "# HELP n [ALPHA] N.",
        "# HELP e_total [BETA] E.",
        "# HELP trio_kubelet_own Nothing is promised.",
    ]


def test_a_label_that_is_no_text_leaves_the_others_to_be_read() -> None:
    """Any name of a socket among the plugins' is a label."""
    registry = CollectorRegistry()
    sockets: dict[tuple[str, ...], float] = {("/plugins/\udcff.sock",): 1, ("/plugins/well.sock",): 1}
    MetricMaker(registry).counted("plugins", "Plugins.", ["socket_path"], lambda: sockets)
    assert lines(registry)[2:] == [
        'plugins{socket_path="/plugins/?.sock"} 1',
        'plugins{socket_path="/plugins/well.sock"} 1',
    ]


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


def test_no_metric_has_a_creation_time() -> None:
    registry = CollectorRegistry()
    CallMetrics(registry)("Version", 0.1, Code.UNKNOWN)
    shown = lines(registry)
    assert 'kubelet_runtime_operations_errors_total{operation_type="version"} 1' in shown
    assert not [line for line in shown if "_created" in line]


def test_a_histogram_with_labels_is_written_as_go_does() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h", "H.", ["zone", "a"], buckets=(0.5, 1), registry=registry)
    histogram.labels('z"1', "x").observe(0.7)
    assert lines(registry)[2:] == [
        'h_bucket{a="x",le="0.5",zone="z\\"1"} 0',
        'h_bucket{a="x",le="1",zone="z\\"1"} 1',
        'h_bucket{a="x",le="+Inf",zone="z\\"1"} 1',
        'h_sum{a="x",zone="z\\"1"} 0.7',
        'h_count{a="x",zone="z\\"1"} 1',
    ]


def test_counters_with_labels_keep_their_names() -> None:
    registry = CollectorRegistry()
    Counter("a", "A.", ["x"], registry=registry).labels("1").inc()
    PlainCounter("b_count", "B.", ["x"], registry=registry).labels("1").inc(2e6)
    assert [line for line in lines(registry) if line[0] != "#"] == [
        'a_total{x="1"} 1',
        'b_count{x="1"} 2e+06',
    ]


def test_a_large_metric_comes_in_slices() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h", "H.", ["x"], registry=registry)
    for number in range(200):
        histogram.labels(str(number)).observe(1)
    slices = list(render(registry))
    assert max(piece.count(b"\n") for piece in slices) < 400
    assert b"".join(slices).count(b"h_count{") == 200


@pytest.mark.parametrize("name", ["c", "c_total"])
def test_quick_metrics_are_written_and_collected_as_the_others(name: str) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    quick, usual = MetricMaker(registries[0]), MetricMaker(registries[1])
    labels = ["zone", "a"]
    count, slow_count = quick.quick_counter(name, "C.", labels), usual.counter(name, "C.", labels)
    took, slow_took = (
        quick.quick_histogram("h", "H.", labels, (0.5, 1)),
        usual.histogram("h", "H.", labels, (0.5, 1)),
    )
    quick.quick_counter("unused", "U.", labels)
    for zone in ("x", 'y"\n'):
        for seconds in (0.1, 0.5, 0.7, 1.0, 9.0):
            count.labels(zone, "b").value += 1
            slow_count.labels(zone, "b").inc()
            took.labels(zone, "b").observe(seconds)
            slow_took.labels(zone, "b").observe(seconds)
    count.labels("gone", "b").value += 1
    count.remove("gone", "b")
    count.remove("never", "b")
    assert lines(registries[0]) == lines(registries[1])
    for metric in registries[1].collect():
        for sample in metric.samples:
            if not sample.name.endswith("_created"):
                assert registries[0].get_sample_value(sample.name, sample.labels) == sample.value
