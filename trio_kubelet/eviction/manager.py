"""Evicts pods when the node runs short, and pods that exceed their limits (kubelet: `eviction.Manager`).

One task. It looks at the signals, which costs next to nothing, every five seconds while there is plenty of
everything, else four times a second, and more often where something runs out fast or when the kernel says so.
What pods use is measured only when a threshold is crossed, or where pods have limits. Everything is decided
by pure functions over one observation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from trio_kubelet.eviction.thresholds import INODES, STORAGE, Signal, pause_before_next, resource_of
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
        self._limits_due = trio.current_time() + PERIOD
        self._act_due = -math.inf
        self._reclaimed_for = ""  # the signal for which nothing more can be reclaimed, only pods be evicted
        self._trouble = Trouble()  # why nobody can be evicted for it

    async def run(self) -> None:
        """Observes and evicts until cancelled."""
        while True:
            pause = await self.round()
            with trio.move_on_after(pause):
                await self._alarm()

    async def round(self) -> float:
        """One observation and what follows from it; returns the seconds until the next."""
        now, before, looked_at = trio.current_time(), self._signals, self._looked_at
        seen = await self._monitor.look()
        self._signals, self._looked_at = seen.signals, now
        if victims := await self._over_limits(seen):
            await self._evict(victims)
            return 0.0
        if seen.met and now >= self._act_due:
            chosen = await self._starved(seen)
            if chosen is not None:
                await self._evict([chosen])
                if not _is_on_disk(chosen.signal):
                    self._act_due = -math.inf  # what goes on running out does not wait
                return 0.0
        elif not self._monitor.pressure.met:
            self._act_due, self._reclaimed_for = -math.inf, ""
        elapsed, cpus = now - looked_at, self._settings.cpus
        return pause_before_next(seen.thresholds, seen.signals, before, elapsed, cpus)

    async def _over_limits(self, seen: Observation) -> list[Victim]:
        """Pods that exceed their limits of local storage, looked at each period."""
        if not self._settings.limits or trio.current_time() < self._limits_due:
            return []
        self._limits_due = trio.current_time() + PERIOD
        limited = [pod for pod in self._pods.candidates() if has_limits(pod)]
        if not limited:
            return []
        stats = await self._stats.measured({pod.metadata.uid for pod in limited})
        return over_their_limits(limited, stats or {}, seen.layout)

    async def _starved(self, seen: Observation) -> Victim | None:
        """What the most urgent threshold asks for: something is reclaimed, or there is a pod to evict."""
        urgent = seen.met[0]
        resource = resource_of(urgent.signal)
        self._act_due = trio.current_time() + PERIOD
        if urgent.signal != self._reclaimed_for:
            self._trouble.over()
            log.info("Eviction manager: attempting to reclaim", resourceName=resource)
            self._events.record_node("Warning", "EvictionThresholdMet", f"Attempting to reclaim {resource}")
            if await self._reclaimed(seen):
                log.info(
                    "Eviction manager: able to reduce resource pressure without evicting pods.",
                    resourceName=resource,
                )
                return None
            what = observed(urgent, seen.signals)
            log.info("Eviction manager: must evict pod(s) to reclaim", resourceName=resource, observed=what)
        self._reclaimed_for = ""
        pods = self._pods.candidates()
        if not pods:
            self._tell_once("eviction thresholds have been met, but no pods are active to evict")
            if trio.current_time() - self._began < STARTING:
                self._reclaimed_for, self._act_due = urgent.signal, trio.current_time() + LOOK_AGAIN
            return None
        on_disk = _is_on_disk(urgent.signal)
        stats = await (self._stats.measured() if on_disk else self._stats.in_use())
        if stats is not None and not self._are_fresh(seen, pods, stats):
            await self._stats.look_at_disks()
            stats = await self._stats.measured()
            if stats is not None and not self._are_fresh(seen, pods, stats, looked=True):
                self._reclaimed_for, self._act_due = urgent.signal, trio.current_time() + LOOK_AGAIN
                return None
        if stats is None:  # whoever went now would go by chance
            self._tell_once("failed to get summary stats")
            self._reclaimed_for, self._act_due = urgent.signal, trio.current_time() + LOOK_AGAIN
            return None
        self._note_ages(seen)
        chosen = victim(seen.met, seen.signals, seen.layout, pods, stats, self._settings.max_grace)
        if chosen is None:
            log.info("Eviction manager: unable to evict any pods from the node")
        return chosen

    def _tell_once(self, why: str) -> None:
        if self._trouble.is_new(why):
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

    async def _reclaimed(self, seen: Observation) -> bool:
        """Frees what no pod needs; whether that is enough."""
        first = reclaims(seen.met[0].signal, seen.layout)
        for each in first:
            if each is Reclaim.CONTAINERS:
                await self._reclaim.dead_containers()
            else:
                await self._reclaim.unused_images()
        return bool(first) and is_relieved(seen.thresholds, await self._monitor.signals())

    def _note_ages(self, seen: Observation) -> None:
        for threshold in seen.met:
            age = (self._clock.now_ns() - seen.signals[threshold.signal].at_ns) / NANOSECONDS
            self._metrics.stats_age.labels(threshold.signal).observe(max(0.0, age))

    async def _evict(self, victims: Sequence[Victim]) -> None:
        """Ends them, all at once, and waits for a while until nothing is left of them."""
        async with trio.open_nursery() as nursery:
            for each in victims:
                nursery.start_soon(self._evict_one, each)
        waiting = {each.pod.metadata.uid for each in victims}
        for _ in range(round(CLEANUP / CLEANUP_POLL)):
            waiting = {uid for uid in waiting if not self._pods.is_finished(uid)}
            if not waiting:
                return
            await trio.sleep(CLEANUP_POLL)
        log.info("Eviction manager: timed out waiting for pods to be cleaned up", pods=len(waiting))

    async def _evict_one(self, chosen: Victim) -> None:
        try:
            stopped = self._pods.evict(
                chosen.pod,
                grace=chosen.grace,
                message=chosen.message,
                disruption=chosen.disruption,
                annotations=chosen.annotations,
                why=chosen.why,
            )
            self._metrics.evictions.labels(chosen.signal).inc()
            if await self._pods.wait_stopped(chosen.pod, stopped, chosen.grace):
                log.info("Eviction manager: pod is evicted successfully", pod=chosen.pod)
        except Exception as exc:  # whatever one victim raises, the others go
            log.error("Unexpected error in evicting a pod", pod=chosen.pod, err=exc)


def _is_on_disk(signal: str) -> bool:
    return resource_of(signal) in (STORAGE, INODES)
