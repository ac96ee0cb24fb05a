"""The port that says only that the agent is alive (`healthzPort`, 10248), and how plain ports are served.

It is there before all other ports, and needs next to nothing: whoever waits for the agent waits for it.
"""

from __future__ import annotations

from functools import partial

import trio

from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.server.http.messages import Handler
from trio_kubelet.server.http.metrics import HTTPMetrics
from trio_kubelet.server.http.router import Router
from trio_kubelet.server.http.serve import listen, serve
from trio_kubelet.server.pages.health import add_health


async def health_port(nursery: trio.Nursery, config: KubeletConfiguration, metrics: HTTPMetrics) -> None:
    """Starts it, if there is to be one: it answers when this returns. A port that is taken is tried again."""
    if config.healthz_port:
        address = config.healthz_bind_address
        router = Router()
        add_health(router, {"ping": lambda: None}, metrics.health)
        await nursery.start(serve_on, "healthz", address, config.healthz_port, router, metrics)


async def serve_on(
    name: str,
    host: str,
    port: int,
    handler: Handler,
    metrics: HTTPMetrics,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves for ever; started when it listens, or could not for the first time."""
    tried = False

    async def once() -> None:
        nonlocal tried
        try:
            listeners = await listen(host, port)
        finally:
            if not tried:
                tried = True
                task_status.started()
        await serve(listeners, handler, failed=partial(metrics.count_failed, name))

    await keep_running(f"{name} server", once)
