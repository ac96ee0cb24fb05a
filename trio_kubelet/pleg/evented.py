"""The evented PLEG: the runtime's events as hints that a pod wants a look.

An event carries no truth here: it names a pod, and the pod is looked at. Lost, doubled, late or
reordered events therefore end in the same state as no events. Once an event has come on the stream the
relist becomes rare; the moment it ends, the generic PLEG relists at its normal period again, so that a
dead stream costs latency and never truth. (The kubelet's evented PLEG, KEP-3386, relies on a stream once
it is open, falls back once and stays there, and only after five failed attempts.)

An open stream says little. containerd 1.7 gives the next event to the stream of an agent that was killed,
where it is lost, and the one after to its successor. A runtime may also take a subscription into account
later than it acknowledges it. So the period becomes long only after the stream has been open for a while
and its first event has come, and a relist at that moment closes the gap. From then on whatever is seen to
start or end has to come as an event, too: a stream on which it does not is closed, and relied on again when
one has come on the next.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator

import msgspec
import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.clock import NANOSECONDS, Clock, sleep_with_others
from trio_kubelet.common.error_groups import leaves
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.doors import EVERYTHING_DIRTY, ContainerEvent
from trio_kubelet.cri.errors import CRIError, Unavailable, Unimplemented
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.observed.types import POD_UID
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.pleg.generic import GenericPLEG, RelistDuration
from trio_kubelet.pleg.metrics import PLEGMetrics

log = get_logger(__name__)

_OWN_DOING = (cri.CONTAINER_CREATED_EVENT, cri.CONTAINER_STARTED_EVENT)
"""What only a pod's worker does, and it looks itself once all is done: of the six events of a pod of two
containers that starts none needs a look of its own."""


class EventedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds (kubelet: 300 s period and 10 min threshold while events are used)."""

    polling: RelistDuration = RelistDuration()
    evented: RelistDuration = RelistDuration(period=300.0, threshold=600.0)
    settle: float = 5.0  # how long a new stream runs beside the normal relists at least
    cache_period: float = 5.0  # how often the cache's global time advances while the stream is open
    cache_lag: float = 1.0  # an event may be that long on its way, so the global time stays behind
    patience: float = 30.0  # the same before the stream counts as silent; or so long ago
    retries: Pauses = Pauses(0.5, 30.0, jitter=0.2)
    retry_unimplemented: float = 300.0  # a runtime without the call may be upgraded some day


