"""Spans of the agent's work as OpenTelemetry traces, sent by OTLP over gRPC.

On when the configuration says `tracing` and the library is there (`pip install trio-kubelet[tracing]`); off,
it is not even imported, and nothing of the agent asks whether it is on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.types import Tracing
from trio_kubelet.cri.doors import BeginSpan
from trio_kubelet.pods.doors import SyncerDoor

if TYPE_CHECKING:  # imported when traces are on, or later than this
    from opentelemetry.trace import Tracer

    from trio_kubelet.kube.doors import RequestSpan
    from trio_kubelet.server.http.router import Around

log = get_logger(__name__)


class Traces:
    """What an agent does with its tracer; without one everything stays as it is."""

    def __init__(self, tracer: Tracer | None, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock

    @property
    def runtime_call(self) -> BeginSpan | None:
        """What makes a span of each call of the runtime, which is told of it."""
        if self._tracer is None:
            return None
        from trio_kubelet.tracing.spans import RuntimeSpans

        return RuntimeSpans(self._tracer, self._clock)

    @property
    def api_request(self) -> RequestSpan | None:
        """What makes a span of each request to the API server, which is told of it."""
        if self._tracer is None:
            return None
        from trio_kubelet.tracing.requests import APISpans

        return APISpans(self._tracer, self._clock)

    @property
    def served_request(self) -> Around | None:
        """What makes a span of each request to the agent's ports."""
        if self._tracer is None:
            return None
        from trio_kubelet.tracing.requests import ServerSpans

        return ServerSpans(self._tracer, self._clock)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Around other work, whose calls of the runtime are below it."""
        if self._tracer is None:
            return nullcontext()
        return self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False)

    def syncer(self, syncer: SyncerDoor) -> SyncerDoor:
        """The syncer of the pod workers, with a span for each sync."""
        if self._tracer is None:
            return syncer
        from trio_kubelet.tracing.spans import TracedSyncer

        return TracedSyncer(self._tracer, syncer)


@asynccontextmanager
async def open_traces(config: Tracing | None, node_name: str, clock: Clock) -> AsyncIterator[Traces]:
    """The traces a configuration asks for. Without the library pods run all the same, and the log says why
    there are none.
    """
    if config is None:
        yield Traces(None, clock)
        return
    try:
        from trio_kubelet.tracing.export import open_tracer
    except ImportError as exc:
        log.error("Traces are configured but cannot be made: pip install 'trio-kubelet[tracing]'", err=exc)
        yield Traces(None, clock)
        return
    async with open_tracer(config, node_name) as tracer:
        yield Traces(tracer, clock)
