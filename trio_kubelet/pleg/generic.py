"""The generic PLEG: lists everything the runtime has, now and then, and finds out what changed.

The relist is the authority on what exists. It only lists and compares (in the C table); reading the
status of the pods that changed is the business of `looks`, so that neither many changed pods nor a
hung one delay the next relist, and health means that relists succeed, not that every pod answers.
Period, threshold and health texts are the kubelet's (`pkg/kubelet/pleg/generic.go`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

import msgspec
import trio

from trio_kubelet.common.backoff import Pauses
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.duration import format_duration
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError, Unavailable
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.native.doors import RelistTableLike
from trio_kubelet.native.types import MalformedList, PodView
from trio_kubelet.observed.types import PodLifecycleEvent
from trio_kubelet.pleg.cache import StatusCache
from trio_kubelet.pleg.doors import PodStatusReader
from trio_kubelet.pleg.lists import list_both
from trio_kubelet.pleg.looks import LookLimits, PodLooks
from trio_kubelet.pleg.metrics import PLEGMetrics
from trio_kubelet.pleg.outbox import Outbox

log = get_logger(__name__)

NAMES_IN_A_TURN = 100
MIN_GAP = 0.05  # seconds between the beginnings of two relists, however often one is asked for


class RelistDuration(msgspec.Struct, frozen=True, kw_only=True):
    """How often to relist and when to call the PLEG unhealthy; seconds."""

    period: float = 1.0
    threshold: float = 180.0


class GenericSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often to relist, how to look, and how many events may wait for the sync loop in the channel."""

    duration: RelistDuration = RelistDuration()
    limits: LookLimits = LookLimits()
    capacity: int = 1000


