"""Rate limits and lanes: nobody exceeds what is configured, and heartbeats do not wait for anybody."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer, serving
from tests.kube.opened import open_connections
from tests.kube.store import Refused
from tests.kube.test_network import create_event
from tests.kube.test_reflector import a_pod, eventually
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.kube.client import KubeClient, PatientDoor
from trio_kubelet.kube.connections import STATUS_SHARE, Connections, RateLimits, bucket_for, closing
from trio_kubelet.kube.doors import APIRequest
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.kubeconfig import ClientConfig
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.reflector import Reflector


def test_zero_is_the_default_and_less_is_no_limit() -> None:
    assert bucket_for(-1, 100) is None
    default = bucket_for(0, 0)
    assert default is not None
    assert [default.reserve(0) > 0 for _ in range(11)] == [False] * 10 + [True]


async def test_heartbeats_pass_a_queue_of_500_statuses() -> None:
    server, registry = APIServer(), CollectorRegistry()
    limits = RateLimits(api_qps=1, api_burst=40)
    async with (
        serving(server) as url,
        open_connections(
            ClientConfig(server=url), SystemClock(), limits, KubeMetrics(registry)
        ) as connections,
        trio.open_nursery() as nursery,
    ):
        for _ in range(500):
            nursery.start_soon(create_event, connections.client)
        await eventually(lambda: len(server.requests) >= 40, 60)
        with trio.fail_after(60):  # behind the others it would be minutes: one of them goes a second
            for _ in range(5):
                await create_event(KubeClient(connections.heartbeat))
                await create_event(KubeClient(connections.events))
        assert len(server.requests) < 200
        nursery.cancel_scope.cancel()
    host = url.removeprefix("http://")
    labels = {"code": "201", "method": "POST", "host": host}
    assert (registry.get_sample_value("rest_client_requests_total", labels) or 0) >= 30
    verb = {"verb": "POST", "host": host}
    assert registry.get_sample_value("rest_client_request_duration_seconds_count", verb)
    assert (registry.get_sample_value("rest_client_rate_limiter_duration_seconds_count", verb) or 0) >= 40


async def test_requests_that_are_made_again_are_counted() -> None:
    server, registry = APIServer(), CollectorRegistry()
    busy = [Refused(429, "TooManyRequests", "later", retry_after=1)] * 2
    server.refuse = lambda request: busy.pop() if busy else None
    async with (
        serving(server) as url,
        open_connections(ClientConfig(server=url), SystemClock(), metrics=KubeMetrics(registry)) as to,
    ):
        with pytest.raises(APIError):
            await KubeClient(PatientDoor(to.api)).get("/api/v1/nodes/none", v1.Node)
    host = url.removeprefix("http://")
    for code, times in (("429", 1), ("404", 1)):
        labels = {"code": code, "verb": "GET", "host": host}
        assert registry.get_sample_value("rest_client_request_retries_total", labels) == times


async def test_failures_are_counted_by_code() -> None:
    server, registry = APIServer(), CollectorRegistry()
    metrics = KubeMetrics(registry)
    async with (
        serving(server) as url,
        open_connections(ClientConfig(server=url), SystemClock(), metrics=metrics) as to,
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


def test_500_statuses_need_less_than_five_seconds_of_their_lane() -> None:
    """With the default limits, and without a turn of anybody else's."""
    limits = RateLimits()
    lane = bucket_for(limits.api_qps, limits.api_burst, times=STATUS_SHARE)
    assert lane is not None
    assert 2.5 < max(lane.reserve(0.0) for _ in range(500)) < 3.5


async def test_requests_wait_until_it_is_known_how_to_reach_the_server() -> None:
    """What asks the server is made, and may ask, before the node has joined its cluster."""
    server = APIServer()
    async with serving(server) as url, closing(Connections(SystemClock(), RateLimits(), None, {})) as to:
        with pytest.raises(APIUnavailable, match="not set up yet"):
            await to.client.request(APIRequest("GET", "/api/v1/nodes"), timeout=0.01)
        events = []

        async def ask() -> None:
            await create_event(to.client)
            events.append("written")

        async def follow() -> None:
            async with to.api.watch("/api/v1/pods", {}, 15):
                events.append("followed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            assert not server.requests
            await to.open(ClientConfig(server=url))
        assert sorted(events) == ["followed", "written"]


@pytest.mark.parametrize("streams", [True, False])
async def test_lists_are_streamed_unless_that_is_switched_off(streams: bool) -> None:
    server = APIServer()
    server.store.create("pods", "d", a_pod("a"))
    async with (
        serving(server) as url,
        open_connections(ClientConfig(server=url), SystemClock(), streams_lists=streams) as to,
        trio.open_nursery() as nursery,
    ):
        reflector: Reflector[v1.Pod] = Reflector(to.api, "/api/v1/pods", v1.Pod)
        nursery.start_soon(reflector.run)
        with trio.fail_after(60):
            await reflector.synced.wait()
        assert list(reflector.objects) == ["d/a"]
        nursery.cancel_scope.cancel()
    streamed = [request for request in server.requests if "sendInitialEvents" in str(request)]
    assert bool(streamed) is streams