class Hearing:
    """Compares what is seen to happen to pods with what the events of one stream say: each has to follow the
    other within `patience` seconds.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._counts_from = math.inf
        self._any_named = -math.inf
        self._named: dict[str, float] = {}
        self._seen: dict[str, float] = {}

    def begin(self, now: float) -> None:
        """What happens from now on counts. What has happened may be seen that much later, too."""
        self._counts_from = now + self._patience

    def named(self, uid: str, now: float) -> None:
        """An event tells of the pod."""
        self._named[uid] = now
        self._seen.pop(uid, None)

    def any_named(self, now: float) -> None:
        """An event tells of some pod, or several."""
        self._any_named = now
        self._seen.clear()

    def stepped(self, uid: str, now: float) -> None:
        """A container of the pod was seen to have started or ended."""
        named = max(self._named.get(uid, -math.inf), self._any_named)
        if now >= self._counts_from and now - named > self._patience:
            self._seen.setdefault(uid, now)

    def is_deaf(self, now: float) -> bool:
        """Whether no event has told of something that was seen."""
        self._named = {uid: at for uid, at in self._named.items() if now - at <= self._patience}
        return any(now - at > self._patience for at in self._seen.values())


class EventedPLEG:
    """Keeps one event stream open and turns its events into looks of the generic PLEG."""

    def __init__(
        self,
        *,
        generic: GenericPLEG,
        runtime: RuntimeService,
        cache: StatusCache,
        clock: Clock,
        metrics: PLEGMetrics,
        settings: EventedSettings = EventedSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._generic = generic
        self._runtime = runtime
        self._cache = cache
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._failures = 0
        self._hearing = Hearing(settings.patience)
        generic.stepped.listen(lambda uid: self._hearing.stepped(uid, trio.current_time()))

    async def run(self) -> None:
        """Reopens the stream for ever, with back-off."""
        while True:
            try:
                ended_by = await self._stream_once()
            finally:  # whatever ends it
                self._hearing = Hearing(self._settings.patience)
                self._generic.update(self._settings.polling)
                self._generic.request_relist()
            self._metrics.stream_ends.inc()
            self._failures += 1
            self._log_end(ended_by)
            await trio.sleep(self._pause(ended_by))

    async def _stream_once(self) -> CRIError | None:
        """One stream from opening to end; returns why it ended, None for a regular end."""
        ended_by: CRIError | None = None
        heard = trio.Event()
        try:
            async with self._runtime.container_events() as events, trio.open_nursery() as nursery:
                self._metrics.stream_openings.inc()
                self._generic.request_relist()
                nursery.start_soon(self._while_open, heard, nursery.cancel_scope)
                await self._read(events, heard)
                nursery.cancel_scope.cancel()
        except* CRIError as group:
            ended_by = next(leaves(group))
        return ended_by

    async def _read(self, events: AsyncIterator[ContainerEvent], heard: trio.Event) -> None:
        async for event in events:
            heard.set()
            if event is EVERYTHING_DIRTY:
                self._hint_at_any()
                continue
            uid = event_pod_uid(event)
            if uid is None:
                self._hint_at_any()
            else:
                self._hint(uid, event)
            if event.created_at:
                age = (self._clock.now_ns() - event.created_at) / NANOSECONDS
                self._metrics.event_latency.observe(max(0.0, age))

    def _hint_at_any(self) -> None:
        self._hearing.any_named(trio.current_time())
        self._generic.request_relist()

    def _hint(self, uid: str, event: cri.ContainerEventResponse) -> None:
        self._hearing.named(uid, trio.current_time())
        if event.container_event_type in _OWN_DOING:
            self._generic.expect_look(uid)
        else:
            self._generic.request_look(uid)

    async def _while_open(self, heard: trio.Event, stream: trio.CancelScope) -> None:
        """Lets the relist become rare once the stream has settled and brought an event, and keeps the
        cache's time moving from then on; ends the stream when it is silent.
        """
        await trio.sleep(self._settings.settle)
        if self._failures:
            log.info("Runtime events arrive again", failures=self._failures)
            self._failures = 0
        await heard.wait()
        await self._generic.relist_now()
        self._generic.update(self._settings.evented)
        self._hearing.begin(trio.current_time())
        while not self._hearing.is_deaf(trio.current_time()):
            # What happened up to then would have come as an event, so what is known was true then.
            self._cache.update_time(trio.current_time() - self._settings.cache_lag)
            self._metrics.last_seen.set(self._clock.now_ns() // NANOSECONDS)
            await sleep_with_others(self._settings.cache_period)
        log.warning("Runtime events do not tell of what happens, opening their stream anew")
        stream.cancel()

    def _log_end(self, ended_by: CRIError | None) -> None:
        if self._failures > 1:
            log.v(4).info("No runtime events", failures=self._failures, err=ended_by)
        elif isinstance(ended_by, Unimplemented):
            log.info("The runtime has no events, relisting", period=self._settings.polling.period)
        else:
            level = 2 if isinstance(ended_by, Unavailable) else 0
            log.v(level).warning(
                "The stream of runtime events ended, relisting until it is back", err=ended_by
            )

    def _pause(self, ended_by: CRIError | None) -> float:
        if isinstance(ended_by, Unimplemented):
            return self._settings.retry_unimplemented
        return self._settings.retries.after(self._failures, random.random())


def event_pod_uid(event: cri.ContainerEventResponse) -> str | None:
    """The pod an event is about; None when the event does not tell."""
    if event.HasField("pod_sandbox_status") and event.pod_sandbox_status.metadata.uid:
        return event.pod_sandbox_status.metadata.uid
    for container in event.containers_statuses:
        uid = container.labels.get(POD_UID)
        if uid:
            return uid
    return None
