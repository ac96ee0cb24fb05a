"""`/metrics`, `/metrics/probes` and `/pods` with 500 pods; budget 100 ms of CPU each, slices of 10 ms.

Run: `python -m pytest bench/bench_server.py`. CPU time is the thread's own, so that a busy machine does not
count; the longest slice is what other tasks wait for.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.cri.caller import CallMetrics
from trio_kubelet.grpc.errors import Code
from trio_kubelet.pleg.metrics import PLEGMetrics
from trio_kubelet.probes.metrics import ProbeMetrics
from trio_kubelet.probes.types import ProbeKey
from trio_kubelet.server.http.exposition import render
from trio_kubelet.server.http.messages import Handler, Request, Response
from trio_kubelet.server.http.metrics import NODE_BUCKETS, HTTPMetrics, labels_of
from trio_kubelet.server.pages.small import pod_list

PODS = 500
CPU_BUDGET, SLICE_BUDGET = 0.1, 0.01
GOLDEN = pathlib.Path(__file__).parents[1] / "tests" / "golden" / "static-pods.json"
REQUEST = Request(method="GET", path="/", target="/", query={}, headers=())


def pods() -> list[v1.Pod]:
    vectors = json.loads(GOLDEN.read_text())["vectors"]
    pod = msgspec.json.decode(
        json.dumps(next(v["pod"] for v in vectors if "kubeadm" in v["file"] and v.get("pod"))), type=v1.Pod
    )
    return [
        msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, name=f"p{n}", uid=f"u{n}")
        )
        for n in range(PODS)
    ]


def probed(shown: list[v1.Pod]) -> ProbeMetrics:
    metrics = ProbeMetrics()
    for pod in shown:
        for kind in ("startup", "liveness", "readiness"):
            key = ProbeKey(pod_uid=pod.metadata.uid, container="c", kind=kind)  # type: ignore[arg-type]
            metrics.series(key, pod).count(False, 0.01)
    return metrics


def busy_agent() -> CollectorRegistry:
    registry = CollectorRegistry()
    PLEGMetrics(registry)
    calls = CallMetrics(registry)
    for operation in range(25):
        calls(f"op{operation}", 0.1, Code.OK)
    served = HTTPMetrics(registry)
    for bucket in NODE_BUCKETS:
        labels = labels_of("GET", f"/{bucket}", "readwrite", NODE_BUCKETS)
        served.requests.labels(*labels).inc()
        served.duration.labels(*labels).observe(0.1)
    return registry


def slices(pieces: Iterator[bytes]) -> tuple[float, float, int]:
    """CPU seconds in all, of the longest slice, and bytes."""
    longest, size = 0.0, 0
    began = last = time.thread_time()
    for piece in pieces:
        size += len(piece)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return time.thread_time() - began, longest, size


async def taken(handler: Handler) -> list[bytes]:
    answer = await handler(REQUEST)
    assert isinstance(answer, Response)
    assert isinstance(answer.body, AsyncIterator)
    return [piece async for piece in answer.body]


def judged(benchmark: Any, run: Callable[[], tuple[float, float, int]]) -> None:
    runs = [run() for _ in range(5)]
    cpu, longest = min(r[0] for r in runs), min(r[1] for r in runs)
    benchmark.extra_info.update(cpu_ms=cpu * 1000, longest_slice_ms=longest * 1000, size=runs[0][2])
    benchmark.pedantic(run, rounds=3)
    assert cpu <= CPU_BUDGET
    assert longest <= SLICE_BUDGET


def test_metrics(benchmark: Any) -> None:
    registry = busy_agent()
    judged(benchmark, lambda: slices(render(registry)))


def test_probe_metrics(benchmark: Any) -> None:
    registry = probed(pods()).registry
    judged(benchmark, lambda: slices(render(registry)))


def test_pod_list(benchmark: Any) -> None:
    shown = pods()

    def run() -> tuple[float, float, int]:
        began = time.thread_time()
        pieces = trio.run(taken, pod_list(lambda: shown))
        return time.thread_time() - began, 0.0, sum(map(len, pieces))

    judged(benchmark, run)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q"]))
