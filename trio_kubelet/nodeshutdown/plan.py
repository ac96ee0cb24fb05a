"""Who is ended when the node goes down, in which order and in what time (kubelet: `nodeshutdown`). Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.config.types import KubeletConfiguration

SYSTEM_CRITICAL: Final = 2_000_000_000

REASON: Final = "Terminated"
MESSAGE: Final = "Pod was terminated in response to imminent node shutdown."


class Period(msgspec.Struct, frozen=True):
    """How many seconds pods of this priority and above have, up to the next period's."""

    priority: int
    seconds: int


class Group(msgspec.Struct, frozen=True):
    """Pods that are ended together."""

    period: Period
    pods: tuple[v1.Pod, ...]


def periods_of(config: KubeletConfiguration, *, by_priority: bool) -> tuple[Period, ...]:
    """The periods of a configuration, the least important first; none: the node goes down without us."""
    found = [
        Period(each.priority, each.shutdown_grace_period_seconds)
        for each in config.shutdown_grace_period_by_pod_priority
        if by_priority
    ]
    total, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    if not found and total and 0 <= critical <= total:
        others = round((total - critical) * NANOSECONDS) // NANOSECONDS  # 2.3 - 1.3 is less than 1
        found = [Period(0, others), Period(SYSTEM_CRITICAL, int(critical))]
    return tuple(sorted(found, key=lambda each: each.priority))


def requested(periods: Iterable[Period]) -> int:
    """Seconds that the node has to wait for all periods together."""
    return sum(each.seconds for each in periods)


def groups(periods: Sequence[Period], pods: Iterable[v1.Pod]) -> list[Group]:
    """The pods by period, in the order in which they end; periods without pods take no time. A pod below the
    lowest priority belongs to the first.
    """
    members: list[list[v1.Pod]] = [[] for _ in periods]
    priorities = [each.priority for each in periods]
    for pod in pods:
        priority = pod.spec.priority or 0
        index = bisect_left(priorities, priority)
        if index == len(priorities) or (index and priorities[index] > priority):
            index -= 1
        members[index].append(pod)
    return [Group(period, tuple(own)) for period, own in zip(periods, members, strict=True) if own]


def grace_of(pod: v1.Pod, period: Period) -> int:
    """Seconds a pod has to end."""
    own = pod.spec.termination_grace_period_seconds
    return period.seconds if own is None else min(own, period.seconds)


def logind_drop_in(seconds: int) -> str:
    """A file of `logind.conf.d` by which logind lets itself be delayed for so long."""
    return f"# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n"
