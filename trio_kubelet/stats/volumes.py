"""How much space the volumes of pods take: measured in the background, each pod once a period with jitter.

A walk over a volume can be long, so that answers only ever show what was measured last (kubelet:
`volumeStatCalculator`). One walk at a time, with pauses, in a worker thread, and one beside it over volumes
so large that others would wait for them; beside one that takes too long, as one that hangs, the next begins.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock, sleep_with_others
from trio_kubelet.common.lanes import METER, WorkHangs
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.common.places import Places
from trio_kubelet.machine.node_reader import filesystem_of
from trio_kubelet.machine.values import DiskUse, VolumeUse
from trio_kubelet.podinfo.paths import volume_dir
from trio_kubelet.stats.disk import TooManyFiles, tree_use
from trio_kubelet.volumes import project_quotas
from trio_kubelet.volumes.plan import CONFIG_MAP, EMPTY_DIR, projection_plugin

log = get_logger(__name__)

MOST_FILES = 10_000_000
"""A walk is given up after so many: as a volume with more, or with directories nested too deeply, may be
anything, it counts with all that its filesystem holds. Else a pod could hide from its limits what it writes.
"""

LARGE = 200_000
"""A pod with more files is measured apart: that takes seconds, or minutes, for which others would wait."""

_SHORTEST, _LONGEST = 1.0, 5.0  # seconds between two looks for pods that are due, or new
_GRID = 5.0  # seconds; at whole ones of these pods are due again, many at a time
_FIRST_WITHIN = 1.0
_PATIENCE = 2.0  # seconds of one pod, until it is large
_PATIENCE_WITH_LARGE = 30.0  # seconds of one of these, until another is walked over beside it
_ASIDE = 4


class MeasuredVolume(msgspec.Struct, frozen=True):
    """A volume whose use is measured: its directory, and whether it is the pod's local ephemeral storage."""

    name: str
    path: str
    ephemeral: bool


def measured_volumes(pod: v1.Pod, root_dir: str) -> list[MeasuredVolume]:
    """The volumes whose files are the pod's own; ephemeral ones first, as the kubelet lists them.

    A ConfigMap's files count as local storage, those of other projections and of memory do not (kubelet:
    `IsLocalEphemeralVolume`). Host paths and images are nobody's to measure.
    """
    found = []
    for volume in pod.spec.volumes or ():
        plugin = EMPTY_DIR if volume.empty_dir is not None else projection_plugin(volume)
        if plugin is None:
            continue
        on_disk = plugin == CONFIG_MAP or (volume.empty_dir is not None and not volume.empty_dir.medium)
        path = volume_dir(root_dir, pod.metadata.uid, plugin, volume.name)
        found.append(MeasuredVolume(volume.name, path, on_disk))
    return sorted(found, key=lambda each: not each.ephemeral)


QUOTA, WALK = "fsquota", "du"
"""How a volume was measured, as the kubelet's metric names it."""


def measure(
    volume: MeasuredVolume, clock: Clock, *, most: int = MOST_FILES, quotas: bool = False
) -> tuple[VolumeUse | None, str]:
    """What one volume takes, and how that is known: its filesystem has counted it (with `quotas`), or a walk
    over it did. None if it is not there. Raises TooManyFiles if a walk would have to go further than it may,
    be that less than MOST_FILES. Blocking.
    """
    counted = project_quotas.counted(volume.path) if quotas and volume.ephemeral else None
    if counted is not None:
        use = DiskUse(clock.now_ns(), counted.used, counted.inodes)
        return _volume_use(volume, clock, use), QUOTA
    try:
        walked = tree_use(volume.path, clock, most, pause=True)
    except TooManyFiles as error:
        if most < MOST_FILES:
            raise
        log.warning("Volume counts with all of its filesystem", path=volume.path, err=error)
        whole = filesystem_of(volume.path, clock)
        if whole is None:
            return None, WALK
        walked = DiskUse(whole.at_ns, whole.used, whole.inodes - whole.inodes_free)
    return (_volume_use(volume, clock, walked) if walked is not None else None), WALK


def _volume_use(volume: MeasuredVolume, clock: Clock, use: DiskUse) -> VolumeUse | None:
    filesystem = filesystem_of(volume.path, clock)
    if filesystem is None:
        return None
    return VolumeUse(
        name=volume.name,
        at_ns=use.at_ns,
        available=filesystem.available,
        capacity=filesystem.capacity,
        used=use.used,
        inodes=filesystem.inodes,
        inodes_free=filesystem.inodes_free,
        inodes_used=use.inodes,
        ephemeral=volume.ephemeral,
    )


OthersUse = Callable[[v1.Pod, Callable[[str, float], None]], Awaitable[Sequence[VolumeUse]]]
"""Measures a pod's volumes, and tells of each how (as the metric names it) and how many seconds it took."""


