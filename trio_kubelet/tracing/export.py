"""Where spans go: an OTLP receiver, reached by the library's own exporter in its own thread.

Nothing waits for it. What does not fit into its queue is dropped, as in the kubelet (2,048 spans), and a
receiver that is away costs a line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Tracer

from trio_kubelet.common.lanes import TRACES, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.types import Tracing

log = get_logger(__name__)

DEFAULT_ENDPOINT: Final = "localhost:4317"
_SCOPE: Final = "k8s.io/kubernetes/pkg/kubelet"
_EXPORT_SECONDS: Final = 5


def sampler(rate_per_million: int | None) -> Sampler:
    """Which traces are taken: those whose parent is, and of those without one so many of a million."""
    root = TraceIdRatioBased(rate_per_million / 1_000_000) if rate_per_million else ALWAYS_OFF
    return ParentBased(root)


def target(endpoint: str | None) -> str:
    """Where the library is to send to, for what the kubelet's gRPC would take from the configuration: no host
    is this one, and a name server to be asked (`dns://8.8.8.8/host`) is none to send to. The library's gRPC
    knows no other name servers than the system's.
    """
    if not endpoint:
        return DEFAULT_ENDPOINT
    scheme, authority, path = endpoint.partition("//")
    host = authority and scheme.lower() == "dns:" and path.partition("/")[2]
    if host:
        return f"dns:///{host}"
    return f"localhost{endpoint}" if endpoint.startswith(":") and endpoint[1:].isdecimal() else endpoint


@asynccontextmanager
async def open_tracer(config: Tracing, node_name: str) -> AsyncIterator[Tracer]:
    """The tracer of an agent for the length of the block; at its end what waits is sent, if that is quick."""
    library = logging.getLogger("opentelemetry")
    library.addHandler(handler := _ToLog())
    library.propagate = False
    provider = TracerProvider(
        sampler=sampler(config.sampling_rate_per_million),
        resource=Resource.create({"service.name": "kubelet", "host.name": node_name}),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(target(config.endpoint), insecure=True, timeout=_EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider.get_tracer(_SCOPE)
    finally:
        with trio.CancelScope(shield=True):
            try:
                await TRACES.run(provider.shutdown)
            except WorkHangs:
                exporter.shutdown(timeout_millis=0)  # its thread gives up, who waits for it goes on
        library.removeHandler(handler)


class _ToLog(logging.Handler):
    """What the library says of itself goes to the agent's log."""

    def emit(self, record: logging.LogRecord) -> None:
        log.warning("Traces cannot be sent", err=record.getMessage())
