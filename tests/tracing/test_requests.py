"""Spans of requests: to the API server, which is told of them, and to the agent's own ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from tests.kube.apiserver import APIServer, serving
from tests.kube.store import Refused
from tests.kube.test_network import server_that
from tests.kube.test_reflector import a_pod
from tests.kube.test_shared_watches import Server
from tests.tracing.taken import CLOCK, Taken
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.grpc.errors import Code
from trio_kubelet.kube.credentials import Credentials
from trio_kubelet.kube.doors import APIRequest
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.kubeconfig import ClientConfig, Source
from trio_kubelet.kube.network import NetworkDoor
from trio_kubelet.server.http.messages import Hijack, Request, Response, text
from trio_kubelet.server.http.router import Route, Router, WebService
from trio_kubelet.tracing import Traces

SECONDS = 20.0
PODS = "/api/v1/namespaces/d/pods"


def door_to(url: str, taken: Taken, **config: Any) -> NetworkDoor:
    seen = taken.traces.api_request
    assert seen is not None
    return NetworkDoor(Credentials(ClientConfig(server=url, **config), SystemClock()), {}, span=seen)


def traceparent(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


async def test_a_request_is_seen_below_the_sync_that_makes_it() -> None:
    taken, server = Taken(1_000_000), APIServer()
    server.store.create("pods", "d", a_pod("a"))
    async with serving(server) as url:
        door = door_to(url, taken)
        with taken.traces.span("syncPod"):
            await door.request(APIRequest("GET", f"{PODS}/a", {"x": "1 2"}), SECONDS)
        await door.request(APIRequest("GET", f"{PODS}/b"), SECONDS)
        await door.aclose()
    below, sync, alone = taken.ended()
    assert (below.name, below.kind) == ("HTTP GET", SpanKind.CLIENT)
    assert below.parent is not None
    assert below.parent.span_id == sync.context.span_id
    assert alone.parent is None
    assert below.attributes == {
        "http.request.method": "GET",
        "url.full": f"{url}{PODS}/a?x=1+2",
        "server.address": "127.0.0.1",
        "server.port": int(url.rpartition(":")[2]),
        "network.protocol.version": "1.1",
        "http.response.status_code": 200,
    }
    assert alone.attributes is not None
    assert (alone.attributes["error.type"], alone.status.status_code) == ("404", StatusCode.ERROR)
    assert [r.header("traceparent") for r in server.requests] == [traceparent(below), traceparent(alone)]


async def test_a_server_that_is_away_is_seen_as_the_error_it_is() -> None:
    taken = Taken(1_000_000)
    with pytest.raises(APIUnavailable) as caught:
        await door_to("http://user:secret@127.0.0.1:1", taken).request(APIRequest("GET", PODS), SECONDS)
    [span] = taken.ended()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, str(caught.value))
    assert span.attributes is not None
    assert span.attributes["url.full"] == f"http://127.0.0.1:1{PODS}"


async def test_a_request_that_is_given_up_is_over_and_no_fault(autojump_clock: trio.abc.Clock) -> None:
    seen = (taken := Taken(1_000_000)).traces.api_request
    assert seen is not None
    with trio.move_on_after(1), seen("GET", "https://server/x"):
        await trio.sleep_forever()
    [span] = taken.ended()
    assert span.status.status_code is StatusCode.UNSET
    assert "server.port" not in (span.attributes or {})


@pytest.mark.parametrize("upgrades", [True, False])
async def test_a_watch_is_seen_once_it_is_over(upgrades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, server = Taken(1_000_000), server_that(upgrades, monkeypatch)
    async with serving(server) as url:
        door = door_to(url, taken)
        with trio.fail_after(SECONDS):
            async with door.watch(PODS, {}, 15):
                assert [span.status.status_code for span in taken.ended()] == [StatusCode.ERROR] * (
                    not upgrades
                )
        await door.aclose()
    *_, watch = taken.ended()
    assert (watch.attributes or {})["http.response.status_code"] == (101 if upgrades else 200)
    assert watch.status.status_code is StatusCode.UNSET
    assert [r.header("traceparent") for r in server.requests] == [traceparent(s) for s in taken.ended()]


async def test_a_watch_on_a_shared_connection_is_seen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, server = Taken(1_000_000), Server(tmp_path)
    async with server.running() as url:
        door = door_to(url, taken, ca=Source(data=server.ca_pem))
        with trio.fail_after(SECONDS):
            async with door.watch(PODS, {}, 60):
                assert not taken.ended()
        await door.aclose()
    [watch] = taken.ended()
    assert (watch.attributes or {})["http.response.status_code"] == 200


async def test_a_refused_watch_is_seen_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, server = Taken(1_000_000), server_that(False, monkeypatch)
    server.refuse = lambda request: Refused(403, "Forbidden", "nobody may watch")
    async with serving(server) as url:
        with pytest.raises(APIError):
            async with door_to(url, taken).watch(PODS, {}, 15):
                pass
    *_, watch = taken.ended()
    assert (watch.attributes or {})["http.response.status_code"] == 403
    assert watch.status.status_code is StatusCode.ERROR


def served(taken: Taken, seen: list[str]) -> Router:
    """A server whose handlers do one thing each; `seen`: what they saw."""
    call = taken.traces.runtime_call
    assert call is not None

    async def whole(request: Request) -> Response | Hijack:
        call("ExecSync", "/run/runtime.sock").end(Code.OK)
        return text(503 if request.method == "PUT" else 200, "done")

    async def broken(request: Request) -> Response | Hijack:
        raise RuntimeError("out of order")

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"

    async def streamed(request: Request) -> Response | Hijack:
        return Response(body=parts())

    async def taken_over(request: Request) -> Response | Hijack:
        async def take(stream: trio.abc.Stream, already: bytes) -> None:
            seen.append(f"{len(taken.ended())} ended")

        return Hijack(take)

    async def guard(request: Request) -> Request | Response:
        return request if request.header("authorization") else text(401, "Unauthorized")

    router = Router(guard, taken.traces.served_request)
    router.handle("/metrics", whole)
    router.handle("/broken", broken)
    router.handle("/streamed", streamed)
    router.add(WebService("/exec", [Route("POST", "/{ns}/{pod}", taken_over)]))
    return router


def asked(path: str, method: str = "GET") -> Request:
    headers = (
        ("host", "node:10250"),
        ("authorization", "x"),
        ("user-agent", "curl"),
        ("traceparent", f"00-{1:032x}-{1:016x}-01"),
    )
    return Request(method=method, path=path, target=path, query={}, headers=headers, peer="::1:40000")


async def test_requests_to_the_ports_are_traces_of_their_own() -> None:
    taken = Taken(1_000_000)
    router = served(taken, [])
    await router(asked("/metrics"))
    call, request = taken.ended()
    assert (request.name, request.kind, request.parent) == ("/metrics", SpanKind.SERVER, None)
    assert request.context.trace_id != 1
    assert call.parent is not None
    assert call.parent.span_id == request.context.span_id
    assert request.attributes == {
        "http.route": "/metrics",
        "server.address": "kubelet",
        "server.port": 10250,
        "http.request.method": "GET",
        "url.path": "/metrics",
        "network.protocol.version": "1.1",
        "network.peer.address": "::1",
        "network.peer.port": 40000,
        "client.address": "::1",
        "user_agent.original": "curl",
        "http.response.status_code": 200,
    }
    assert request.status.status_code is StatusCode.UNSET


async def test_what_goes_wrong_on_the_ports_is_said() -> None:
    taken = Taken(1_000_000)
    router = served(taken, [])
    await router(asked("/metrics", "PUT"))
    with pytest.raises(RuntimeError):
        await router(asked("/broken"))
    spans = taken.spans()
    assert spans["/metrics"].status.status_code is StatusCode.ERROR
    assert spans["/broken"].status.description == "out of order"


async def test_who_is_not_let_through_makes_no_spans() -> None:
    taken = Taken(1_000_000)
    request = Request(method="GET", path="/metrics", target="/metrics", query={}, headers=())
    answer = await served(taken, [])(request)
    assert isinstance(answer, Response)
    assert (answer.status, taken.ended()) == (401, ())


async def test_an_answer_is_over_when_it_is_sent() -> None:
    taken = Taken(1_000_000)
    answer = await served(taken, [])(asked("/streamed"))
    assert isinstance(answer, Response)
    assert not isinstance(answer.body, bytes)
    assert [part async for part in answer.body] == [b"one"]
    assert not taken.ended()
    await answer.body.aclose()  # type: ignore[attr-defined]  # as the server does
    assert set(taken.spans()) == {"/streamed"}


async def test_a_stream_is_over_when_its_connection_is_handed_back() -> None:
    taken, seen = Taken(1_000_000), list[str]()
    answer = await served(taken, seen)(asked("/exec/d/web", "POST"))
    assert isinstance(answer, Hijack)
    ours, _ = trio.testing.memory_stream_pair()
    await answer.take(ours, b"")
    assert seen == ["0 ended"]
    span = taken.spans()["/exec/{ns}/{pod}"]
    assert (span.attributes or {})["http.response.status_code"] == 101


def test_without_traces_requests_are_as_they_are() -> None:
    traces = Traces(None, CLOCK)
    assert (traces.api_request, traces.served_request) == (None, None)
    with traces.span("work") as nothing:
        assert nothing is None
