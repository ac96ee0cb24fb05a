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
from importlib import import_module
from typing import TYPE_CHECKING

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.token_bucket import TokenBucket
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.credentials import Credentials
from trio_kubelet.kube.doors import APIAnswer, APIRequest, EventStream, RequestSpan
from trio_kubelet.kube.errors import APIError, APIUnavailable
from trio_kubelet.kube.kubeconfig import ClientConfig, Source
from trio_kubelet.kube.metrics import KubeMetrics

if TYPE_CHECKING:  # imported when the lanes are opened
    from trio_kubelet.kube.network import NetworkDoor

DEFAULT_QPS = 5.0
DEFAULT_BURST = 10
OPEN_TIMEOUT = 30.0
"""Seconds for which a watch waits until the lanes are open."""
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


class APILane:
    """A way to the API server with its own rate limit: an `APIDoor` whose requests wait until it is open.

    So whatever asks the server can be made before it is known how to reach it.
    """

    def __init__(self, limiter: TokenBucket | None, *, streams_lists: bool = True) -> None:
        """`streams_lists` False: whoever wants a list by a watch is refused, and reads it page by page."""
        self.limiter = limiter
        self._streams_lists = streams_lists
        self.door: NetworkDoor | None = None
        self._opened = trio.Event()

    def open(self, door: NetworkDoor) -> None:
        """From now on requests go through `door`."""
        self.door = door
        self._opened.set()

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        """See `APIDoor`."""
        return await (self.door or await self._once_open(timeout)).request(request, timeout)

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AsyncIterator[EventStream]:
        """See `APIDoor`."""
        if "sendInitialEvents" in params and not self._streams_lists:
            raise APIError(405, v1.Status(message="lists are not streamed (feature gate WatchListClient)"))
        door = self.door or await self._once_open(OPEN_TIMEOUT)
        async with door.watch(path, params, ping_period) as events:
            yield events

    async def _once_open(self, timeout: float) -> NetworkDoor:
        with trio.move_on_after(timeout):
            await self._opened.wait()
        if self.door is None:
            raise APIUnavailable("the connection to the API server is not set up yet")
        return self.door


class Connections:
    """The lanes; `api` is for everything that has none of its own. `open` makes them usable."""

    def __init__(
        self,
        clock: Clock,
        limits: RateLimits,
        metrics: KubeMetrics | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        span: RequestSpan | None = None,
        streams_lists: bool = True,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._environment = environment
        self._span = span
        self._credentials: Credentials | None = None
        self.api = APILane(bucket_for(limits.api_qps, limits.api_burst), streams_lists=streams_lists)
        self.heartbeat = APILane(None, streams_lists=streams_lists)
        self.events = APILane(bucket_for(limits.event_qps, limits.event_burst))
        self.statuses = APILane(bucket_for(limits.api_qps, limits.api_burst, times=STATUS_SHARE))
        self._lanes = self.api, self.heartbeat, self.events, self.statuses
        self.client = KubeClient(self.api)

    async def open(self, config: ClientConfig) -> None:
        """Lets the lanes reach the server of `config`. Raises OSError for an unusable exec plugin."""
        # In a thread: with its libraries it takes 30 ms, and pods may start meanwhile.
        network = await NODE_FILES.run(import_module, "trio_kubelet.kube.network")
        self._credentials = credentials = Credentials(config, self._clock, self._metrics)
        for lane in self._lanes:
            lane.open(
                network.NetworkDoor(
                    credentials, self._environment, lane.limiter, self._metrics, self._span or network.unseen
                )
            )

    async def use_certificate(self, files: PairFiles) -> None:
        """From now on this certificate is who we are; connections made with another are given up."""
        assert self._credentials is not None, "before `open`"
        self._credentials.use_certificate(Source(file=files.certificate), Source(file=files.key))
        for lane in self._lanes:
            if lane.door is not None:
                lane.door.renew()

    async def aclose(self) -> None:
        """Closes idle connections."""
        for lane in self._lanes:
            if lane.door is not None:
                await lane.door.aclose()


@asynccontextmanager
async def closing(connections: Connections) -> AsyncIterator[Connections]:
    """The lanes, closed at the end."""
    try:
        yield connections
    finally:
        with trio.CancelScope(shield=True):  # each closing has its own deadline
            await connections.aclose()
