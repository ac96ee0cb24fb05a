"""Events to the API server: taken at once from everywhere, written one after the other in the background.

Nobody waits here. What comes while the queue is full is dropped and counted; one event is tried twelve times
over about two minutes, as every Kubernetes component does, then the next ones have their turn. Where the
server fails with an event, as it does when a webhook for its namespace does not answer, only those of that
namespace wait for it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.common.backoff import generator
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.errors import APIError, APIFailure, APIUnavailable
from trio_kubelet.kube.event_correlation import TYPES, EventCorrelator, Write, new_event
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.podinfo.recorder import PodEvent

log = get_logger(__name__)

QUEUE_SIZE = 1000
MAX_TRIES = 12
RETRY_PAUSE = 10.0
MOST_ASIDE = 8
"""Namespaces whose events wait by themselves; each is tried again and again."""
BREATH = 0.02
"""Seconds the first event after none waits: what it tells of mostly goes on at once, and goes first."""


class APIEventRecorder:
    """Writes events about pods and the node. `record_pod` is an `EventRecorder`'s listener."""

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        clock: Clock,
        metrics: KubeMetrics,
        rng: random.Random | None = None,
        *,
        node_uid: Callable[[], str] = str,
    ) -> None:
        """`node_uid` tells the Node's UID, "" while it is not known: `kubectl describe node` looks for it."""
        self._client = client
        self._node_uid = node_uid
        self._node = v1.ObjectReference(kind="Node", api_version="v1", name=node_name)
        self._source = v1.EventSource(component="kubelet", host=node_name)
        self._clock = clock
        self._metrics = metrics
        self._random = generator(rng).random
        self._correlator = EventCorrelator()
        self._aside: dict[str, deque[v1.Event]] = {}  # by namespace, behind one that the server failed with
        self._send, self._receive = trio.open_memory_channel[v1.Event](QUEUE_SIZE)

    def record_pod(self, event: PodEvent) -> None:
        """Takes an event about a pod or, with a field path, one of its containers."""
        meta = event.pod.metadata
        about = v1.ObjectReference(
            kind="Pod",
            api_version="v1",
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
            field_path=event.field_path,
        )
        self._take(about, event.type, event.reason, event.message, event.at_ns, event.annotations)

    def record_node(self, type: str, reason: str, message: str) -> None:
        """Takes an event about the node."""
        about = msgspec.structs.replace(self._node, uid=self._node_uid())
        self._take(about, type, reason, message, self._clock.now_ns())

    def record_object(self, about: v1.ObjectReference, type: str, reason: str, message: str) -> None:
        """Takes an event about any object."""
        self._take(about, type, reason, message, self._clock.now_ns())

    async def run(self) -> None:
        """Writes events until cancelled; what still waits then is lost."""
        self._aside.clear()
        async with trio.open_nursery() as nursery:
            while True:
                event = await self._next()
                namespace = event.metadata.namespace
                if namespace in self._aside:
                    self._wait_aside(namespace, event)
                    continue
                with self._wall():
                    if (left := await self._begin(event)) is None:
                        continue
                    if _is_of_one(left[1]) and len(self._aside) < MOST_ASIDE:
                        self._aside[namespace] = deque()
                        nursery.start_soon(self._go_aside, namespace, *left)
                    else:
                        await self._insist(*left)

    def _wait_aside(self, namespace: str, event: v1.Event) -> None:
        if sum(map(len, self._aside.values())) < QUEUE_SIZE:
            self._aside[namespace].append(event)
        else:
            self._metrics.events_dropped.labels("queue").inc()

    async def _go_aside(self, namespace: str, write: Write, failure: APIFailure) -> None:
        """Writes an event that the server failed with, then those of its namespace that came meanwhile."""
        waiting = self._aside[namespace]
        try:
            with self._wall():
                await self._insist(write, failure)
            while waiting:
                with self._wall():
                    if left := await self._begin(waiting.popleft()):
                        await self._insist(*left)
        finally:
            del self._aside[namespace]

    @contextmanager
    def _wall(self) -> Iterator[None]:
        """An event may hold anything, the others are still to be written."""
        try:
            yield
        except Exception as exc:
            self._metrics.events_dropped.labels("refused").inc()
            log.error("Unexpected error in writing an event", err=exc)

    async def _next(self) -> v1.Event:
        try:
            return self._receive.receive_nowait()
        except trio.WouldBlock:
            event = await self._receive.receive()
            await trio.sleep(BREATH)
            return event

    def _take(
        self,
        about: v1.ObjectReference,
        type: str,
        reason: str,
        message: str,
        at_ns: int,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        if type not in TYPES:
            log.error("Unsupported event type", eventType=type, reason=reason)
            return
        try:
            self._send.send_nowait(new_event(self._source, about, type, reason, message, at_ns, annotations))
        except trio.WouldBlock:
            self._metrics.events_dropped.labels("queue").inc()
            log.v(2).info("Unable to record event: too many queued events", object=about.name, reason=reason)

    async def _begin(self, event: v1.Event) -> tuple[Write, APIFailure] | None:
        """The first try; what is to be tried again, and why, if that did not work."""
        write = self._correlator.correlate(event, self._clock.now_ns())
        if write is None:
            self._metrics.events_dropped.labels("spam").inc()
            return None
        failure = await self._try(write)
        return None if failure is None else (write, failure)

    async def _try(self, write: Write) -> APIFailure | None:
        """Writes it; why that did not work if it may the next time."""
        try:
            self._correlator.written(await self._once(write))
        except APIError as exc:
            if _may_pass(exc):
                return exc
            self._give_up("refused", write, exc)
        except APIUnavailable as exc:
            return exc
        return None

    async def _insist(self, write: Write, failure: APIFailure) -> None:
        """All tries after the first."""
        for tries in range(1, MAX_TRIES):
            log.v(2).info("Unable to write event (may retry after sleeping)", err=failure)
            asked = (failure.retry_after or 0.0) if isinstance(failure, APIError) else 0.0
            # All nodes notice together that the server is back.
            await trio.sleep(max(asked, RETRY_PAUSE * (self._random() if tries == 1 else 1)))
            again = await self._try(write)
            if again is None:
                return
            failure = again
        self._give_up("away", write, failure)

    async def _once(self, write: Write) -> v1.Event:
        meta = write.event.metadata
        path = f"/api/v1/namespaces/{meta.namespace}/events"
        if write.patch is not None:
            try:
                return await self._client.patch(f"{path}/{meta.name}", write.patch, v1.Event)
            except APIError as exc:
                if not exc.not_found:  # events have a short life
                    raise
        return await self._client.create(path, write.event, v1.Event)

    def _give_up(self, cause: str, write: Write, exc: APIFailure) -> None:
        self._metrics.events_dropped.labels(cause).inc()
        event = write.event
        about = f"{event.involved_object.namespace}/{event.involved_object.name}"
        if isinstance(exc, APIError) and _expected(exc):
            log.v(5).info("Server rejected event", object=about, reason=event.reason, err=exc)
        else:
            log.error("Unable to write event", object=about, reason=event.reason, cause=cause, err=exc)


def _may_pass(exc: APIError) -> bool:
    """Whether the same request may succeed later: the server is busy or about to know us again."""
    return exc.code in (401, 408, 429) or exc.code >= 500


def _is_of_one(failure: APIFailure) -> bool:
    """Whether the server answers, and may well take the events of other namespaces."""
    return isinstance(failure, APIError) and failure.code in (500, 504)


def _expected(exc: APIError) -> bool:
    """Written before without our knowing it, or into a namespace that is going away."""
    details = exc.status.details
    causes = details.causes if details is not None else None
    return exc.reason == "AlreadyExists" or any(
        cause.reason == "NamespaceTerminating" for cause in causes or ()
    )