class GenericPLEG:
    """Relists, and the looks and event deliveries that follow from them."""

    def __init__(
        self,
        *,
        runtime: RuntimeService,
        reader: PodStatusReader,
        table: RelistTableLike,
        cache: StatusCache,
        clock: Clock,
        metrics: PLEGMetrics,
        settings: GenericSettings = GenericSettings(),  # noqa: B008 - frozen
    ) -> None:
        self._runtime = runtime
        self._table = table
        self._cache = cache
        self._clock = clock
        self._metrics = metrics
        self._duration = settings.duration
        self._normal_period = settings.duration.period
        send, self.events = trio.open_memory_channel[PodLifecycleEvent](settings.capacity)
        self._outbox = Outbox(send)
        self.stepped: Listeners[[str]] = Listeners()  # UIDs of pods of which a container started or ended
        self._looks = PodLooks(
            table=table,
            runtime=runtime,
            reader=reader,
            cache=cache,
            outbox=self._outbox,
            clock=clock,
            limits=settings.limits,
            on_listed=self._listed,
            on_stepped=self.stepped.tell,
            on_relisted=metrics.pod_relist_duration.observe,
            runtime_away=lambda: self._failures > 0,
        )
        self._succeeded_at = -math.inf  # Trio time at which the last good relist began
        self._active_at = -math.inf  # the same, or since when the threshold holds
        self._began_at = -math.inf
        self._failures = 0
        self._names = NamesOfPods(table)
        self._wanted = trio.Event()
        self._finished = trio.Event()
        metrics.waiting_events.set_function(lambda: len(self._outbox))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relists until cancelled; started once the first relist was tried."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._looks.run)
            nursery.start_soon(self._outbox.run)
            await self.relist()
            task_status.started()
            while True:
                with trio.move_on_after(self._pause()):
                    await self._wanted.wait()
                await trio.sleep_until(self._began_at + MIN_GAP)
                await self.relist()

    def watch(self) -> trio.MemoryReceiveChannel[PodLifecycleEvent]:
        """The channel on which events arrive; it has one reader, the sync loop."""
        return self.events

    def request_relist(self) -> None:
        """Asks for a relist as soon as the one under way, if any, is done."""
        self._wanted.set()

    async def relist_now(self) -> None:
        """Asks for a relist and waits until one that began later has been tried."""
        asked = trio.current_time()
        while self._began_at < asked:
            finished = self._finished
            self.request_relist()
            await finished.wait()

    def update(self, duration: RelistDuration) -> None:
        """Another period and threshold, at once. Unless relists fail, the threshold counts from now on: the
        last one may be longer ago.
        """
        if duration != self._duration:
            self._duration = duration
            if self._failures == 0 and self._succeeded_at != -math.inf:
                self._active_at = trio.current_time()
            self.request_relist()

    def request_look(self, uid: str, *, inspect: bool = False) -> trio.Event:
        """Marks a pod dirty; the event is set once the look at it was tried."""
        return self._looks.request(uid, inspect=inspect)

    def expect_look(self, uid: str) -> None:
        """Marks a pod dirty, and looks at it if nobody else asks for that within two seconds, ten while its
        worker is at work.
        """
        self._looks.expect(uid)

    def at_work(self, uid: str) -> AbstractContextManager[None]:
        """What the pod's worker does in it, it looks at itself."""
        return self._looks.at_work(uid)

    def is_look_coming(self, uid: str, since: float) -> bool:
        """Whether a look at the pod that is yet to tell rests on lists that are newer than that moment."""
        return self._looks.is_coming(uid, since)

    async def update_one(self, uid: str, *, inspect: bool = False) -> None:
        """Looks at one pod now; returns when that was tried. The caller sets the deadline."""
        await self.request_look(uid, inspect=inspect).wait()

    def pod(self, uid: str) -> PodView | None:
        """The pod as last listed."""
        return self._table.pod(uid)

    def namesakes(self, name: str, namespace: str) -> Iterable[str]:
        """Uids of the pods of that name that were last listed."""
        return self._names.uids(name, namespace)

    def pods(self) -> Iterator[str]:
        """Uids of all pods that were last listed."""
        return self._table.pods()

    def healthy(self) -> str | None:
        """None, or why the PLEG is not healthy (the kubelet's words)."""
        if self._succeeded_at == -math.inf:
            return "pleg has yet to be successful"
        elapsed = trio.current_time() - self._active_at
        if elapsed > self._duration.threshold:
            ago, threshold = format_duration(elapsed), format_duration(self._duration.threshold)
            return f"pleg was last seen active {ago} ago; threshold is {threshold}"
        return None

    async def relist(self) -> bool:
        """One relist; False if it failed, which is logged once per state change and counted."""
        self._wanted = trio.Event()
        began = self._began_at = trio.current_time()
        if self._succeeded_at != -math.inf:
            self._metrics.relist_interval.observe(began - self._succeeded_at)
        try:
            sandboxes, containers = await list_both(self._runtime)
            listed = trio.current_time()
            changes = self._table.relist(sandboxes, containers)
        except (CRIError, MalformedList) as exc:
            self._failures += 1
            if self._failures == 1:
                # That the runtime is away is said by the sync loop.
                level = 2 if isinstance(exc, Unavailable) else 0
                log.v(level).error("Cannot list pods, keeping what is known", err=exc)
            return False
        finally:
            self._metrics.relist_duration.observe(trio.current_time() - began)
            finished, self._finished = self._finished, trio.Event()
            finished.set()
        if self._failures:
            log.info("Pods can be listed again", failures=self._failures)
            self._failures = 0
            self._looks.hurry()
        compared = trio.current_time()
        self._looks.take(changes, began)
        self._cache.update_time(began)
        self._succeeded_at = self._active_at = began
        self._count()
        self._metrics.last_seen.set(self._clock.now_ns() / NANOSECONDS)
        self._metrics.phase_duration.labels("list").observe(listed - began)
        self._metrics.phase_duration.labels("compare").observe(compared - listed)
        for number, change in enumerate(changes, start=1):
            self._names.note(change.uid)
            if number % NAMES_IN_A_TURN == 0:  # the first relist beside many pods has all of them
                await trio.lowlevel.checkpoint()
        return True

    def _pause(self) -> float:
        """Seconds until the next relist: after a failure soon again, even with a long period."""
        if self._failures == 0:
            return self._duration.period
        retry = Pauses(self._normal_period, 5.0).after(self._failures)
        return min(self._duration.period, retry)

    def _listed(self, uid: str) -> None:
        self._names.note(uid)
        self._count()

    def _count(self) -> None:
        counts = self._table.counts()
        self._metrics.running_pods.set(counts.running_pods)
        for state, number in counts.containers.items():
            self._metrics.running_containers.labels(state.value).set(number)


class NamesOfPods:
    """Which pods of the runtime have a name: UIDs by name and namespace, kept up with what lists show.

    Of each pod that is new in a list the table is asked once; whether it is
    still there, when somebody asks for its name.
    """

    def __init__(self, table: RelistTableLike) -> None:
        self._table = table
        self._names: dict[str, tuple[str, str]] = {}
        self._uids: dict[tuple[str, str], set[str]] = {}

    def note(self, uid: str) -> None:
        """A list shows something new of this pod; it may be that it is gone."""
        name = self._names.get(uid)
        if name is not None:
            if self._table.pod(uid) is None:
                self._forget(uid, name)
        elif (view := self._table.pod(uid)) is not None:
            self._names[uid] = view.name, view.namespace
            self._uids.setdefault((view.name, view.namespace), set()).add(uid)

    def uids(self, name: str, namespace: str) -> list[str]:
        """The pods of that name that are there, as last listed."""
        return sorted(self._uids.get((name, namespace), ()))

    def _forget(self, uid: str, name: tuple[str, str]) -> None:
        del self._names[uid]
        uids = self._uids[name]
        uids.discard(uid)
        if not uids:
            del self._uids[name]
