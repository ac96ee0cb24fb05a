"""Spans that are at hand: in memory, or sent to a receiver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.tracing import Traces
from trio_kubelet.tracing.export import sampler

CLOCK = TrioClock(1_763_700_000 * NANOSECONDS)


class Taken:
    """A provider whose spans are at hand."""

    def __init__(self, rate: int | None) -> None:
        self._memory = InMemorySpanExporter()
        self._provider = TracerProvider(sampler=sampler(rate), shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.traces = Traces(self._provider.get_tracer("tests"), CLOCK)

    def ended(self) -> tuple[ReadableSpan, ...]:
        """Those that are over, in the order of their ends."""
        return self._memory.get_finished_spans()

    def spans(self) -> dict[str, ReadableSpan]:
        """The last of each name."""
        return {span.name: span for span in self.ended()}


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP receiver."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.came = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802, the service's own name
        self.got.append(request)
        self.came.set()
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def receiving() -> Iterator[tuple[Receiver, str]]:
    """A receiver, and where it is."""
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
