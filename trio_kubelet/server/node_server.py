"""The node's own server, on port 10250: TLS, the guard, and the table of endpoints behind it.

The certificate and the client authorities are asked for anew for each connection. When they change,
connections of before serve no further request, so that a client whose authority was taken out does not stay
in on an old connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import msgspec
import trio

from trio_kubelet.common.clock import sleep_with_others
from trio_kubelet.common.log import get_logger
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.server.doors import ContextProvider
from trio_kubelet.server.http.connections import Crowd
from trio_kubelet.server.http.messages import Handler
from trio_kubelet.server.http.metrics import NODE_BUCKETS, READ_ONLY_BUCKETS, HTTPMetrics, measured
from trio_kubelet.server.http.router import Around, Guard, Router
from trio_kubelet.server.http.serve import Failed, ServerLimits, listen, nobody, serve
from trio_kubelet.server.pages.health import Check
from trio_kubelet.server.pages.node_pages import (
    NodeHandlers,
    ReadOnlyHandlers,
    add_disabled_pages,
    add_node_pages,
    add_read_only_pages,
)

log = get_logger(__name__)

# The API server opens a connection for each log that is followed and each exec, so one peer may have many.
NODE_LIMITS = ServerLimits(
    body_bytes=64 * 1024,  # requests have next to no bodies
    connections=2048,
    connections_per_peer=1536,
)
LOOK_PERIOD = 10.0
BACKLOG = 1024


class TLSListener(trio.abc.Listener[trio.SSLStream[trio.SocketStream]]):
    """A listener whose connections speak TLS; the handshake is left to who serves them."""

    def __init__(self, listener: trio.SocketListener, provider: ContextProvider) -> None:
        self._listener = listener
        self._provider = provider

    async def accept(self) -> trio.SSLStream[trio.SocketStream]:
        while True:
            stream = await self._listener.accept()
            try:
                context = self._provider.ssl_context()
            except OSError as exc:
                log.v(2).info("Cannot serve a connection", err=exc)
                await trio.aclose_forcefully(stream)
                continue
            return trio.SSLStream(stream, context, server_side=True, https_compatible=True)

    async def aclose(self) -> None:
        await self._listener.aclose()


class ServerPages(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to serve."""

    read_only: ReadOnlyHandlers
    node: NodeHandlers
    checks: Mapping[str, Check]


def read_only_handler(
    pages: ReadOnlyHandlers,
    checks: Mapping[str, Check],
    metrics: HTTPMetrics,
    around: Around | None = None,
) -> Handler:
    """The handler of the read-only port."""
    router = Router(None, around)
    add_read_only_pages(router, pages, checks, metrics.health)
    add_disabled_pages(router)
    return measured(router, metrics, "readonly", READ_ONLY_BUCKETS)


def node_handler(
    pages: ServerPages,
    guard: Guard,
    config: KubeletConfiguration,
    metrics: HTTPMetrics,
    around: Around | None = None,
) -> Handler:
    """The handler of the main port: everything, behind the guard."""
    router = Router(guard, around)
    add_read_only_pages(router, pages.read_only, pages.checks, metrics.health)
    add_node_pages(router, pages.node, config)
    return measured(router, metrics, "readwrite", NODE_BUCKETS)


class NodeServer:
    """Serves `handler` over TLS on a host and port; `ports` are known once `run` has started."""

    def __init__(
        self,
        *,
        handler: Handler,
        provider: ContextProvider,
        host: str,
        port: int,
        limits: ServerLimits = NODE_LIMITS,
        failed: Failed = nobody,
    ) -> None:
        self._handler = handler
        self._provider = provider
        self._host = host
        self._port = port
        self._limits = limits
        self._failed = failed
        self._crowd = Crowd(limits.connections, limits.connections_per_peer)
        self.ports: list[int] = []

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves. Raises OSError when the address cannot be used."""
        listeners = await listen(self._host, self._port, BACKLOG)
        self.ports = [listener.socket.getsockname()[1] for listener in listeners]
        log.info("Starting to listen", address=self._host, port=self.ports[0])
        doors = [TLSListener(listener, self._provider) for listener in listeners]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._retire_old)
            await nursery.start(serve, doors, self._handler, self._limits, self._crowd, self._failed)
            task_status.started()

    async def _retire_old(self) -> None:
        last = self._current()
        while True:
            await sleep_with_others(LOOK_PERIOD)
            current = self._current()
            if current is not last and last is not None:
                self._crowd.retire()
            last = current

    def _current(self) -> ssl.SSLContext | None:
        try:
            return self._provider.ssl_context()
        except OSError:
            return None
