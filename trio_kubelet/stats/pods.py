"""What pods use, for those who decide by it: as `/stats/summary` shows it, and fresh."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

import trio

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import METER
from trio_kubelet.common.log import get_logger
from trio_kubelet.machine.values import DiskUse, NodeSample, PodSample
from trio_kubelet.stats.collector import StatsCollector
from trio_kubelet.stats.layers import layer_paths, layer_use, with_layers
from trio_kubelet.stats.summary import pod_stats
from trio_kubelet.stats.summary_types import PodStats
from trio_kubelet.stats.volumes import MOST_FILES, VolumeMeter

log = get_logger(__name__)

FRESH: Final = 0.5
"""Seconds that figures may be old by which a pod is ended; what is on disks is measured less often."""

LOOK: Final = 5.0
"""Seconds for a look at what is on disks; what it did not reach stays as it was measured before."""


class PodFigures:
    """Pods' stats by UID."""

    def __init__(self, collector: StatsCollector, meter: VolumeMeter, clock: Clock) -> None:
        self._collector = collector
        self._meter = meter
        self._clock = clock
        self._layers: dict[str, DiskUse] = {}  # by ID of the container
        self._looked_at = -math.inf

    async def look_at_disks(self) -> None:
        """Volumes and layers of containers are measured anew, as many as can be in a short while."""
        with trio.move_on_after(LOOK):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._meter.measure_all)
                nursery.start_soon(self._look_at_layers)
        self._looked_at = trio.current_time()

    async def measured(self, uids: Collection[str] | None = None) -> dict[str, PodStats]:
        """What these pods (all, if None) use now; those of which nothing is known are left out."""
        since_look = trio.current_time() - self._looked_at  # what was put together before does not have it
        snapshot = await self._collector.everything(min(FRESH, since_look))
        pods = with_layers([pod for pod in snapshot.pods if uids is None or pod.uid in uids], self._layers)
        return self._by_uid(pods, snapshot.node)

    async def in_use(self) -> dict[str, PodStats]:
        """What pods use of memory and processes at this moment, by their cgroups; nothing about disks."""
        snapshot = await self._collector.in_use()
        return self._by_uid(snapshot.pods, snapshot.node)

    def _by_uid(self, pods: Iterable[PodSample], node: NodeSample) -> dict[str, PodStats]:
        now_ns = self._clock.now_ns()
        every = (pod_stats(pod, node, now_ns, True) for pod in pods)
        return {stats.pod_ref.uid: stats for stats in every if stats is not None}

    async def _look_at_layers(self) -> None:
        snapshot = await self._collector.usage()
        running = {each.id for pod in snapshot.pods for each in pod.containers}
        self._layers = {id: use for id, use in self._layers.items() if id in running}
        try:
            for container, path in (await METER.run(layer_paths, running)).items():
                use = await METER.run(layer_use, path, self._clock, MOST_FILES, owner=path)
                if use is not None:
                    self._layers[container] = use
        except OSError as error:
            log.warning("Layers of containers cannot be measured", err=error)
