"""What pages of metrics have beside their room's figures: feature gates, the version, since when the process
runs, and the stats pages as handlers.

A scraper that sees the header of the start change knows that counters began anew, before it reads the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector

from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.common.metrics import BETA, MetricMaker
from trio_kubelet.config.gates import (
    COLLECTIVE,
    FeatureGates,
    known_gates,
    uses_list_streams,
    uses_runtime_events,
)
from trio_kubelet.config.version import build_info
from trio_kubelet.server.http.exposition import CONTENT_TYPE, WrittenCollector, head
from trio_kubelet.server.http.messages import Handler, Hijack, Request, Response, json_body, text
from trio_kubelet.stats.pages import StatsPages

GATES_METRIC = "kubernetes_feature_enabled"


class GateMetrics(WrittenCollector):
    """`kubernetes_feature_enabled`: every gate, its stage and whether it is on; `wanted` are the settings
    they came from, the collective ones included.
    """

    def __init__(self, gates: FeatureGates, wanted: Mapping[str, bool]) -> None:
        used = {"EventedPLEG": uses_runtime_events(wanted), "CRIListStreaming": uses_list_streams(wanted)}
        self._settings = {**gates.settings, **used}
        self._collective = {name: (stage, wanted.get(name, False)) for name, stage in COLLECTIVE.items()}

    def lines(self) -> Iterator[str]:
        """All gates by name, in one piece; a finished one has no stage."""
        gates = {
            name: ("" if gate.stage == "GA" else gate.stage, gate.default)
            for name, gate in known_gates().items()
        } | self._collective
        settings = self._settings
        yield head(GATES_METRIC, "gauge", "[BETA] Stage of a feature, and whether it is on.") + "".join(
            [
                f'{GATES_METRIC}{{name="{name}",stage="{stage}"}} {settings.get(name, on):d}\n'
                for name, (stage, on) in sorted(gates.items())
            ]
        )


START_HEADER = "Process-Start-Time-Unix"
START_METRIC = "process_start_time_seconds"


def process_start_ns(now_ns: int) -> int:
    """The moment this process began, as `ProcessCollector` tells it; `now_ns` if it cannot."""
    for family in ProcessCollector(registry=None).collect():
        if family.name == START_METRIC:
            return round(family.samples[0].value * NANOSECONDS)
    return now_ns


def add_start_time(registry: CollectorRegistry, began_ns: int) -> None:
    """The start among the metrics of a registry that tells nothing else of the process."""
    gauge = MetricMaker(registry).gauge(
        START_METRIC, "Start time of the process since unix epoch in seconds."
    )
    gauge.set(began_ns / NANOSECONDS)


def add_build_info(registry: CollectorRegistry) -> None:
    """The version, which alerts compare with those of a cluster's other parts."""
    info = build_info()
    meaning = "Which Kubernetes this is, and what it runs on."
    gauge = MetricMaker(registry, BETA).gauge("kubernetes_build_info", meaning, list(info))
    gauge.labels(**info).set(1)


def with_start_time(page: Handler, began_ns: int) -> Handler:
    """The page with the header."""
    header = (START_HEADER, str(began_ns // NANOSECONDS))

    async def told(request: Request) -> Response | Hijack:
        answer = await page(request)
        if isinstance(answer, Response):
            return msgspec.structs.replace(answer, headers=(*answer.headers, header))
        return answer

    return told


class StatsHandlers(NamedTuple):
    """The three endpoints."""

    summary: Handler
    resource: Handler
    cadvisor: Handler


def stats_handlers(pages: StatsPages) -> StatsHandlers:
    """Handlers over `pages`."""

    async def summary(request: Request) -> Response | Hijack:
        from trio_kubelet.server.http.forms import BadForm, read_form  # seldom asked for at the start

        try:
            only = read_form(request).get("only_cpu_and_memory") == ["true"]
        except BadForm as exc:
            return text(500, f"Internal Error: parse form failed: {exc}")
        return json_body(pages.summary_page(only))

    async def resource(request: Request) -> Response | Hijack:
        return Response(headers=(("Content-Type", CONTENT_TYPE),), body=pages.resource_metrics_page())

    async def cadvisor(request: Request) -> Response | Hijack:
        return Response(headers=(("Content-Type", CONTENT_TYPE),), body=pages.cadvisor_page())

    return StatsHandlers(summary, resource, cadvisor)
