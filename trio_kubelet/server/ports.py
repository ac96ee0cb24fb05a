"""Where the agent can be asked without saying who one is: healthz, the read-only port when it is set, and a
socket in the root directory that only the agent's own user can open.
"""

from __future__ import annotations

import contextlib
import os
import socket

import trio

from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.explain.client import SOCKET_NAME
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.server.http import Handler, serve
from trio_kubelet.server.local import (
    Page,
    health_page,
    metrics_page,
    pods_page,
    routes,
    story_page,
    workers_page,
)
from trio_kubelet.supervise import keep_running


def start_servers(
    nursery: trio.Nursery, agent: NodeAgent, flags: KubeletFlags, config: KubeletConfiguration
) -> None:
    """Starts them, each under its own supervision: a port that is taken is tried again."""
    path = os.path.join(flags.root_dir, SOCKET_NAME)
    nursery.start_soon(keep_running, "local socket", lambda: _serve_local(path, agent))
    if config.healthz_port:
        handler = routes(health_page({"ping": lambda: None}))
        nursery.start_soon(_serve_on, "healthz", config.healthz_bind_address, config.healthz_port, handler)
    if config.read_only_port:
        handler = routes(read_only_pages(agent))
        nursery.start_soon(_serve_on, "read-only", config.address, config.read_only_port, handler)


def read_only_pages(agent: NodeAgent) -> dict[str, Page]:
    """What anybody may read."""
    pods = pods_page(agent.room.pods_with_status)
    return {
        **health_page(agent.health_checks()),
        "/pods": pods,
        "/pods/": pods,
        "/metrics": metrics_page(agent.metrics.registry),
        "/metrics/probes": metrics_page(agent.probe_metrics.registry),
    }


def local_pages(agent: NodeAgent) -> dict[str, Page]:
    """What the agent's own user may read besides: why things are as they are."""
    return {
        **read_only_pages(agent),
        "/debug/story/": story_page(agent.room.story.entries),
        "/debug/workers": workers_page(agent.room.workers.report),
    }


async def _serve_local(path: str, agent: NodeAgent) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listening.fileno(), 0o600)  # a socket file takes its mode from here when it is bound
        listening.bind(path)
        listening.listen(16)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        await serve([listener], routes(local_pages(agent)))
    finally:
        listening.close()


async def _serve_on(name: str, host: str, port: int, handler: Handler) -> None:
    async def once() -> None:
        await serve(await trio.open_tcp_listeners(port, host=host), handler)

    await keep_running(f"{name} server", once)
