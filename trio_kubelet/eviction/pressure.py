"""What follows from one observation of the signals: conditions of the Node, thresholds that call for action.
Pure.

A threshold that is crossed makes its condition true at once, whatever its grace period, which only delays
evictions; the condition stays for `evictionPressureTransitionPeriod` after it was last seen
(kubelet: `managerImpl.synchronize`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trio_kubelet.eviction.thresholds import (
    ALLOCATABLE_MEMORY,
    CONDITIONS,
    MEMORY_AVAILABLE,
    Signal,
    Threshold,
    is_crossed,
)

_MEMORY_FIRST: Final = (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY)


class Pressure(msgspec.Struct, frozen=True):
    """What is known from one observation to the next; moments are seconds of a clock that only goes on.

    `conditions` are those in force; `met` the thresholds that call for an eviction, their grace being over;
    `read_at` when each signal had been read, by its own clock.
    """

    conditions: frozenset[str] = frozenset()
    met: tuple[Threshold, ...] = ()
    since: Mapping[Threshold, float] = {}
    last_seen: Mapping[str, float] = {}
    read_at: Mapping[str, int] = {}


def observe(
    thresholds: Sequence[Threshold],
    signals: Mapping[str, Signal],
    before: Pressure,
    transition_period: float,
    now: float,
) -> Pressure:
    """What follows from the signals; one that could not be read meets no threshold."""
    crossed = [each for each in thresholds if is_crossed(each, signals.get(each.signal), reclaimed=False)]
    crossed += [
        each
        for each in before.met
        if each not in crossed and is_crossed(each, signals.get(each.signal), reclaimed=True)
    ]
    since = {threshold: before.since.get(threshold, now) for threshold in crossed}
    seen_now = dict.fromkeys((CONDITIONS[threshold.signal] for threshold in crossed), now)
    last_seen = {**before.last_seen, **seen_now}
    return Pressure(
        conditions=frozenset(kind for kind, at in last_seen.items() if now - at < transition_period),
        met=tuple(threshold for threshold, at in since.items() if now - at >= threshold.grace),
        since=since,
        last_seen=last_seen,
        read_at={name: signal.at_ns for name, signal in signals.items()},
    )


def to_act_on(now: Pressure, before: Pressure) -> tuple[Threshold, ...]:
    """The thresholds that call for action by other figures than those acted on before; memory comes first,
    otherwise the order of the configuration counts. One observation is never acted on twice. (The kubelet
    wants newer ones, and waits while its clock has been set back.)
    """
    fresh = [
        each
        for each in now.met
        if not (read_at := now.read_at[each.signal]) or read_at != before.read_at.get(each.signal)
    ]
    return tuple(sorted(fresh, key=lambda each: each.signal not in _MEMORY_FIRST))


def is_relieved(thresholds: Sequence[Threshold], signals: Mapping[str, Signal]) -> bool:
    """Whether what was reclaimed on the node is enough, with the minimum reclaim of each threshold."""
    return not any(is_crossed(each, signals.get(each.signal), reclaimed=True) for each in thresholds)
