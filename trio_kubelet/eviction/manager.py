"""Evicts pods when the node runs short, and pods that exceed their limits (kubelet: `eviction.Manager`).

One task looks at the signals, which costs next to nothing, every five seconds while there is plenty of
everything, else four times a second, and more often where something runs out fast or when the kernel says so.
What follows from an observation is done beside it, about each kind of shortage one thing at a time: a runtime
that takes minutes for its images holds up nobody who goes for memory. What pods use is measured only when a
threshold is crossed, or where pods have limits. Everything is decided by pure functions over one observation.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS, Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.trouble import Trouble
from trio_kubelet.eviction.decision import Reclaim, Victim, observed, over_their_limits, reclaims, victim
from trio_kubelet.eviction.doors import Alarm, EvictionPodsDoor, ReclaimDoor, StatsDoor
from trio_kubelet.eviction.limits import has_limits
from trio_kubelet.eviction.metrics import EvictionMetrics
from trio_kubelet.eviction.monitor import Observation, PressureMonitor
from trio_kubelet.eviction.pressure import is_relieved
from trio_kubelet.eviction.ranking import are_measured_since
from trio_kubelet.eviction.thresholds import (
    INODES,
    STORAGE,
    Signal,
    Threshold,
    pause_before_next,
    resource_of,
)
from trio_kubelet.podinfo.doors import NodeRecorderDoor
from trio_kubelet.stats.summary_types import PodStats

log = get_logger(__name__)

PERIOD: Final = 10.0
"""Seconds between two looks at limits, and between two attempts under one pressure (kubelet:
`evictionMonitoringPeriod`), but for memory and PIDs that an eviction has freed: those are there at once,
while the runtime may remove layers long after their pod."""

CLEANUP: Final = 30.0
"""Seconds to wait until nothing is left of an evicted pod (kubelet: `podCleanupTimeout`)."""

PATIENCE: Final = 15.0
"""Seconds after the crossing of a threshold until figures of disks from before it will do: layers that cannot
be found here are looked at by their runtime only every ten seconds or so."""

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at disks that do not show enough, or for pods right after the start."""

STARTING: Final = 30.0
"""Seconds after the start in which some pods may not have been looked at yet, and so not be evicted."""

CLEANUP_POLL: Final = 0.25


class EvictionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`max_grace`: seconds of grace at most after a soft threshold; `limits`: local storage has limits;
    `cpus`: of the machine, which say how fast something can run out.
    """

    max_grace: int = 0
    limits: bool = True
    cpus: int = 1


async def never() -> None:
    """The alarm of a kernel that gives none."""
    await trio.sleep_forever()


class _Line:
    """One kind of shortage: what is done about it, one thing at a time, and when again."""

    def __init__(self, due: float = -math.inf, *, on_disk: bool = False) -> None:
        self.busy = False
        self.due = due
        self.on_disk = on_disk
        self.reclaimed_for = ""  # the signal for which nothing more can be reclaimed, only pods be evicted
        self.trouble = Trouble()  # why nobody can be evicted for it

    def has(self, threshold: Threshold) -> bool:
        """Whether what is short by this threshold is of this kind."""
        return (resource_of(threshold.signal) in (STORAGE, INODES)) is self.on_disk

    def pods_next(self, signal: str, after: float = LOOK_AGAIN) -> None:
        """Nothing is reclaimed for this signal any more; so many seconds from now pods are looked at."""
        self.reclaimed_for, self.due = signal, trio.current_time() + after


class EvictionManager:
    """Acts on what the monitor observes."""

    def __init__(
        self,
        settings: EvictionSettings,
        *,
        monitor: PressureMonitor,
        pods: EvictionPodsDoor,
        stats: StatsDoor,
        reclaim: ReclaimDoor,
        events: NodeRecorderDoor,
        metrics: EvictionMetrics,
        clock: Clock,
        alarm: Alarm = never,
    ) -> None:
        self._settings = settings
        self._monitor = monitor
        self._pods = pods
        self._stats = stats
        self._reclaim = reclaim
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._alarm = alarm
        self._signals: Mapping[str, Signal] = {}
        self._looked_at = self._began = trio.current_time()
        self._limits = _Line(trio.current_time() + PERIOD)
        self._running_out = _Line()  # memory, PIDs
        self._disks = _Line(on_disk=True)
        self._pause = trio.CancelScope()  # before the next look

    async def run(self) -> None:
        """Observes and evicts until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._pause = trio.CancelScope()
                pause = await self.round(nursery)
                self._pause.deadline = trio.current_time() + pause
                with self._pause:
                    await self._alarm()

    async def round(self, nursery: trio.Nursery) -> float:
        """One observation; what follows from it is begun. Returns the seconds until the next."""
        now, before, looked_at = trio.current_time(), self._signals, self._looked_at
        seen = await self._monitor.look()
        self._signals, self._looked_at = seen.signals, now
        if self._settings.limits:
            self._begin(nursery, self._limits, self._over_limits, seen)
        for line in (self._running_out, self._disks):
            if met := tuple(filter(line.has, seen.met)):
                self._begin(nursery, line, self._starved, msgspec.structs.replace(seen, met=met))
            elif not line.busy and not any(map(line.has, self._monitor.pressure.met)):
                line.due, line.reclaimed_for = -math.inf, ""
        elapsed, cpus = now - looked_at, self._settings.cpus
        return pause_before_next(seen.thresholds, seen.signals, before, elapsed, cpus)

    def _begin(
        self,
        nursery: trio.Nursery,
        line: _Line,
        act: Callable[[_Line, Observation], Awaitable[bool]],
        seen: Observation,
    ) -> None:
        if not line.busy and trio.current_time() >= line.due:
            line.busy, line.due = True, trio.current_time() + PERIOD
            nursery.start_soon(self._do, line, act, seen)

    async def _do(
        self, line: _Line, act: Callable[[_Line, Observation], Awaitable[bool]], seen: Observation
    ) -> None:
        try:
            if await act(line, seen):
                self._pause.cancel()  # it is looked at once what came of it
        finally:
            line.busy = False

    async def _over_limits(self, line: _Line, seen: Observation) -> bool:
        """Ends pods that exceed their limits of local storage; whether there were any."""
        limited = [pod for pod in self._pods.candidates() if has_limits(pod)]
        if not limited:
            return False
        stats = await self._stats.measured({pod.metadata.uid for pod in limited})
        victims = over_their_limits(limited, stats or {}, seen.layout)
        await self._evict(victims)
        return bool(victims)

    async def _starved(self, line: _Line, seen: Observation) -> bool:
        """What the most urgent threshold asks for: something is reclaimed, or a pod is evicted. Whether it is
        to be looked again at once.
        """
        urgent = seen.met[0]
        resource = resource_of(urgent.signal)
        if urgent.signal != line.reclaimed_for:
            line.trouble.over()
            log.info("Eviction manager: attempting to reclaim", resourceName=resource)
            self._events.record_node("Warning", "EvictionThresholdMet", f"Attempting to reclaim {resource}")
            if first := reclaims(urgent.signal, seen.layout):
                if await self._is_enough(line, first, seen.thresholds):
                    log.info(
                        "Eviction manager: able to reduce resource pressure without evicting pods.",
                        resourceName=resource,
                    )
                    return False
                line.pods_next(urgent.signal, 0)  # by what is seen now: it may have taken minutes
                return True
        what = observed(urgent, seen.signals)
        log.info("Eviction manager: must evict pod(s) to reclaim", resourceName=resource, observed=what)
        line.reclaimed_for = ""
        chosen = await self._chosen(line, seen)
        if chosen is None:
            return False
        if line.on_disk and (self._running_out.busy or self._limits.busy):
            line.pods_next(urgent.signal)  # who goes for something else may be enough
            return False
        await self._evict([chosen])
        if not line.on_disk:
            line.due = -math.inf  # what goes on running out does not wait
        return True

    async def _chosen(self, line: _Line, seen: Observation) -> Victim | None:
        """The pod to evict, if there is one and enough is known of all."""
        urgent = seen.met[0]
        pods = self._pods.candidates()
        if not pods:
            self._tell_once(line, "eviction thresholds have been met, but no pods are active to evict")
            if trio.current_time() - self._began < STARTING:
                line.pods_next(urgent.signal)
            return None
        stats = await (self._stats.measured() if line.on_disk else self._stats.in_use())
        if stats is not None and not self._are_fresh(seen, pods, stats):
            await self._stats.look_at_disks()
            stats = await self._stats.measured()
            if stats is not None and not self._are_fresh(seen, pods, stats, looked=True):
                line.pods_next(urgent.signal)
                return None
        if stats is None:  # whoever went now would go by chance
            self._tell_once(line, "failed to get summary stats")
            line.pods_next(urgent.signal)
            return None
        self._note_ages(seen)
        chosen = victim(seen.met, seen.signals, seen.layout, pods, stats, self._settings.max_grace)
        if chosen is None:
            log.info("Eviction manager: unable to evict any pods from the node")
        return chosen

    def _tell_once(self, line: _Line, why: str) -> None:
        if line.trouble.is_new(why):
            log.error(f"Eviction manager: {why}")

    def _are_fresh(
        self,
        seen: Observation,
        pods: Sequence[v1.Pod],
        stats: Mapping[str, PodStats],
        *,
        looked: bool = False,
    ) -> bool:
        """Whether the figures are from after the crossing, or it is so long ago that older ones will do."""
        ago = trio.current_time() - self._monitor.pressure.since.get(seen.met[0], -math.inf)
        if ago >= PATIENCE:
            return True
        crossed = rfc3339(self._clock.now_ns() - int(ago * NANOSECONDS))
        signal = seen.met[0].signal
        return are_measured_since(crossed, signal, seen.layout, pods, stats, looked=looked)

    async def _is_enough(
        self, line: _Line, first: Sequence[Reclaim], thresholds: Sequence[Threshold]
    ) -> bool:
        """Frees what no pod needs; whether nothing of this kind is short any more."""
        for each in first:
            if each is Reclaim.CONTAINERS:
                await self._reclaim.dead_containers()
            else:
                await self._reclaim.unused_images()
        return is_relieved([*filter(line.has, thresholds)], await self._monitor.signals())

    def _note_ages(self, seen: Observation) -> None:
        for threshold in seen.met:
            age = (self._clock.now_ns() - seen.signals[threshold.signal].at_ns) / NANOSECONDS
            self._metrics.stats_age.labels(threshold.signal).observe(max(0.0, age))

    async def _evict(self, victims: Sequence[Victim]) -> None:
        """Ends them, all at once, and waits for a while until nothing is left of them."""
        waiting: set[str] = set()
        async with trio.open_nursery() as nursery:
            there = {pod.metadata.uid for pod in self._pods.candidates()}
            for each in victims:
                if each.pod.metadata.uid in there:  # it has not gone for something else meanwhile
                    waiting.add(each.pod.metadata.uid)
                    self._evict_one(nursery, each)
        for _ in range(round(CLEANUP / CLEANUP_POLL)):
            waiting = {uid for uid in waiting if not self._pods.is_finished(uid)}
            if not waiting:
                return
            await trio.sleep(CLEANUP_POLL)
        log.info("Eviction manager: timed out waiting for pods to be cleaned up", pods=len(waiting))

    def _evict_one(self, nursery: trio.Nursery, chosen: Victim) -> None:
        with _wall(chosen.pod):
            stopped = self._pods.evict(
                chosen.pod,
                grace=chosen.grace,
                message=chosen.message,
                disruption=chosen.disruption,
                annotations=chosen.annotations,
                why=chosen.why,
            )
            self._metrics.evictions.labels(chosen.signal).inc()
            nursery.start_soon(self._wait_stopped, chosen, stopped)

    async def _wait_stopped(self, chosen: Victim, stopped: trio.Event) -> None:
        with _wall(chosen.pod):
            if await self._pods.wait_stopped(chosen.pod, stopped, chosen.grace):
                log.info("Eviction manager: pod is evicted successfully", pod=chosen.pod)


@contextmanager
def _wall(victim: v1.Pod) -> Iterator[None]:
    """Whatever one victim raises, the others go."""
    try:
        yield
    except Exception as exc:
        log.error("Unexpected error in evicting a pod", pod=victim, err=exc)