async def nobodys(pod: v1.Pod, took: Callable[[str, float], None]) -> Sequence[VolumeUse]:
    """There are no volumes but the agent's own."""
    return ()


class _Turns:
    """When each pod's turn is: first within a time after it was seen, then once a period with jitter. What is
    done then is `take`.
    """

    def __init__(
        self, first: tuple[float, float], period: float, take: Callable[[v1.Pod], Awaitable[None]]
    ) -> None:
        self._first = first
        self._period = period
        self._take = take
        self._due: dict[str, float] = {}
        self._under_way: dict[str, trio.Event] = {}  # by UID of the pod

    @property
    def next(self) -> float:
        """When the next turn is."""
        return min(self._due.values(), default=math.inf)

    def all_now(self, uids: Iterable[str]) -> None:
        """It is every pod's turn."""
        self._due = dict.fromkeys(uids, trio.current_time())

    def start(self, pods: Mapping[str, v1.Pod], nursery: trio.Nursery) -> None:
        """Starts on those of these pods whose turn it is; one that was not seen before has its first. Others
        are forgotten.
        """
        now = trio.current_time()
        for gone in self._due.keys() - pods.keys():
            del self._due[gone]
        for new in pods.keys() - self._due.keys():
            self._due[new] = now + random.uniform(*self._first)
        for uid in [uid for uid, due in self._due.items() if due <= now and uid not in self._under_way]:
            self._under_way[uid] = trio.Event()
            nursery.start_soon(self._one, pods[uid])

    async def all_had(self) -> None:
        """Waits until all that is under way is done."""
        for each in list(self._under_way.values()):
            await each.wait()

    async def _one(self, pod: v1.Pod) -> None:
        uid = pod.metadata.uid
        try:
            with _wall(pod):
                await self._take(pod)
            due = trio.current_time() + self._period * (1 + random.random())
            self._due[uid] = math.ceil(due / _GRID) * _GRID
        finally:
            self._under_way.pop(uid).set()


async def _until_due(*turns: _Turns) -> None:
    due = min(each.next for each in turns) - trio.current_time()
    await sleep_with_others(min(max(due, _SHORTEST), _LONGEST))


