"""Who goes first when something runs short (kubelet: `rankMemoryPressure`, `rankDiskPressureFunc`,
`rankPIDPressure`). Pure.

Of memory and disk, those that use more than they asked for go before those that do not; then the less
important; then who uses most beyond what it asked for. Of PIDs the less important, then who has most. A pod
of which nothing was measured goes before one that is known.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.defaults import supported_at_pod_level
from trio_kubelet.eviction.thresholds import INODES, PIDS, STORAGE, Layout, resource_of
from trio_kubelet.podinfo.amounts import UNIT, amount
from trio_kubelet.podinfo.totals import has_pod_level_resources, pod_requests
from trio_kubelet.stats.summary_types import FsStats, MemoryStats, PodStats


class Measure(enum.Flag):
    """What of a pod's files counts on a filesystem."""

    LAYERS = enum.auto()
    LOGS = enum.auto()
    VOLUMES = enum.auto()


_ALL = Measure.LAYERS | Measure.LOGS | Measure.VOLUMES
_NONE = Measure(0)
_MEASURES = {
    Layout.ONE: {"nodefs": _ALL, "imagefs": _ALL, "containerfs": _ALL},
    Layout.IMAGES_APART: {
        "nodefs": Measure.LOGS | Measure.VOLUMES,
        "imagefs": Measure.LAYERS,
        "containerfs": Measure.LAYERS,
    },
    # Of images alone no pod has more than another: there, only requests and priority rank.
    Layout.SPLIT: {"nodefs": _ALL, "imagefs": _NONE, "containerfs": _ALL},
}


class Ranked(msgspec.Struct, frozen=True):
    """A pod in its place, with what put it there: `used` and `request` in units of the resource, `used` None
    if nothing was measured.
    """

    pod: v1.Pod
    used: int | None
    request: int
    exceeds: bool
    priority: int


def rank(signal: str, layout: Layout, pods: Sequence[v1.Pod], stats: Mapping[str, PodStats]) -> list[Ranked]:
    """The pods in the order in which they would be evicted; equals stay in the order given."""
    resource = resource_of(signal)
    if resource == PIDS:
        found = [_by_processes(pod, stats.get(pod.metadata.uid)) for pod in pods]
        return sorted(found, key=lambda each: (each.priority, each.used is not None, -(each.used or 0)))
    if resource == "memory":
        used: Callable[[v1.Pod, PodStats], int] = lambda _, use: working_set(use.memory)  # noqa: E731
        found = [_by_use(pod, stats.get(pod.metadata.uid), resource, resource, used) for pod in pods]
    else:
        measure = _MEASURES[layout][signal.partition(".")[0]]

        def used(pod: v1.Pod, use: PodStats) -> int:
            return disk_use(pod, use, measure, inodes=resource == INODES)

        # As the kubelet: inodes are compared with bytes asked for, as nobody can ask for inodes.
        found = [_by_use(pod, stats.get(pod.metadata.uid), resource, STORAGE, used) for pod in pods]
    return sorted(found, key=_place)


def _place(each: Ranked) -> tuple[int, int, int]:
    if each.used is None:
        return 0, each.priority, 0
    return (1 if each.exceeds else 2), each.priority, each.request - each.used * UNIT


def _by_use(
    pod: v1.Pod,
    stats: PodStats | None,
    resource: str,
    asked_for: str,
    used: Callable[[v1.Pod, PodStats], int],
) -> Ranked:
    request = requested(pod, asked_for)
    if stats is None:
        return Ranked(pod, None, request, True, pod.spec.priority or 0)
    amount_used = used(pod, stats)
    limit = request if asked_for == resource else requested(pod, resource)
    return Ranked(pod, amount_used, request, amount_used * UNIT > limit, pod.spec.priority or 0)


def _by_processes(pod: v1.Pod, stats: PodStats | None) -> Ranked:
    used = None
    if stats is not None:
        used = signed(stats.process_stats.process_count) if stats.process_stats is not None else 0
    return Ranked(pod, used, 0, False, pod.spec.priority or 0)


