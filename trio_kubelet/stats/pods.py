"""What pods use, for those who decide by it or look at a few: as `/stats/summary` shows it, and fresh.

Runtimes look at the layers of containers every ten seconds or so. When a disk is full that is too long to
wait, and by older figures the container that fills it looks like the others. So the layer is looked for in
the kernel's list of mounts, as overlayfs has it, and walked over, in a thread.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import trio

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import METER, STATS
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.mountinfo import Mount, mounts
from trio_kubelet.machine.cgroup_reader import CgroupReader
from trio_kubelet.machine.values import (
    CgroupUse,
    ContainerSample,
    DiskUse,
    NodeSample,
    PodSample,
    StatsSnapshot,
)
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.stats.cgroup_map import NOWHERE, map_cgroups
from trio_kubelet.stats.collector import Rates, StatsCollector
from trio_kubelet.stats.disk import TooManyFiles, tree_use
from trio_kubelet.stats.summary import idle_stats, pod_stats
from trio_kubelet.stats.summary_types import PodStats
from trio_kubelet.stats.volumes import LARGE, VolumeMeter

log = get_logger(__name__)

_UPPER = "upperdir="


def upper_directories(containers: Collection[str], found: Collection[Mount]) -> dict[str, str]:
    """Where the layers of containers (their IDs) are; those of which that is not known are left out. A mount
    is a container's when a directory of its path has its ID as name.
    """
    upper = {}
    for mount in found:
        if mount.fs_type != "overlay":
            continue
        path = next((each for each in mount.options.split(",") if each.startswith(_UPPER)), "")
        for word in mount.path.split("/"):
            if path and word in containers:
                upper[word] = path.removeprefix(_UPPER)
    return upper


def layer_use(directory: str, clock: Clock, most: int) -> DiskUse | None:
    """What a layer takes; None if it is not there or has more files than that."""
    try:
        return tree_use(directory, clock, most, pause=True)
    except TooManyFiles as error:
        log.v(2).info(
            "A container's layer is not measured, the runtime's figures count", path=directory, err=error
        )
        return None


def with_layers(pods: Collection[PodSample], measured: dict[str, DiskUse]) -> Iterator[PodSample]:
    """The pods with what was measured of their layers, where the runtime's figures are older."""
    for pod in pods:
        yield msgspec.structs.replace(
            pod, containers=tuple(_with_layer(each, measured.get(each.id)) for each in pod.containers)
        )


def _with_layer(container: ContainerSample, use: DiskUse | None) -> ContainerSample:
    runtime = container.runtime
    if use is None or runtime is None or runtime.layer is None or runtime.layer.at_ns >= use.at_ns:
        return container
    layer = msgspec.structs.replace(runtime.layer, at_ns=use.at_ns, used=use.used, inodes=use.inodes)
    return msgspec.structs.replace(container, runtime=msgspec.structs.replace(runtime, layer=layer))


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

    async def measured(self, uids: Collection[str] | None = None) -> dict[str, PodStats] | None:
        """What these pods (all, if None) use now; those of which nothing is known are left out. None while
        the runtime does not tell which pods there are, and never has.
        """
        since_look = trio.current_time() - self._looked_at  # what was put together before does not have it
        snapshot = await self._collector.everything(min(FRESH, since_look))
        pods = with_layers([pod for pod in snapshot.pods if uids is None or pod.uid in uids], self._layers)
        return self._by_uid(pods, snapshot.node) if _is_known(snapshot) else None

    async def in_use(self) -> dict[str, PodStats] | None:
        """What pods use of memory and processes at this moment, by their cgroups; where those of some pod
        are not found (there are none per class, say), as `measured` has it. None as there.

        A pod in which no container runs, as between two crashes, is known to use next to nothing. (Of such a
        one the kubelet has no figures, and evicts it first.)
        """
        snapshot = await self._collector.in_use()
        if not _is_known(snapshot):
            return None
        idle = {pod.uid: idle_stats(pod) for pod in snapshot.pods if not pod.containers}
        found = self._by_uid(snapshot.pods, snapshot.node)
        if any(pod.uid not in found and pod.uid not in idle for pod in snapshot.pods):
            measured = await self.measured()
            return idle | measured if measured is not None else None
        return idle | found

    def _by_uid(self, pods: Iterable[PodSample], node: NodeSample) -> dict[str, PodStats]:
        now_ns = self._clock.now_ns()
        every = (pod_stats(pod, node, now_ns, True) for pod in pods)
        return {stats.pod_ref.uid: stats for stats in every if stats is not None}

    async def _look_at_layers(self) -> None:
        snapshot = await self._collector.usage()
        running = {each.id for pod in snapshot.pods for each in pod.containers}
        self._layers = {id: use for id, use in self._layers.items() if id in running}
        try:
            found = await METER.run(lambda: upper_directories(running, mounts()))
            for container, path in random.sample(list(found.items()), len(found)):  # none is always the last
                use = await METER.run(layer_use, path, self._clock, LARGE, owner=path)
                if use is not None:
                    self._layers[container] = use
        except OSError as error:
            log.warning("Layers of containers cannot be measured", err=error)


class ContainerUse:
    """Reads on demand; a rate is that since the last time somebody asked for the same container."""

    def __init__(self, reader: CgroupReader, names: CgroupNames) -> None:
        self._reader = reader
        self._names = names
        self._where = NOWHERE
        self._rates = Rates()

    async def of(self, pods: Mapping[str, Sequence[str]]) -> dict[str, tuple[int | None, int]]:
        """Nanoseconds of CPU per second (None at first) and bytes of working set, by container id.

        `pods` are ids of containers by UID; those without a cgroup are left out.
        """
        found = await STATS.run(self._read, pods)
        answer = {}
        for container, (path, use) in found.items():
            answer[container] = self._rates.read(path, use.at_ns, use.cpu), use.working_set
        self._rates.next_round()
        return answer

    def _read(self, pods: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, CgroupUse]]:
        self._where = map_cgroups(self._reader, self._names, pods, self._where)
        paths = self._where.containers
        wanted = [(each, paths[each]) for ids in pods.values() for each in ids if each in paths]
        uses = self._reader.uses([path for _, path in wanted], processes=False)
        return {each: (path, use) for (each, path), use in zip(wanted, uses, strict=True) if use is not None}


def _is_known(snapshot: StatsSnapshot) -> bool:
    """Whether the runtime has ever told which pods there are."""
    return bool(snapshot.pods) or not snapshot.failed
