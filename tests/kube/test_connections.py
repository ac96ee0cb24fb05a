"""Rate limits and lanes: nobody exceeds what is configured, and heartbeats do not wait for anybody."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.kube.apiserver import APIServer, serving
from tests.kube.test_network import create_event
from trio_kubelet.api import v1
from trio_kubelet.clock import SystemClock
from trio_kubelet.kube.client import APIError, APIUnavailable
from trio_kubelet.kube.connections import STATUS_SHARE, Limits, open_connections
from trio_kubelet.kube.doors import APIRequest
from trio_kubelet.kube.kubeconfig import ClientConfig
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.ratelimit import TokenBucket, bucket_for


@given(
    st.sampled_from([0.5, 5.0, 50.0]),
    st.integers(1, 20),
    st.lists(st.floats(0, 5, allow_subnormal=False), max_size=80),
)
def test_in_any_span_of_time_no_more_than_burst_and_rate_allow(
    qps: float, burst: int, gaps: list[float]
) -> None:
    bucket, now, granted = TokenBucket(qps, burst), 100.0, list[float]()
    for gap in gaps:
        now += gap
        granted.append(now + bucket.reserve(now))
    assert granted == sorted(granted)
    for i, begin in enumerate(granted):
        for j in range(i, len(granted)):
            assert j - i + 1 <= burst + (granted[j] - begin) * qps + 1e-6


@given(st.sampled_from([0.5, 5.0, 50.0]), st.integers(1, 20))
def test_a_burst_does_not_wait_and_the_next_one_does(qps: float, burst: int) -> None:
    bucket = TokenBucket(qps, burst)
    assert [bucket.reserve(7.0) for _ in range(burst)] == [0.0] * burst
    assert bucket.reserve(7.0) == pytest.approx(1 / qps)
    assert bucket.reserve(7.0) == pytest.approx(2 / qps)
    assert bucket.reserve(7.0 + (burst + 5) / qps) == 0.0


def test_zero_is_the_default_and_less_is_no_limit() -> None:
    assert bucket_for(-1, 100) is None
    default = bucket_for(0, 0)
    assert default is not None
    assert [default.reserve(0) > 0 for _ in range(11)] == [False] * 10 + [True]


async def test_heartbeats_pass_a_queue_of_500_statuses() -> None:
    server, registry = APIServer(), CollectorRegistry()
    limits = Limits(api_qps=1, api_burst=40)
    async with (
        serving(server) as url,
        open_connections(
            ClientConfig(server=url), SystemClock(), limits, KubeMetrics(registry), {}
        ) as connections,
        trio.open_nursery() as nursery,
    ):
        for _ in range(500):
            nursery.start_soon(create_event, connections.client)
        await trio.sleep(0.5)
        began = trio.current_time()
        for _ in range(5):
            await create_event(connections.heartbeat_client)
            await create_event(connections.event_client)
        assert trio.current_time() - began < 1.0
        assert len(server.requests) < 200  # the others still wait
        nursery.cancel_scope.cancel()
    host = url.removeprefix("http://")
    labels = {"code": "201", "method": "POST", "host": host}
    assert (registry.get_sample_value("rest_client_requests_total", labels) or 0) >= 30
    verb = {"verb": "POST", "host": host}
    assert registry.get_sample_value("rest_client_request_duration_seconds_count", verb)
    assert (registry.get_sample_value("rest_client_rate_limiter_duration_seconds_count", verb) or 0) >= 40


async def test_failures_are_counted_by_code() -> None:
    server, registry = APIServer(), CollectorRegistry()
    metrics = KubeMetrics(registry)
    async with (
        serving(server) as url,
        open_connections(ClientConfig(server=url), SystemClock(), metrics=metrics, environment={}) as to,
    ):
        with pytest.raises(APIError):
            await to.client.get("/api/v1/nodes/none", v1.Node)
        async with to.api.watch("/api/v1/pods", {}, 15):
            pass
        server.latency = 5
        with pytest.raises(APIUnavailable):
            await to.client.request(APIRequest("GET", "/api/v1/nodes/none"), timeout=0.1)
    host = url.removeprefix("http://")

    def count(code: str) -> float:
        labels = {"code": code, "method": "GET", "host": host}
        return registry.get_sample_value("rest_client_requests_total", labels) or 0

    assert (count("404"), count("101"), count("<error>")) == (1, 1, 1)


async def test_500_statuses_need_less_than_five_seconds_of_their_lane(autojump_clock: MockClock) -> None:
    """With the default limits, and without a turn of anybody else's."""
    limits = Limits()
    lane = bucket_for(limits.api_qps, limits.api_burst, times=STATUS_SHARE)
    assert lane is not None
    async with trio.open_nursery() as nursery:
        for _ in range(500):
            nursery.start_soon(lane.wait)
    assert trio.current_time() < 3.5
