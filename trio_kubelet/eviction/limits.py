"""Which pods take more of the node's disk than their limits allow (kubelet: `localStorageEviction`). Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.api.quantity import BINARY_SI, NANO, Quantity, parse
from trio_kubelet.eviction.ranking import use_of
from trio_kubelet.eviction.thresholds import STORAGE
from trio_kubelet.podinfo.amounts import UNIT, amount
from trio_kubelet.podinfo.totals import pod_limits
from trio_kubelet.stats.summary_types import PodStats


class Breach(msgspec.Struct, frozen=True):
    """A limit that a pod exceeds: the kubelet's name of it in the metrics, and its message."""

    signal: str
    message: str


def has_limits(pod: v1.Pod) -> bool:
    """Whether there is anything that the pod could exceed."""
    for container in _containers(pod):
        if _limit_of(container):
            return True
    return next(_sized(pod), None) is not None


def breach(pod: v1.Pod, stats: PodStats, *, layers_count: bool) -> Breach | None:
    """The first limit the pod exceeds: of a volume, of the pod, of a container. A container's writable layer
    counts only where it is on the node's own filesystem (`layers_count`).
    """
    return _of_volumes(pod, stats) or _of_pod(pod, stats) or _of_containers(pod, stats, layers_count)


def _of_volumes(pod: v1.Pod, stats: PodStats) -> Breach | None:
    used = {each.name: use_of(each) for each in stats.volume or ()}
    for name, limit in _sized(pod):
        if name in used and used[name] * UNIT > amount(limit):
            size = parse(limit)
            return Breach(
                "emptydirfs.limit", f'Usage of EmptyDir volume "{name}" exceeds the limit "{size}". '
            )
    return None


def _of_pod(pod: v1.Pod, stats: PodStats) -> Breach | None:
    limit = pod_limits(pod).get(STORAGE)
    if limit is None or use_of(stats.ephemeral_storage) * UNIT <= limit:
        return None
    shown = Quantity(limit, NANO, _notation(pod))
    return Breach(
        "ephemeralpodfs.limit",
        f"Pod ephemeral local storage usage exceeds the total limit of containers {shown}. ",
    )


def _notation(pod: v1.Pod) -> str:
    """How a pod's limit is written: as the first of what adds up to it, which is what goes on running, or an
    init container that needs more with the sidecars before it.
    """
    init = pod.spec.init_containers or ()
    adds_up = [_limit_of(each) for each in (*(pod.spec.containers or ()), *filter(is_sidecar, init))]
    sidecars: list[str] = []
    for each in init:
        if is_sidecar(each):
            sidecars.append(_limit_of(each))
        elif sum(map(amount, step := [_limit_of(each), *sidecars])) > sum(map(amount, adds_up)):
            adds_up = step
    return next((parse(text).notation for text in adds_up if amount(text)), BINARY_SI)


def _limit_of(container: v1.Container) -> str:
    return (container.resources.limits or {}).get(STORAGE, "")


def _of_containers(pod: v1.Pod, stats: PodStats, layers_count: bool) -> Breach | None:
    """Sidecars, too, as by the kubelet from v1.37 on."""
    sidecars = filter(is_sidecar, pod.spec.init_containers or ())
    limits = {
        container.name: _limit_of(container)
        for container in (*(pod.spec.containers or ()), *sidecars)
        if amount(_limit_of(container))
    }
    for container in stats.containers:
        limit = limits.get(container.name)
        used = use_of(container.logs) + (use_of(container.rootfs) if layers_count else 0)
        if limit is not None and used * UNIT > amount(limit):
            return Breach(
                "ephemeralcontainerfs.limit",
                f'Container {container.name} exceeded its local ephemeral storage limit "{parse(limit)}". ',
            )
    return None


def _containers(pod: v1.Pod) -> Iterator[v1.Container]:
    yield from pod.spec.containers or ()
    yield from pod.spec.init_containers or ()


def _sized(pod: v1.Pod) -> Iterator[tuple[str, str]]:
    for volume in pod.spec.volumes or ():
        limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
        if limit and amount(limit) > 0:
            yield volume.name, limit
