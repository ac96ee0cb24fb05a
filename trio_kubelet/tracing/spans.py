"""What the agent's spans say: one for each sync of a pod, and below it one for each call of the runtime.

Names and attributes are the kubelet's (`syncPod`, `syncTerminatingPod`, `syncTerminatedPod`, and those of
otelgrpc 0.65: RPC semantic conventions 1.39), so that its users' queries find them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trio_kubelet.common.clock import Clock
from trio_kubelet.cri.caller import PATHS
from trio_kubelet.grpc.errors import Code
from trio_kubelet.observed.types import PodStatus, RunningPod
from trio_kubelet.pods.doors import SyncerDoor
from trio_kubelet.pods.work import Attempt, SyncReport
from trio_kubelet.pods.worker_state import Worker

_PROPAGATOR = TraceContextTextMapPropagator()


class RuntimeSpans:
    """A `BeginSpan`: spans below that of the pod whose sync makes the call."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock

    def __call__(self, method: str, socket: str) -> _RuntimeSpan:
        name = PATHS[method].removeprefix("/")
        span = self._tracer.start_span(
            name,
            kind=SpanKind.CLIENT,
            start_time=self._clock.now_ns(),
            attributes={"rpc.system.name": "grpc", "rpc.method": name, "server.address": socket},
        )
        return _RuntimeSpan(span, self._clock)


def joining(span: Span) -> dict[str, str]:
    """Headers by which who is asked goes on with the trace: W3C's `traceparent`, also of one that is not
    taken, so that the other does not take it either.
    """
    headers = dict[str, str]()
    _PROPAGATOR.inject(headers, set_span_in_context(span))
    return headers


class _RuntimeSpan:
    """A call under way."""

    def __init__(self, span: Span, clock: Clock) -> None:
        self._span = span
        self._clock = clock
        self.metadata = joining(span)

    def end(self, code: Code, message: str = "") -> None:
        self._span.set_attribute("rpc.response.status_code", code.go_name)
        if code is not Code.OK:
            self._span.set_status(StatusCode.ERROR, message)
        self._span.end(self._clock.now_ns())


class TracedSyncer:
    """A syncer whose work is seen as spans."""

    def __init__(self, tracer: Tracer, syncer: SyncerDoor) -> None:
        self._tracer = tracer
        self._syncer = syncer

    async def sync_pod(self, worker: Worker, status: PodStatus, attempt: Attempt) -> SyncReport:
        with self._span("syncPod", worker, {"k8s.pod.update_type": worker.sync_type.value}) as span:
            return _told(span, await self._syncer.sync_pod(worker, status, attempt))

    def tell(self, worker: Worker, status: PodStatus) -> bool:
        return self._syncer.tell(worker, status)

    async def sync_terminating_pod(
        self, worker: Worker, status: PodStatus, look: Callable[[], Awaitable[PodStatus]]
    ) -> SyncReport:
        with self._span("syncTerminatingPod", worker) as span:
            return _told(span, await self._syncer.sync_terminating_pod(worker, status, look))

    async def sync_terminating_runtime_pod(self, running: RunningPod, grace: int | None) -> SyncReport:
        return await self._syncer.sync_terminating_runtime_pod(running, grace)

    async def sync_terminated_pod(self, worker: Worker, status: PodStatus) -> SyncReport:
        with self._span("syncTerminatedPod", worker) as span:
            return _told(span, await self._syncer.sync_terminated_pod(worker, status))

    @contextmanager
    def _span(self, name: str, worker: Worker, more: dict[str, str] | None = None) -> Iterator[Span]:
        attributes = {"k8s.pod.uid": worker.uid, **(more or {})}
        if worker.pod is not None:
            meta = worker.pod.metadata
            attributes["k8s.pod"] = f"{meta.namespace}/{meta.name}"
            attributes["k8s.pod.name"] = meta.name
            attributes["k8s.namespace.name"] = meta.namespace
        # What ends a sync early is no fault of the pod's: a cancelled one is only over.
        with self._tracer.start_as_current_span(
            name, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            yield span


def _told(span: Span, report: SyncReport) -> SyncReport:
    if report.error:
        span.set_status(StatusCode.ERROR, report.error)
        span.add_event("exception", {"exception.message": report.error})
    return report
