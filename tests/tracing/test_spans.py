"""Spans of syncs and calls: their names, parents, errors, sampling, and their way to a receiver."""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import trio
from opentelemetry.trace import StatusCode

from tests.tracing.taken import Taken, receiving
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, SystemClock
from trio_kubelet.config.types import Tracing
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.doors import BeginSpan
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.grpc.errors import Code
from trio_kubelet.observed.types import PodStatus, RunningPod
from trio_kubelet.pods.work import Attempt, SyncReport
from trio_kubelet.pods.worker_state import Stage, SyncType, Worker
from trio_kubelet.tracing import Traces, open_traces
from trio_kubelet.tracing.export import target

POD = v1.Pod(metadata=v1.ObjectMeta(name="web", namespace="d", uid="u"))
WORKER = Worker(
    uid="u", full_name="web_d", stage=Stage.SYNCING, since_ns=0, pod=POD, sync_type=SyncType.UPDATE
)
STATUS = PodStatus(uid="u", name="web", namespace="d")
RECEIVER_SECONDS = 20.0
SOCKET = "/run/containerd/containerd.sock"
_TAKEN = 1  # of the flags of a trace (W3C Trace Context)


class Work:
    """A syncer that makes two calls of the runtime side by side and reports what it is told to."""

    def __init__(self, report: SyncReport, runtime_call: BeginSpan | None = None) -> None:
        self.report = report
        self._runtime_call = runtime_call

    async def sync_pod(self, worker: Worker, status: PodStatus, attempt: Attempt) -> SyncReport:
        async with trio.open_nursery() as nursery:
            if self._runtime_call is not None:
                nursery.start_soon(self._call, self._runtime_call, "RunPodSandbox", 2.0, Code.OK)
                nursery.start_soon(self._call, self._runtime_call, "CreateContainer", 1.0, Code.UNAVAILABLE)
            await trio.sleep(2.0)
        return self.report

    def tell(self, worker: Worker, status: PodStatus) -> bool:
        raise AssertionError("no sync takes that long")

    async def sync_terminating_pod(
        self, worker: Worker, status: PodStatus, look: Callable[[], Awaitable[PodStatus]]
    ) -> SyncReport:
        return self.report

    async def sync_terminating_runtime_pod(self, running: RunningPod, grace: int | None) -> SyncReport:
        return self.report

    async def sync_terminated_pod(self, worker: Worker, status: PodStatus) -> SyncReport:
        return self.report

    async def _call(self, begin: BeginSpan, method: str, seconds: float, code: Code) -> None:
        span = begin(method, SOCKET)
        await trio.sleep(seconds)
        span.end(code, "no such image" if code is not Code.OK else "")


async def nothing_new() -> PodStatus:
    return STATUS


async def test_calls_are_seen_below_the_sync_that_made_them(autojump_clock: trio.testing.MockClock) -> None:
    taken = Taken(1_000_000)
    work = Work(SyncReport(acted=True), taken.traces.runtime_call)
    assert await taken.traces.syncer(work).sync_pod(WORKER, STATUS, Attempt()) == SyncReport(acted=True)
    spans = taken.spans()
    sync = spans["syncPod"]
    sandbox = spans["runtime.v1.RuntimeService/RunPodSandbox"]
    container = spans["runtime.v1.RuntimeService/CreateContainer"]
    assert sync.attributes == {
        "k8s.pod.uid": "u",
        "k8s.pod": "d/web",
        "k8s.pod.name": "web",
        "k8s.namespace.name": "d",
        "k8s.pod.update_type": "update",
    }
    assert sync.status.status_code is StatusCode.UNSET
    for call in (sandbox, container):
        assert call.parent is not None
        assert call.parent.span_id == sync.context.span_id
    assert (sandbox.end_time or 0) - (sandbox.start_time or 0) == 2 * NANOSECONDS
    assert container.status.status_code is StatusCode.ERROR
    assert container.status.description == "no such image"
    assert container.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "runtime.v1.RuntimeService/CreateContainer",
        "server.address": SOCKET,
        "rpc.response.status_code": "Unavailable",
    }


async def test_what_went_wrong_is_said(autojump_clock: trio.testing.MockClock) -> None:
    taken = Taken(1_000_000)
    syncer = taken.traces.syncer(Work(SyncReport(error="no such image")))
    await syncer.sync_terminating_pod(WORKER, STATUS, nothing_new)
    await syncer.sync_terminated_pod(WORKER, STATUS)
    await syncer.sync_terminating_runtime_pod(RunningPod(uid="u", name="web", namespace="d"), 1)
    spans = taken.spans()
    assert set(spans) == {"syncTerminatingPod", "syncTerminatedPod"}
    assert spans["syncTerminatingPod"].status.description == "no such image"


async def test_a_cancelled_sync_is_over_and_no_fault(autojump_clock: trio.testing.MockClock) -> None:
    taken, work = Taken(1_000_000), Work(SyncReport())
    with trio.move_on_after(0.5) as scope:
        await taken.traces.syncer(work).sync_pod(WORKER, STATUS, Attempt())
    assert scope.cancelled_caught
    assert taken.spans()["syncPod"].status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(("rate", "least", "most"), [(None, 0, 0), (0, 0, 0), (500_000, 350, 650)])
