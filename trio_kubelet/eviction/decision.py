"""Who is evicted after an observation, how and why; what is reclaimed before. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.eviction.limits import breach
from trio_kubelet.eviction.messages import quantity, starved
from trio_kubelet.eviction.ranking import Ranked, rank
from trio_kubelet.eviction.thresholds import STORAGE, Layout, Signal, Threshold, resource_of, spelled
from trio_kubelet.podinfo.amounts import whole
from trio_kubelet.podinfo.qos import is_critical_pod
from trio_kubelet.stats.summary_types import PodStats

AT_ONCE = 1
"""Seconds of grace when there is no time (kubelet: `immediateEvictionGracePeriodSeconds`)."""

_TOLD = 3
"""Pods of a ranking that a story names beside its own."""


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is to go: seconds of grace, what is told of it, and the limit or signal it counts under.

    `disruption`: its status gets the condition of that name. `why` is for its story.
    """

    pod: v1.Pod
    grace: int
    message: str
    signal: str
    why: str
    annotations: Mapping[str, str] = {}
    disruption: bool = False


class Reclaim(enum.Enum):
    """What can be freed without ending a pod."""

    CONTAINERS = "dead containers"
    IMAGES = "unused images"


def reclaims(signal: str, layout: Layout) -> tuple[Reclaim, ...]:
    """What to free first when that signal is low, in this order."""
    filesystem = signal.partition(".")[0]
    if filesystem not in ("nodefs", "imagefs", "containerfs"):
        return ()
    if layout is Layout.ONE:
        return Reclaim.CONTAINERS, Reclaim.IMAGES
    if layout is Layout.IMAGES_APART:
        return () if filesystem == "nodefs" else (Reclaim.CONTAINERS, Reclaim.IMAGES)
    return (Reclaim.IMAGES,) if filesystem == "imagefs" else (Reclaim.CONTAINERS,)


def over_their_limits(pods: Sequence[v1.Pod], stats: Mapping[str, PodStats], layout: Layout) -> list[Victim]:
    """All pods that exceed a limit of local storage. Critical ones are spared, as the kubelet spares them."""
    victims = []
    for pod in pods:
        use = stats.get(pod.metadata.uid)
        found = breach(pod, use, layers_count=layout is Layout.ONE) if use is not None else None
        if found is not None and not is_critical_pod(pod):
            text = found.message
            victims.append(
                Victim(pod=pod, grace=AT_ONCE, message=text, signal=found.signal, why=text.strip())
            )
    return victims


def victim(
    met: Sequence[Threshold],
    signals: Mapping[str, Signal],
    layout: Layout,
    pods: Sequence[v1.Pod],
    stats: Mapping[str, PodStats],
    max_grace: int,
) -> Victim | None:
    """The one pod to evict for the first of the thresholds `met`; None if there are only critical pods."""
    threshold = met[0]
    ranking = rank(threshold.signal, layout, pods, stats)
    for place, chosen in enumerate(ranking):
        if is_critical_pod(chosen.pod):
            continue
        pod = chosen.pod
        resource = resource_of(threshold.signal)
        signal = signals[threshold.signal]
        message, annotations = starved(pod, stats.get(pod.metadata.uid), threshold, signal)
        return Victim(
            pod=pod,
            grace=AT_ONCE if threshold.hard else _soft_grace(pod, max_grace),
            message=message,
            annotations=annotations,
            disruption=True,
            signal=threshold.signal,
            why=f"{observed(threshold, signals)}; {_placed(resource, ranking, place)}",
        )
    return None


def _soft_grace(pod: v1.Pod, max_grace: int) -> int:
    own = pod.spec.termination_grace_period_seconds
    return max_grace if own is None else min(max_grace, own)


def observed(threshold: Threshold, signals: Mapping[str, Signal]) -> str:
    """A threshold and what was seen, for logs and stories."""
    signal, resource = signals[threshold.signal], resource_of(threshold.signal)
    after = "" if threshold.hard else f" for {threshold.grace:g} s"
    if signal.cache:
        cache, idle = quantity(signal.cache, resource), quantity(signal.idle, resource)
        after += f" (page cache {cache}, of which {idle} does not count as used)"
    return (
        f"{threshold.signal} is {quantity(signal.available, resource)} of "
        f"{quantity(signal.capacity, resource)}, less than {spelled(threshold.least, signal.capacity)}{after}"
    )


def _placed(resource: str, ranking: Sequence[Ranked], place: int) -> str:
    """Where the victim stands in the ranking, and who stands around it."""
    others = [each for index, each in enumerate(ranking[: place + _TOLD + 1]) if index != place]
    text = f"number {place + 1} of {len(ranking)} to go: {_shown(resource, ranking[place])}"
    spared = [_named(each) for each in others[:place]]
    after = [f"{_named(each)} ({_shown(resource, each)})" for each in others[place:]]
    if spared:
        text += f"; spared as critical: {', '.join(spared)}"
    if after:
        text += f"; next: {', '.join(after)}"
    return text


def _named(each: Ranked) -> str:
    return f"{each.pod.metadata.namespace}/{each.pod.metadata.name}"


def _shown(resource: str, each: Ranked) -> str:
    if each.used is None:
        return f"nothing measured, priority {each.priority}"
    used = f"uses {quantity(each.used, resource)}"
    if resource != "pids":
        asked = STORAGE if resource != "memory" else resource
        used += f", {'more than' if each.exceeds else 'within'} its request of "
        used += quantity(whole(each.request), asked)
    return f"{used}, priority {each.priority}"
