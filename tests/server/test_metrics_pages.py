"""What every page of metrics tells besides its registry: the feature gates, and when counters began."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, ProcessCollector

from tests.server.node import Node
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.server.http.exposition import render
from trio_kubelet.server.http.messages import Hijack, Request, Response
from trio_kubelet.server.http.metrics import HealthCounts
from trio_kubelet.server.node_server import ServerPages
from trio_kubelet.server.pages.metrics_pages import (
    GateMetrics,
    add_build_info,
    add_start_time,
    process_start_ns,
    with_start_time,
)
from trio_kubelet.server.pages.small import HealthMetrics

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "feature-enabled.json").read_text())
REQUEST = Request(method="GET", path="/", target="/", query={}, headers=())
START = 1_767_323_045 * NANOSECONDS + 999_999_999


def registered(wanted: dict[str, bool]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GateMetrics(resolve_gates(wanted), wanted))
    return registry


def gates(wanted: dict[str, bool]) -> list[str]:
    return b"".join(render(registered(wanted))).decode().splitlines()


def line(name: str, stage: str, value: str) -> str:
    return f'kubernetes_feature_enabled{{name="{name}",stage="{stage}"}} {value}'


def test_all_gates_are_told_as_a_kubelet_does() -> None:
    wanted = {
        name: line(name, *kind.split(" "))
        for kind, lines in RECORDED.items()
        for name in " ".join(lines).split()
    }
    for name in ("CRIListStreaming", "EventedPLEG"):  # used unless they are switched off
        wanted[name] = line(name, "ALPHA", "1")
    head, kind, *shown = gates({})
    assert head.startswith("# HELP kubernetes_feature_enabled [BETA] ")
    assert kind == "# TYPE kubernetes_feature_enabled gauge"
    assert shown == [wanted[name] for name in sorted(wanted)]


def test_the_version_is_told_as_by_all_parts_of_a_cluster() -> None:
    registry = CollectorRegistry(auto_describe=False)
    add_build_info(registry)
    head, kind, line = b"".join(render(registry)).decode().splitlines()
    assert head.startswith("# HELP kubernetes_build_info [BETA] ")
    assert kind == "# TYPE kubernetes_build_info gauge"
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    assert sorted(labels) == [
        *("build_date", "compiler", "git_commit", "git_tree_state", "git_version"),
        *("go_version", "major", "minor", "platform"),
    ]
    assert labels["git_version"] == KUBELET_VERSION
    assert f"v{labels['major']}.{labels['minor']}." in KUBELET_VERSION
    assert line.endswith("} 1")


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        ({"CustomCPUCFSQuotaPeriod": False}, [("CustomCPUCFSQuotaPeriod", "", "0")]),
        ({"EventedPLEG": True}, [("EventedPLEG", "ALPHA", "1"), ("AllAlpha", "ALPHA", "0")]),
        ({"EventedPLEG": False}, [("EventedPLEG", "ALPHA", "0")]),
        ({"CRIListStreaming": False}, [("CRIListStreaming", "ALPHA", "0")]),
        ({"AllBeta": False}, [("AllBeta", "BETA", "0"), ("ComponentFlagz", "BETA", "0")]),
    ],
)
def test_settings_are_told(wanted: dict[str, bool], lines: list[tuple[str, str, str]]) -> None:
    assert {line(*each) for each in lines} <= set(gates(wanted))


def test_a_collective_gate_is_on_when_it_was_set() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GateMetrics(resolve_gates({}), {"AllAlpha": True}))
    assert line("AllAlpha", "ALPHA", "1") in b"".join(render(registry)).decode()


class Measured(Node):
    """A node with gates among its metrics and a known start."""

    def pages(self) -> ServerPages:
        self.registry.register(GateMetrics(resolve_gates({}), {}))
        given = super().pages()
        told = with_start_time(given.read_only.metrics, START)
        return msgspec.structs.replace(
            given, read_only=msgspec.structs.replace(given.read_only, metrics=told)
        )


async def test_metrics_come_with_the_gates_and_the_start_of_the_process(tmp_path: Path) -> None:
    node = Measured(tmp_path)
    async with node.serving(), node.client("good") as client:
        for method in ("GET", "HEAD"):
            answer = await client.request(method, "/metrics")
            assert answer.headers["process-start-time-unix"] == str(START // NANOSECONDS)
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        shown = (await client.get("/metrics")).text
        assert line("ComponentFlagz", "BETA", "1") in shown
        assert 'kubelet_http_requests_total{long_running="false",method="GET",path="metrics"' in shown
        await client.get("/flagz")
        assert 'method="GET",path="flagz"' in (await client.get("/metrics")).text


async def test_a_connection_that_was_taken_over_has_no_start() -> None:
    async def take(stream: object, ahead: bytes) -> None:
        pass

    async def page(request: Request) -> Response | Hijack:
        return Hijack(take)

    assert await with_start_time(page, START)(REQUEST) == Hijack(take)


def test_the_start_is_that_of_the_process() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    told = registry.get_sample_value("process_start_time_seconds")
    assert told is not None
    assert process_start_ns(0) / NANOSECONDS == pytest.approx(told)


async def test_the_start_is_among_small_registries_too() -> None:
    registry = CollectorRegistry(auto_describe=False)
    add_start_time(registry, 1_795_284_303_040_000_000)
    answer = await HealthMetrics(registry, HealthCounts()).page(REQUEST)
    assert isinstance(answer, Response)
    assert answer.body == (  # as a kubelet has it when no check was asked yet
        b"# HELP process_start_time_seconds [ALPHA] Start time of the process since unix epoch in "
        b"seconds.\n"
        b"# TYPE process_start_time_seconds gauge\n"
        b"process_start_time_seconds 1.79528430304e+09\n"
    )
