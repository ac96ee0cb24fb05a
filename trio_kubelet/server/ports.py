"""The ports of a node that ask nobody who they are: healthz, and the read-only port when it is set."""

from __future__ import annotations

import trio

from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.server.http import Handler, serve
from trio_kubelet.server.local import health_page, metrics_page, pods_page, routes
from trio_kubelet.supervise import keep_running


def start_servers(nursery: trio.Nursery, agent: NodeAgent, config: KubeletConfiguration) -> None:
    """Starts them, each under its own supervision: a port that is taken is tried again."""
    if config.healthz_port:
        handler = routes(health_page({"ping": lambda: None}))
        nursery.start_soon(_serve_on, "healthz", config.healthz_bind_address, config.healthz_port, handler)
    if config.read_only_port:
        handler = read_only_pages(agent)
        nursery.start_soon(_serve_on, "read-only", config.address, config.read_only_port, handler)


def read_only_pages(agent: NodeAgent) -> Handler:
    """What anybody may read."""
    pods = pods_page(agent.room.pods_with_status)
    return routes(
        {
            **health_page(agent.health_checks()),
            "/pods": pods,
            "/pods/": pods,
            "/metrics": metrics_page(agent.metrics.registry),
            "/metrics/probes": metrics_page(agent.probe_metrics.registry),
        }
    )


async def _serve_on(name: str, host: str, port: int, handler: Handler) -> None:
    async def once() -> None:
        await serve(await trio.open_tcp_listeners(port, host=host), handler)

    await keep_running(f"{name} server", once)