class VolumeMeter:
    """Measures the volumes of all pods for ever; `of` tells what was seen last."""

    def __init__(
        self,
        pods: Callable[[], Iterable[v1.Pod]],
        root_dir: str,
        clock: Clock,
        period: float,
        registry: CollectorRegistry | None = None,
        others: OthersUse = nobodys,
        *,
        quotas: bool = False,
    ) -> None:
        """`others` knows the volumes that are not the agent's own, such as those of claims. With `quotas`
        filesystems are asked for what they count themselves.
        """
        self._quotas = quotas
        self._pods = pods
        self._root_dir = root_dir
        self._clock = clock
        self._period = period
        self._others = others
        self._places_of_others = Places(1, lent=_PATIENCE, aside=_ASIDE)
        self._places = Places(1, lent=_PATIENCE, aside=_ASIDE)
        self._places_of_large = Places(1, lent=_PATIENCE_WITH_LARGE, aside=_ASIDE)
        self._nursery: trio.Nursery | None = None  # for walks that outlive who asked for them
        self._large: set[str] = set()  # UIDs of pods with large volumes
        # For its own volumes a pod may be evicted; drivers and servers are asked when they have mounted those
        # of the pods that came with it (kubelet: within a period).
        self._own_turns = _Turns((0, _FIRST_WITHIN), period, self._walk)
        self._others_turns = _Turns((period / 4, period / 2), period, self._ask)
        self._own: dict[str, tuple[VolumeUse, ...]] = {}  # as last measured, by UID of the pod
        self._of_others: dict[str, tuple[VolumeUse, ...]] = {}
        self._duration = MetricMaker(registry or CollectorRegistry()).histogram(
            "kubelet_volume_metric_collection_duration_seconds",
            "Duration of measuring what a volume takes.",
            ["metric_source"],
        )

    def claims(self) -> dict[tuple[str, str], VolumeUse]:
        """The volumes of claims as last measured, by namespace and name of the claim."""
        return {
            (each.namespace, each.claim): each
            for volumes in self._of_others.values()
            for each in volumes
            if each.claim
        }

    def of(self, uid: str) -> tuple[VolumeUse, ...] | None:
        """The volumes of a pod as last measured; None before the first time."""
        own = self._own.get(uid)
        return None if own is None else (*own, *self._of_others.get(uid, ()))

    async def measure_all(self) -> None:
        """Measures all volumes of the agent's own anew: somebody is to be judged by them. What is not done
        before this is cancelled is done soon.
        """
        pods = self._present()
        self._own_turns.all_now(pods)
        async with trio.open_nursery() as nursery:
            self._own_turns.start(pods, self._nursery or nursery)
            await self._own_turns.all_had()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measures until it is cancelled; not at all with a period of 0 or less, as the kubelet."""
        task_status.started()
        if self._period <= 0:
            log.info("Volume stats collection disabled")
            return
        try:
            async with trio.open_nursery() as self._nursery:
                while True:
                    pods = self._present()
                    self._own_turns.start(pods, self._nursery)
                    self._others_turns.start(pods, self._nursery)
                    await _until_due(self._own_turns, self._others_turns)
        finally:
            self._nursery = None

    def _present(self) -> Mapping[str, v1.Pod]:
        """The pods there are, by UID; what was measured of those that are gone is forgotten."""
        pods = {pod.metadata.uid: pod for pod in self._pods()}
        self._large &= pods.keys()
        for latest in (self._own, self._of_others):
            for gone in latest.keys() - pods.keys():
                del latest[gone]
        return pods

    async def _ask(self, pod: v1.Pod) -> None:
        async with self._places_of_others:
            self._of_others[pod.metadata.uid] = tuple(await self._others(pod, self._took))

    async def _walk(self, pod: v1.Pod) -> None:
        if pod.metadata.uid not in self._large:
            async with self._places:
                await self._measure_own(pod, LARGE)
        if pod.metadata.uid in self._large:
            async with self._places_of_large:
                await self._measure_own(pod, MOST_FILES)

    async def _measure_own(self, pod: v1.Pod, most: int) -> None:
        uid = pod.metadata.uid
        try:
            self._own[uid] = tuple(await self._own_volumes(pod, most))
        except TooManyFiles:
            self._large.add(uid)
        else:
            if sum(use.inodes_used for use in self._own[uid]) < LARGE:
                self._large.discard(uid)

    async def _own_volumes(self, pod: v1.Pod, most: int) -> Sequence[VolumeUse]:
        """Raises TooManyFiles for a pod that others would wait for, unless MOST_FILES may be looked at."""
        began, found = trio.current_time(), []
        last = {use.name: use for use in self._own.get(pod.metadata.uid, ())}
        for volume in measured_volumes(pod, self._root_dir):
            if most < MOST_FILES and trio.current_time() > began + _PATIENCE:
                raise TooManyFiles("it takes long")
            use = await self._measure(volume, most, last.get(volume.name))
            if use is not None:
                found.append(use)
        return found

    async def _measure(self, volume: MeasuredVolume, most: int, last: VolumeUse | None) -> VolumeUse | None:
        began, source = trio.current_time(), WALK
        try:
            work = partial(measure, volume, self._clock, most=most, quotas=self._quotas)
            use, source = await METER.run(work, owner=volume.path)
        except OSError as error:
            log.warning("Volume cannot be measured", path=volume.path, err=error)
            use = last if isinstance(error, WorkHangs) else None
        self._took(source, trio.current_time() - began)
        return use

    def _took(self, source: str, seconds: float) -> None:
        self._duration.labels(source).observe(seconds)


@contextmanager
def _wall(pod: v1.Pod) -> Iterator[None]:
    """Whatever one pod's volumes raise, the others are measured."""
    try:
        yield
    except Exception as error:
        log.error("Unexpected error in measuring volumes", pod=pod, err=error)


class ClaimStats(Collector):
    """`kubelet_volume_stats_*`: the volumes of claims, each once however many pods have it."""

    _FIGURES: Final = (
        ("capacity_bytes", "Capacity in bytes of the volume", "capacity"),
        ("available_bytes", "Number of available bytes in the volume", "available"),
        ("used_bytes", "Number of used bytes in the volume", "used"),
        ("inodes", "Maximum number of inodes in the volume", "inodes"),
        ("inodes_free", "Number of free inodes in the volume", "inodes_free"),
        ("inodes_used", "Number of used inodes in the volume", "inodes_used"),
    )

    def __init__(self, meter: VolumeMeter) -> None:
        self._meter = meter

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The figures as last measured."""
        claims = self._meter.claims()
        for name, words, field in self._FIGURES:
            family = GaugeMetricFamily(
                f"kubelet_volume_stats_{name}",
                f"[ALPHA] {words}",
                labels=["namespace", "persistentvolumeclaim"],
            )
            for key, use in claims.items():
                family.add_metric(key, getattr(use, field))
            yield family
        health = GaugeMetricFamily(
            "kubelet_volume_stats_health_status_abnormal",
            "[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is "
            "unhealthy, 0 indicates volume is healthy",
            labels=["namespace", "persistentvolumeclaim"],
        )
        for key, use in claims.items():
            if use.abnormal is not None:
                health.add_metric(key, float(use.abnormal))
        yield health