def requested(pod: v1.Pod, resource: str) -> int:
    """What the pod asked for, in 10⁻⁹; its overhead counts where it asked for anything.

    With resources of the pod as a whole those of its containers do not count (kubelet:
    `GetResourceRequestQuantity`).
    """
    if has_pod_level_resources(pod.spec):
        whole = (pod.spec.resources.requests or {}) if pod.spec.resources is not None else {}
        asked = amount(whole.get(resource, "")) if supported_at_pod_level(resource) else 0
    else:
        asked = pod_requests(pod, overhead=False).get(resource, 0)
    return asked + amount((pod.spec.overhead or {}).get(resource, "")) if asked else 0


def working_set(memory: MemoryStats | None) -> int:
    """Bytes of memory in use that cannot be dropped."""
    return signed(memory.working_set_bytes) if memory is not None else 0


def disk_use(pod: v1.Pod, stats: PodStats, measure: Measure, *, inodes: bool) -> int:
    """Bytes or inodes of the pod on a filesystem, as far as it is measured there."""
    total = 0
    for container in stats.containers:
        if Measure.LAYERS in measure:
            total += use_of(container.rootfs, inodes=inodes)
        if Measure.LOGS in measure:
            total += use_of(container.logs, inodes=inodes)
    if Measure.VOLUMES in measure:
        measured = {volume.name: volume for volume in reversed(stats.volume or ())}
        for volume in pod.spec.volumes or ():
            if is_local(volume):
                total += use_of(measured.get(volume.name), inodes=inodes)
    return total


def are_measured_since(
    moment: str,
    signal: str,
    layout: Layout,
    pods: Sequence[v1.Pod],
    stats: Mapping[str, PodStats],
    *,
    looked: bool = False,
) -> bool:
    """Whether what pods have on a filesystem was measured after that moment.

    By older figures the pod that fills the disk looks like the others. Moments are in whole seconds
    (RFC 3339): what is of the same one counts only if it was `looked` at since. So does what was not measured
    at all: the pod may have come just now, and filled the disk at once.
    """
    if resource_of(signal) not in (STORAGE, INODES):
        return True
    measure = _MEASURES[layout][signal.partition(".")[0]]

    def old(time: str) -> bool:
        return time < moment or (time == moment and not looked)

    for pod in pods:
        use = stats.get(pod.metadata.uid)
        if use is None:
            continue
        if Measure.LAYERS in measure and any(
            old(each.rootfs.time) if each.rootfs is not None else not looked for each in use.containers
        ):
            return False
        at = {each.name: each.time for each in use.volume or ()}
        if Measure.VOLUMES in measure and any(
            old(at[name]) if name in at else not looked for name in _growing_volumes(pod)
        ):
            return False
    return True


def _growing_volumes(pod: v1.Pod) -> Iterator[str]:
    """Volumes that are measured on the disk and that the pod may fill. Figures of the host's there are none,
    and those of claims come when their servers and drivers please.
    """
    for volume in pod.spec.volumes or ():
        if volume.empty_dir is not None and is_local(volume):
            yield volume.name


def is_local(volume: v1.Volume) -> bool:
    """Whether the volume's files are on the node's own disk."""
    return (
        volume.host_path is not None
        or volume.git_repo is not None
        or volume.config_map is not None
        or (volume.empty_dir is not None and not volume.empty_dir.medium)
    )


def use_of(files: FsStats | None, *, inodes: bool = False) -> int:
    """Bytes or inodes in use; 0 where that was not measured."""
    if files is None:
        return 0
    return signed(files.inodes_used if inodes else files.used_bytes)


def signed(figure: int | None) -> int:
    """A figure as Go's int64 has it: what could not be measured, or wrapped below 0, is not large."""
    return ((figure or 0) + 2**63) % 2**64 - 2**63
