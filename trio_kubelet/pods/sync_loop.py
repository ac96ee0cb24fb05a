"""The sync loop: the one place where news of all kinds meets the desired state (kubelet: `syncLoop`).

Small tasks bring news in and keep it where the loop finds it: config updates one by one (a source waits until
its update was taken), PLEG events and probe verdicts gathered by pod, so that a burst is one look at each
pod and a full channel never blocks the PLEG. The loop itself waits for nothing but news. What is done about
one pod is done without a break; after some pods the workers that were woken for them have their turn, for
hundreds of them in one turn of the event loop would hold up everything else. While the runtime is in error
nothing is handled, but events are still taken in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.observed.probes import ProbeUpdate
from trio_kubelet.observed.types import PodLifecycleEvent, PodLifecycleEventType
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate
from trio_kubelet.pods.doors import HealthDoor, PlegDoor, ProbeResults, SourcesDoor
from trio_kubelet.pods.handler import SyncHandler, oldest_first
from trio_kubelet.pods.housekeeping import GATHER_ERRORS, Housekeeper, NodeInventory
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.metrics import PodMetrics
from trio_kubelet.pods.status.generate import past_active_deadline
from trio_kubelet.pods.status.manager import StatusManager
from trio_kubelet.pods.workers import PodWorkers

log = get_logger(__name__)

T = TypeVar("T")


# Seconds; the kubelet's values.
TICK: Final = 1.0
HOUSEKEEPING: Final = 2.0
HOUSEKEEPING_IDLE: Final = 30.0
"""On a node where nothing happens."""
HOUSEKEEPING_SLOW: Final = 1.0
ERROR_FIRST: Final = 0.1
ERROR_MOST: Final = 5.0
PART: Final = 16
"""Pods that are handled before the others have their turn; each costs some tenths of a millisecond."""
HEALTHY: Final = 300.0
"""For as long a round of the loop may take before it is reported as unhealthy."""


class SyncLoop:
    """One loop over everything that can happen to pods."""

    def __init__(
        self,
        *,
        pods: PodManager,
        workers: PodWorkers,
        handler: SyncHandler,
        statuses: StatusManager,
        housekeeper: Housekeeper,
        pleg: PlegDoor,
        probes: ProbeResults,
        health: HealthDoor,
        sources: SourcesDoor,
        metrics: PodMetrics,
        clock: Clock,
    ) -> None:
        self._pods = pods
        self._workers = workers
        self._handler = handler
        self._statuses = statuses
        self._housekeeper = housekeeper
        self._pleg = pleg
        self._health = health
        self._sources = sources
        self._metrics = metrics
        self._clock = clock
        self._news = trio.Event()
        self._config: tuple[PodUpdate, trio.Event] | None = None
        self._config_closed = False
        self._events: dict[PodLifecycleEvent, None] = {}
        self._verdicts: dict[tuple[str, str], ProbeUpdate] = {}
        self._ended: dict[str, None] = {}
        self._made_room: dict[str, None] = {}
        self._allocated: dict[str, None] = {}
        self._reads_differ: dict[str, None] = {}
        self._seen: tuple[NodeInventory, trio.Event] | None = None
        self._entered_at: float | None = None
        self._housekeeping_wanted = trio.Event()
        self._eventful = trio.Event()  # set when something has happened since the last housekeeping
        self._eventful.set()
        workers.ended.listen(self._worker_ended)
        probes.verdicts.listen(self._verdict_changed)

    async def run(
        self,
        updates: trio.MemoryReceiveChannel[PodUpdate],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until `updates` is closed (or cancelled)."""
        log.info("Starting kubelet main sync loop")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_config, updates)
            nursery.start_soon(self._take_events)
            nursery.start_soon(self._keep_house)
            task_status.started()
            await self._loop()
            nursery.cancel_scope.cancel()

    def healthy(self) -> str | None:
        """None, or that the loop hangs (the kubelet's words)."""
        if self._entered_at is None:
            return None
        if trio.current_time() - self._entered_at > HEALTHY:
            return "sync Loop took longer than expected"
        return None

    def made_room(self, uid: str) -> None:
        """The pods that had to end for this critical one have ended."""
        self._made_room[uid] = None
        self._news.set()

    def allocated(self, uid: str) -> None:
        """This pod has been given its devices and the like, or cannot be."""
        self._allocated[uid] = None
        self._news.set()

    def objects_changed(self, uids: Iterable[str]) -> None:
        """What these pods read from the API server (config maps, secrets, tokens) is different now."""
        self._reads_differ.update(dict.fromkeys(uids))
        self._news.set()

    def keep_house_now(self) -> None:
        """Asks for housekeeping before its time."""
        self._eventful.set()
        self._housekeeping_wanted.set()

    # Bringing news in

    def _worker_ended(self, uid: str) -> None:
        self._ended[uid] = None
        self._news.set()

    def _verdict_changed(self, verdict: ProbeUpdate) -> None:
        self._verdicts[verdict.kind.value, verdict.container_id] = verdict
        self._news.set()

    async def _take_config(self, updates: trio.MemoryReceiveChannel[PodUpdate]) -> None:
        async for update in updates:
            taken = trio.Event()
            self._config = (update, taken)
            self._news.set()
            await taken.wait()
        self._config_closed = True
        self._news.set()

    async def _take_events(self) -> None:
        """What is there is taken at once: the events of one pod are to be one round of it."""
        events = self._pleg.watch()
        async for event in events:
            self._events[event] = None
            self._events.update(dict.fromkeys(_waiting(events)))
            self._news.set()

    async def _keep_house(self) -> None:
        """Looks at the node now and then and has the loop apply what was seen."""
        next_at, idle_until = trio.current_time() + HOUSEKEEPING, 0.0
        told = ""  # why the last look failed
        while True:
            with trio.move_on_at(idle_until):
                await self._eventful.wait()
            with trio.move_on_at(max(next_at, trio.current_time() + HOUSEKEEPING / 2)):
                await self._housekeeping_wanted.wait()
            self._housekeeping_wanted = trio.Event()
            if self._health.runtime_error() is not None:
                continue
            began = trio.current_time()
            self._eventful = trio.Event()
            next_at, idle_until = began + HOUSEKEEPING, began + HOUSEKEEPING_IDLE
            log.v(4).info("SyncLoop (housekeeping)")
            try:
                seen = await self._housekeeper.gather()
            except GATHER_ERRORS as exc:
                why = error_words(exc)
                log.v(4 if why == told else 0).error("Failed cleaning pods", err=exc)
                told = why
                self._eventful.set()
                continue
            told = ""
            applied = trio.Event()
            self._seen = (seen, applied)
            self._news.set()
            await applied.wait()
            took = trio.current_time() - began
            self._metrics.housekeeping_duration.observe(took)
            if took > HOUSEKEEPING_SLOW:
                log.error(
                    "Housekeeping took longer than expected",
                    err="housekeeping took too long",
                    expected=format_duration(HOUSEKEEPING_SLOW),
                    actual=format_duration(round(took, 3)),
                )
            log.v(4).info("SyncLoop (housekeeping) end", duration=format_duration(round(took, 3)))

    # The loop

    async def _loop(self) -> None:
        next_tick = self._tick_after(trio.current_time())
        while not self._config_closed or self._config is not None:
            await self._wait_for_runtime()
            self._entered_at = trio.current_time()
            wake_at = min(next_tick, self._workers.next_due())
            with trio.move_on_at(wake_at):
                await self._news.wait()
            await trio.lowlevel.checkpoint_if_cancelled()  # no news is handled half-way through the end
            self._news = trio.Event()
            await self._handle_news()
            now = trio.current_time()
            if now >= wake_at and (due := self._workers.take_due()):
                self._log_due(due)
                await self._in_parts(due, lambda uids: self._handler.syncs(uids, "timer"))
            if now >= next_tick:
                next_tick = self._tick_after(now)
                self._past_deadlines()
        log.error("Update channel is closed, exiting the sync loop")

    def _log_due(self, uids: Sequence[str]) -> None:
        if log.v(4).enabled:
            pods = [pod for uid in uids if (pod := self._pods.get(uid)) is not None]
            log.v(4).info("SyncLoop (SYNC) pods", total=len(pods), pods=_names(pods))

    def _tick_after(self, now: float) -> float:
        """Ticks are at full periods of the clock, where the rounds of idle pods are due as well."""
        return (now // TICK + 1) * TICK

    async def _wait_for_runtime(self) -> None:
        """Returns once the runtime can be worked with; says so once when it cannot, and when it can again."""
        pause, error = ERROR_FIRST, self._health.runtime_error()
        if error is None:
            return
        log.error("Skipping pod synchronization", err=error)
        while True:
            await trio.sleep(pause)
            pause = min(ERROR_MOST, 2 * pause)
            newer = self._health.runtime_error()
            if newer is None:
                log.info("Pod synchronization goes on")
                return
            if newer != error:
                log.v(2).error("Skipping pod synchronization", err=newer)
                error = newer

    async def _in_parts(self, items: Sequence[T], handle: Callable[[Sequence[T]], None]) -> None:
        for start in range(0, len(items), PART):
            if start:
                await trio.lowlevel.checkpoint()
            handle(items[start : start + PART])

    async def _handle_news(self) -> None:
        """Everything that has come in since the last round."""
        if self._config or self._events or self._made_room or self._allocated or self._ended:
            self._eventful.set()
        if self._config is not None:
            (update, taken), self._config = self._config, None
            await self._handle_update(update)
            taken.set()
        events, self._events = self._events, {}
        await self._handle_events(list(events))
        verdicts, self._verdicts = self._verdicts, {}
        await self._in_parts([*verdicts.values()], self._handle_verdicts)
        made_room, self._made_room = self._made_room, {}
        for uid in made_room:
            self._handler.made_room(uid)
        allocated, self._allocated = self._allocated, {}
        for uid in allocated:
            self._handler.allocated(uid)
        differ, self._reads_differ = self._reads_differ, {}
        known = [uid for uid in differ if self._pods.get(uid) is not None]
        await self._in_parts(known, lambda uids: self._handler.syncs(uids, "objects"))
        ended, self._ended = self._ended, {}
        for uid in ended:
            self._handler.ended(uid)
        if self._seen is not None:
            (seen, applied), self._seen = self._seen, None
            self._housekeeper.apply(seen)
            applied.set()

    async def _handle_update(self, update: PodUpdate) -> None:
        handlers: dict[PodOperation, Callable[[Sequence[Pod]], None]] = {
            PodOperation.ADD: self._handler.additions,
            PodOperation.UPDATE: self._handler.updates,
            PodOperation.DELETE: self._handler.updates,  # it ends with grace
            PodOperation.REMOVE: self._handler.removes,
            PodOperation.RECONCILE: self._handler.reconciles,
        }
        say = log.v(4 if update.op is PodOperation.RECONCILE else 2)
        say.info(f"SyncLoop {update.op.name}", source=update.source, pods=_names(update.pods))
        if (handle := handlers.get(update.op)) is not None:
            pods = oldest_first(update.pods) if update.op is PodOperation.ADD else update.pods
            await self._in_parts(pods, handle)
        else:
            log.error("Invalid operation type received", operation=update.op.name)
        self._sources.add_source(update.source)
        if self._sources.all_ready():
            self._workers.mark_synced()
            self._handler.ask_resizes()

    def _handle_verdicts(self, verdicts: Sequence[ProbeUpdate]) -> None:
        for verdict in verdicts:
            self._handler.probe_changed(verdict)

    async def _handle_events(self, events: list[PodLifecycleEvent]) -> None:
        """Looks after each pod something happened to; removals say nothing that matters to it."""
        touched: dict[str, str] = {}
        for event in events:
            what = f"{event.type.value} {event.data[:12]}"
            if event.type is PodLifecycleEventType.CONTAINER_DIED:
                touched[event.pod_uid] = what  # of several events, this is what explains the most
            elif event.type is not PodLifecycleEventType.CONTAINER_REMOVED:
                touched.setdefault(event.pod_uid, what)
        await self._in_parts([*touched.items()], self._look_after)
        died = [event for event in events if event.type is PodLifecycleEventType.CONTAINER_DIED]
        await self._in_parts(died, self._handle_deaths)

    def _look_after(self, touched: Sequence[tuple[str, str]]) -> None:
        for uid, what in touched:
            if self._pods.get(uid) is not None:
                log.v(2).info("SyncLoop (PLEG): event for pod", podUID=uid, event=what)
                self._handler.syncs([uid], f"pleg: {what}")
                continue
            log.v(4).info(
                "SyncLoop (PLEG): pod does not exist, ignore irrelevant event", podUID=uid, event=what
            )
            if self._workers.get(uid) is None:
                self.keep_house_now()  # a pod nobody knows has come to life

    def _handle_deaths(self, events: Sequence[PodLifecycleEvent]) -> None:
        for event in events:
            self._handler.container_died(event.pod_uid, event.data)

    def _past_deadlines(self) -> None:
        """Pods whose active deadline has passed are looked after, which ends them."""
        now_ns = self._clock.now_ns()
        for pod in self._pods.pods():
            if pod.spec.active_deadline_seconds is None:
                continue
            worker, status = self._workers.get(pod.metadata.uid), self._statuses.get(pod.metadata.uid)
            if worker is None or worker.ending or status is None:
                continue
            if past_active_deadline(pod, status, now_ns):
                self._handler.syncs([pod.metadata.uid], "deadline")


def _waiting(channel: trio.MemoryReceiveChannel[T]) -> Iterator[T]:
    """What is in a channel already."""
    with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
        while True:
            yield channel.receive_nowait()


def _names(pods: Iterable[Pod]) -> list[str]:
    return [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods]
