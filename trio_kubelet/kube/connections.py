"""The ways of one agent to its API server: four lanes with one identity.

Heartbeats (lease and node status) have connections of their own and no rate limit, so that no burst of pod
statuses can make the node look dead; events have a limit of their own, so that they do not use up the
others' turns.

Pod statuses have their own too, of twice what is configured: the kubelet reads each pod before it patches
its status and this agent does not, and with the default of 50 a second after 100 at once, 500 pods that
become ready together would be told of for eight seconds, during which nobody else had a turn.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.token_bucket import TokenBucket
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.credentials import Credentials
from trio_kubelet.kube.kubeconfig import ClientConfig, Source
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.network import NetworkDoor

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10
STATUS_SHARE = 2
"""How much of what is configured for all requests the pod statuses have for themselves."""


class RateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a second and at once; 0 is client-go's default (5 and 10), a negative rate no limit."""

    api_qps: float = 50
    api_burst: int = 100
    event_qps: float = 50
    event_burst: int = 100


def bucket_for(qps: float, burst: int, times: int = 1) -> TokenBucket | None:
    """What a client's configuration means; `times`: how often that much a lane may take."""
    if qps < 0:
        return None
    return TokenBucket((qps or DEFAULT_QPS) * times, (burst if burst > 0 else DEFAULT_BURST) * times)


class Connections:
    """The lanes; `api` is for everything that has none of its own."""

    def __init__(
        self,
        credentials: Credentials,
        limits: RateLimits,
        metrics: KubeMetrics | None,
        environment: Mapping[str, str],
    ) -> None:
        self._credentials = credentials

        def lane(bucket: TokenBucket | None) -> NetworkDoor:
            return NetworkDoor(credentials, environment, bucket, metrics)

        self.api = lane(bucket_for(limits.api_qps, limits.api_burst))
        self.heartbeat = lane(None)
        self.events = lane(bucket_for(limits.event_qps, limits.event_burst))
        self.statuses = lane(bucket_for(limits.api_qps, limits.api_burst, times=STATUS_SHARE))
        self.client = KubeClient(self.api)

    async def use_certificate(self, files: PairFiles) -> None:
        """From now on this certificate is who we are; connections made with another are given up."""
        self._credentials.use_certificate(Source(file=files.certificate), Source(file=files.key))
        for door in self._doors:
            door.renew()

    async def aclose(self) -> None:
        for door in self._doors:
            await door.aclose()

    @property
    def _doors(self) -> tuple[NetworkDoor, ...]:
        return self.api, self.heartbeat, self.events, self.statuses


@asynccontextmanager
async def open_connections(
    config: ClientConfig,
    clock: Clock,
    limits: RateLimits = RateLimits(),  # noqa: B008 - frozen
    metrics: KubeMetrics | None = None,
    environment: Mapping[str, str] = os.environ,
) -> AsyncIterator[Connections]:
    """The lanes to the server of `config`. Raises OSError for an unusable exec plugin."""
    connections = Connections(Credentials(config, clock), limits, metrics, environment)
    try:
        yield connections
    finally:
        with trio.CancelScope(shield=True):  # each closing has its own deadline
            await connections.aclose()
