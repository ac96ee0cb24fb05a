"""What it costs to tell the API server that 500 pods have become ready.

The server is a door that answers at once, so the figures are the CPU time of this agent's side without HTTP:
what to write, the patch, the answer decoded. Baseline: one pod after the other, each read before it is
written and written as a whole, which needs no knowledge of what the server shows. `seconds` (extra_info) is
how long both take when each answer needs 10 ms, on a virtual clock. Budget: 0.25 ms of CPU for a pod; 5 s
for all.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry
from pytest_benchmark.fixture import BenchmarkFixture

from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIAnswer, APIRequest, EventStream
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.status.patch import status_patch, status_to_write
from trio_kubelet.pods.status.writer import StatusWriter

PODS = 500
RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "tests/golden/cluster-node.json").read_text())
STEPS = [step["status"] for step in RECORDED["statusSequences"]["probed"]]
UNREADY, READY = STEPS[3], STEPS[4]

cpu = pytest.mark.benchmark(group="status", timer=time.process_time, min_rounds=5, max_time=1.0)


def a_pod(number: int) -> v1.Pod:
    """A recorded pod that is not ready yet, under another name, as the source gives it."""
    pod = {**RECORDED["pods"]["probed"], "status": UNREADY}
    name, uid = f"pod-{number}", f"uid-{number}"
    annotations = {"kubernetes.io/config.source": "api"}
    pod["metadata"] = {**pod["metadata"], "name": name, "uid": uid, "annotations": annotations}
    return msgspec.convert(pod, v1.Pod)


class CannedDoor:
    """Answers every request with the pod as it is after it, `latency` seconds later."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.patches = 0
        self._answer = APIAnswer(200, json.dumps({**RECORDED["pods"]["probed"], "status": READY}).encode())

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        self.patches += request.method == "PATCH"
        await trio.sleep(self.latency)
        return self._answer

    def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AbstractAsyncContextManager[EventStream]:
        raise NotImplementedError


Way = Callable[[KubeClient, PodManager, StatusManager], Awaitable[None]]


async def by_the_writer(client: KubeClient, pods: PodManager, statuses: StatusManager) -> None:
    writer = StatusWriter(
        client=client,
        statuses=statuses,
        pods=pods,
        may_run=lambda uid: True,
        clock=SystemClock(),
        registry=CollectorRegistry(auto_describe=False),
    )
    async with trio.open_nursery() as nursery:
        for pod in pods.pods():
            statuses.set(pod, msgspec.convert(READY, v1.PodStatus))
        nursery.start_soon(writer.run)
        while writer.unwritten:  # noqa: ASYNC110 - no event tells of it
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()


async def one_by_one(client: KubeClient, pods: PodManager, statuses: StatusManager) -> None:
    for pod in pods.pods():
        status = statuses.set(pod, msgspec.convert(READY, v1.PodStatus))
        path = f"/api/v1/namespaces/default/pods/{pod.metadata.name}"
        shown = await client.get(path, v1.Pod)
        body = {"metadata": {"uid": shown.metadata.uid}, "status": msgspec.to_builtins(status)}
        await client.patch(f"{path}/status", msgspec.json.encode(body), v1.Pod)


def tell(way: Way, latency: float = 0.0) -> float:
    """Tells the server of all pods; the seconds it took, on a virtual clock."""
    door = CannedDoor(latency)
    pods = PodManager()
    for number in range(PODS):
        pods.set(a_pod(number))
    took = 0.0

    async def run() -> None:
        nonlocal took
        began = trio.current_time()
        await way(KubeClient(door), pods, StatusManager(pods, SystemClock()))
        took = trio.current_time() - began

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert door.patches == PODS
    return took


@pytest.mark.parametrize("way", [by_the_writer, one_by_one])
@cpu
def test_500_pods_become_ready(benchmark: BenchmarkFixture, way: Way) -> None:
    benchmark(tell, way)
    seconds = tell(way, 0.010)
    benchmark.extra_info["seconds"] = seconds
    if way is by_the_writer:
        assert benchmark.stats is not None
        assert float(benchmark.stats.stats.min) <= 0.25e-3 * PODS
        assert seconds <= 5


@cpu
def test_a_patch(benchmark: BenchmarkFixture) -> None:
    pod = a_pod(0)
    shown, status = msgspec.convert(UNREADY, v1.PodStatus), msgspec.convert(READY, v1.PodStatus)

    def patch() -> bytes | None:
        wanted = status_to_write(pod, shown, status, may_run=True, now="2026-11-21T08:00:00Z")
        return status_patch("uid", [shown], wanted)

    assert benchmark(patch)
