"""The lanes to an API server, opened, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trio_kubelet.common.clock import Clock
from trio_kubelet.kube.connections import Connections, RateLimits, closing
from trio_kubelet.kube.kubeconfig import ClientConfig
from trio_kubelet.kube.metrics import KubeMetrics


@asynccontextmanager
async def open_connections(
    config: ClientConfig,
    clock: Clock,
    limits: RateLimits = RateLimits(),  # noqa: B008 - frozen
    metrics: KubeMetrics | None = None,
    *,
    streams_lists: bool = True,
) -> AsyncIterator[Connections]:
    """The lanes to the server of `config`, whatever proxies the environment names."""
    lanes = Connections(clock, limits, metrics, {}, streams_lists=streams_lists)
    async with closing(lanes) as connections:
        await connections.open(config)
        yield connections
