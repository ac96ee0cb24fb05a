"""What pods use, for those who decide by it: as `/stats/summary` shows it, and fresh."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trio_kubelet.common.clock import Clock
from trio_kubelet.stats.collector import StatsCollector
from trio_kubelet.stats.summary import pod_stats
from trio_kubelet.stats.summary_types import PodStats
from trio_kubelet.stats.volumes import VolumeMeter

FRESH: Final = 0.5
"""Seconds that figures may be old by which a pod is ended; what is on disks is measured less often."""


class PodFigures:
    """Pods' stats by UID."""

    def __init__(self, collector: StatsCollector, meter: VolumeMeter, clock: Clock) -> None:
        self._collector = collector
        self._meter = meter
        self._clock = clock

    def hurry(self) -> None:
        """Volumes are measured anew, soon."""
        self._meter.hurry()

    async def measured(self, uids: Collection[str] | None = None) -> dict[str, PodStats]:
        """What these pods (all, if None) use now; those of which nothing is known are left out."""
        snapshot = await self._collector.everything(FRESH)
        now_ns = self._clock.now_ns()
        every = (
            pod_stats(pod, snapshot.node, now_ns, True)
            for pod in snapshot.pods
            if uids is None or pod.uid in uids
        )
        return {stats.pod_ref.uid: stats for stats in every if stats is not None}
