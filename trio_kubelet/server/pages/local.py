"""Small pages: health, a registry's metrics, and what the agent's own user may read of its decisions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api.v1 import Node
from trio_kubelet.podinfo.event_log import EventLog
from trio_kubelet.pods.story import StoryEntry
from trio_kubelet.pods.worker_table import WorkerReport
from trio_kubelet.server.http.exposition import CONTENT_TYPE, render
from trio_kubelet.server.http.messages import Hijack, Request, Response, json_body

Page = Callable[[Request], Awaitable[Response | Hijack]]


def metrics_page(
    registry: CollectorRegistry, more: Callable[[], AsyncGenerator[bytes, None]] | None = None
) -> Page:
    """A registry as text, written in slices so that nothing else waits for it; then what `more` gives."""

    async def body() -> AsyncIterator[bytes]:
        for piece in render(registry):
            yield piece
            await trio.lowlevel.checkpoint()
        if more is not None:
            async with aclosing(more()) as pieces:
                async for piece in pieces:
                    if piece:
                        yield piece

    async def page(request: Request) -> Response:
        return Response(headers=(("Content-Type", CONTENT_TYPE),), body=body())

    return page


def _json(value: Callable[[Request], object]) -> Page:
    async def page(request: Request) -> Response:
        return json_body(msgspec.json.encode(value(request)))

    return page


def story_page(entries: Callable[[str], Sequence[StoryEntry]]) -> Page:
    """`/debug/story/UID`: what the agent decided about a pod, oldest first."""
    return _json(lambda request: entries(request.path.removeprefix("/debug/story/")))


def events_page(events: EventLog) -> Page:
    """`/debug/events`: the node's last events, oldest first; with `?after=NUMBER` what came since."""

    def since(request: Request) -> object:
        after = request.first("after")
        known = after.isascii() and after.isdigit() and len(after) < 19
        return events.entries(int(after) if known else 0)

    return _json(since)


def node_object_page(node: Callable[[], Awaitable[Node]]) -> Page:
    """`/debug/node`: the Node object of this node."""

    async def page(request: Request) -> Response:
        return json_body(msgspec.json.encode(await node()))

    return page


def workers_page(report: Callable[[], Sequence[WorkerReport]]) -> Page:
    """`/debug/workers`: what each pod worker is at."""
    return _json(lambda request: report())
