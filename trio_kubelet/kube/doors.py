"""What the rest of the agent needs of an API server, as Protocols.

`network.NetworkDoor` is the real one; a simulation puts its own API server behind the same two methods
and needs no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import NamedTuple, Protocol

import trio

from trio_kubelet.api import v1

JSON = "application/json"


class APIRequest(NamedTuple):
    """One request. `path` starts with a slash; `params` are not encoded yet. `again`: the server was asked
    before, and said to ask later.
    """

    method: str
    path: str
    params: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = JSON
    again: bool = False


class APIAnswer(NamedTuple):
    """One answer, whatever its status; `retry_after` in seconds."""

    status: int
    body: bytes
    retry_after: float | None = None


class WholeAnswer(NamedTuple):
    """An answer of a server, its body read and unpacked; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class SpanOfRequest(Protocol):
    """One request as it is seen in traces. `headers`: by which the server joins its own spans to it."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    def answered(self, status: int) -> None:
        """The answer has begun."""
        ...


RequestSpan = Callable[[str, str], AbstractContextManager[SpanOfRequest]]
"""Of method and URL; around each request, in the task that makes it. What leaves the block went wrong."""


class HTTPRequests(Protocol):
    """A way to one server that keeps its connections."""

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, longest: int
    ) -> WholeAnswer:
        """One request; an answer of at most `longest` bytes. `target` is path and query, escaped already.

        Raises what httpx raises, BodyError.
        """
        ...

    async def aclose(self) -> None:
        """Closes idle connections."""
        ...


class EventStream(Protocol):
    """The events of one watch."""

    async def next_event(self) -> bytes | None:
        """The next event as JSON; None when the server ended the watch in good order.

        Raises APIUnavailable when the connection broke.
        """
        ...


class APIDoor(Protocol):
    """An API server."""

    async def request(self, request: APIRequest, timeout: float) -> APIAnswer:
        """One request and its answer within `timeout` seconds. Raises APIUnavailable."""
        ...

    def watch(
        self, path: str, params: Mapping[str, str], ping_period: float
    ) -> AbstractAsyncContextManager[EventStream]:
        """Opens a watch (`watch=1` is added). Raises APIError when it is refused, APIUnavailable.

        `ping_period`: seconds between two questions whether the connection lives, where it can be asked.
        """
        ...


class APILanes(Protocol):
    """The ways to the API server: heartbeats, statuses and events have their own, so that none holds up
    another.
    """

    @property
    def api(self) -> APIDoor: ...

    @property
    def heartbeat(self) -> APIDoor: ...

    @property
    def events(self) -> APIDoor: ...

    @property
    def statuses(self) -> APIDoor: ...


class ObjectReader(Protocol):
    """How single objects are read (`configMapAndSecretChangeDetectionStrategy`)."""

    def register(self, pod: v1.Pod) -> None: ...

    def unregister(self, uid: str) -> None: ...

    async def config_map(self, namespace: str, name: str) -> v1.ConfigMap | None: ...

    async def secret(self, namespace: str, name: str) -> v1.Secret | None: ...

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...
