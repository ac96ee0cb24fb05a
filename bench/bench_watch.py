"""Decoding what the API server sends: a watch event, a list of 500 pods, and applying them.

The pods are as a server sends them: status and managedFields included, about 7.5 KB each, 43 % of it
managedFields. Budget: 20 µs for an event; a list of 500 pods may take as long as reading the same text into
dictionaries, which is measured in the same run.
"""

from __future__ import annotations

import copy
import json
import pathlib
import time
import timeit
from typing import Any

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from trio_kubelet.api import v1
from trio_kubelet.kube.reflector_core import ReflectorCore
from trio_kubelet.kube.watch_events import ObjectDecoder, Upsert

RECORDED = pathlib.Path(__file__).parents[1] / "tests" / "golden" / "cluster-node.json"


def a_pod(index: int = 0) -> dict[str, Any]:
    """A recorded pod under another name, with managedFields of a usual size."""
    pod: dict[str, Any] = copy.deepcopy(json.loads(RECORDED.read_text())["pods"]["cfg"])
    pod["metadata"] |= {"name": f"pod-{index}", "uid": f"uid-{index}", "resourceVersion": str(1000 + index)}
    paths = [*pod["spec"], *pod["status"]]
    fields: dict[str, Any] = {f"f:{path}": {'k:{"name":"c"}': {".": {}, "f:name": {}}} for path in paths}
    pod["metadata"]["managedFields"] = [
        {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
         "time": "2026-11-21T08:00:00Z", "fieldsV1": {"f:spec": fields}}
        for manager in ("kube-controller-manager", "kubelet")
    ]  # fmt: skip
    return pod


def best(benchmark: BenchmarkFixture) -> float:
    """The fastest round: what it costs when nobody else wants the processor."""
    assert benchmark.stats is not None
    return float(benchmark.stats.stats.min)


def encode(thing: object) -> bytes:
    return json.dumps(thing, separators=(",", ":")).encode()


def test_decode_a_watch_event(benchmark: BenchmarkFixture) -> None:
    data = encode({"type": "MODIFIED", "object": a_pod()})
    decoder = ObjectDecoder(v1.Pod)
    event = benchmark(decoder.event, data)
    benchmark.extra_info["bytes"] = len(data)
    assert isinstance(event, Upsert)
    assert event.object.spec.containers[0].name
    assert best(benchmark) <= 20e-6


def test_apply_a_watch_event(benchmark: BenchmarkFixture) -> None:
    core = ReflectorCore(v1.Pod, {})
    core.next_step(0.0, 0.0)
    end = {"metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}
    core.on_event(encode({"type": "BOOKMARK", "object": end}))
    reaction = benchmark(core.on_event, encode({"type": "MODIFIED", "object": a_pod()}))
    assert reaction.changed
    assert best(benchmark) <= 20e-6


@pytest.mark.benchmark(timer=time.process_time)
def test_decode_a_list_of_500_pods(benchmark: BenchmarkFixture) -> None:
    items = b",".join(encode(a_pod(i)) for i in range(500))
    data = b'{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[' + items + b"]}"
    page = benchmark(ObjectDecoder(v1.Pod).page, data)
    benchmark.extra_info["bytes"] = len(data)
    assert len(page.items) == 500
    plain = min(
        timeit.repeat(lambda: msgspec.json.decode(data), timer=time.process_time, number=1, repeat=20)
    )
    benchmark.extra_info["plain"] = plain
    assert best(benchmark) <= plain