async def test_so_many_of_a_million_are_taken(
    rate: int | None, least: int, most: int, autojump_clock: trio.testing.MockClock
) -> None:
    taken = Taken(rate)
    begin = taken.traces.runtime_call
    assert begin is not None
    for _ in range(1000):
        begin("Status", SOCKET).end(Code.OK)
    assert least <= len(taken.ended()) <= most


def test_without_traces_nothing_is_in_between() -> None:
    work = Work(SyncReport())
    traces = Traces(None, SystemClock())
    assert traces.syncer(work) is work
    assert traces.runtime_call is None


class Runtime:
    """A runtime made with another library, and what came along with its calls."""

    def __init__(self, path: Path) -> None:
        self.got: list[dict[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        version = cri.VersionResponse(
            version="1", runtime_name="r", runtime_version="1", runtime_api_version="v1"
        )
        kinds = {"Version": version, "ListContainers": cri.ListContainersResponse()}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(self._answer, answer.SerializeToString()),
                request_deserializer=bytes,
                response_serializer=bytes,
            )
            for name, answer in kinds.items()
        }
        service = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{path}")

    def _answer(self, answer: bytes, request: bytes, context: Any) -> bytes:
        self.got.append(dict(context.invocation_metadata()))
        return answer

    def __enter__(self) -> Runtime:
        self._server.start()
        return self

    def __exit__(self, *ending: object) -> None:
        self._server.stop(None).wait()


@pytest.mark.parametrize("direct", [True, False])
async def test_the_runtime_is_told_which_trace_a_call_belongs_to(direct: bool, tmp_path: Path) -> None:
    taken, path = Taken(1_000_000), tmp_path / "cri.sock"
    with Runtime(path) as runtime, trio.fail_after(RECEIVER_SECONDS):
        async with open_cri(
            str(path), use_streaming=False, direct=direct, begin_span=taken.traces.runtime_call
        ) as services:
            await services.runtime.version()
            await services.runtime.list_containers_raw()
    spans = taken.spans()
    for name, got in zip(("Version", "ListContainers"), runtime.got, strict=True):
        context = spans[f"runtime.v1.RuntimeService/{name}"].context
        trace, _, flags = got["traceparent"].rpartition("-")
        assert trace == f"00-{context.trace_id:032x}-{context.span_id:016x}"
        assert int(flags, 16) & _TAKEN


async def test_of_a_trace_that_is_not_taken_the_runtime_hears_so() -> None:
    begin = Taken(None).traces.runtime_call
    assert begin is not None
    _, _, flags = begin("Version", SOCKET).metadata["traceparent"].rpartition("-")
    assert not int(flags, 16) & _TAKEN


@pytest.mark.parametrize("direct", [True, False])
async def test_without_traces_the_runtime_hears_of_none(direct: bool, tmp_path: Path) -> None:
    path = tmp_path / "cri.sock"
    with Runtime(path) as runtime, trio.fail_after(RECEIVER_SECONDS):
        async with open_cri(str(path), direct=direct) as services:
            await services.runtime.version()
    assert "traceparent" not in runtime.got[0]


@pytest.mark.parametrize("form", ["127.0.0.1:{}", ":{}", "dns://8.8.8.8/127.0.0.1:{}"])
async def test_spans_reach_a_receiver_at_the_end(form: str) -> None:
    with receiving() as (servicer, endpoint):
        config = Tracing(
            endpoint=form.format(endpoint.rpartition(":")[2]), sampling_rate_per_million=1_000_000
        )
        async with open_traces(config, "node-a", SystemClock()) as traces:
            assert traces.runtime_call is not None
            traces.runtime_call("Status", SOCKET).end(Code.OK)
        assert await trio.to_thread.run_sync(servicer.came.wait, RECEIVER_SECONDS)
    [spans] = servicer.got[0].resource_spans
    resource = {each.key: each.value.string_value for each in spans.resource.attributes}
    assert (resource["service.name"], resource["host.name"]) == ("kubelet", "node-a")
    [scope] = spans.scope_spans
    assert [span.name for span in scope.spans] == ["runtime.v1.RuntimeService/Status"]


@pytest.mark.parametrize(
    ("endpoint", "where"),
    [
        (None, "localhost:4317"),
        ("", "localhost:4317"),
        (":4317", "localhost:4317"),
        ("::1", "::1"),
        ("[::1]:4317", "[::1]:4317"),
        ("node:4317", "node:4317"),
        ("dns:///node:4317", "dns:///node:4317"),
        ("dns://8.8.8.8/node:4317", "dns:///node:4317"),
        ("DNS://8.8.8.8:53/node", "dns:///node"),
        ("unix:///run/otel.sock", "unix:///run/otel.sock"),
    ],
)
def test_where_spans_are_sent(endpoint: str | None, where: str) -> None:
    """The library takes what stands between // and / for the host."""
    assert target(endpoint) == where


async def test_a_receiver_that_is_away_holds_nobody_up() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        config = Tracing(endpoint=f"127.0.0.1:{closed.getsockname()[1]}", sampling_rate_per_million=1_000_000)
        began = trio.current_time()
        async with open_traces(config, "node-a", SystemClock()) as traces:
            begin = traces.runtime_call
            assert begin is not None
            for _ in range(5000):  # more than the queue holds
                begin("Status", SOCKET).end(Code.OK)
        assert trio.current_time() - began < RECEIVER_SECONDS
        for thread in threading.enumerate():
            if "Otel" in thread.name:  # one that goes on trying would disturb whoever draws by chance
                await trio.to_thread.run_sync(thread.join, 2)
                assert not thread.is_alive()
