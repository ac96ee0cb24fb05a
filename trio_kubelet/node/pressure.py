"""Which pressures the node is under: eviction thresholds against what is left of memory, disk and PIDs. Pure.

A threshold that is crossed makes its condition true at once, whatever its grace period, which only delays
evictions; the condition stays for `evictionPressureTransitionPeriod` after it was last seen
(kubelet: `pkg/kubelet/eviction`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trio_kubelet.common.duration import parse_duration
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import threshold_amount
from trio_kubelet.node.conditions import DISK, MEMORY, PID

_CONDITIONS: Final = {
    "memory.available": MEMORY,
    "allocatableMemory.available": MEMORY,
    "nodefs.available": DISK,
    "nodefs.inodesFree": DISK,
    "imagefs.available": DISK,
    "imagefs.inodesFree": DISK,
    "containerfs.available": DISK,
    "containerfs.inodesFree": DISK,
    "pid.available": PID,
}


class Threshold(msgspec.Struct, frozen=True):
    """The least of a signal that may be left: a quantity or a percentage. `grace` in seconds, 0 for a hard
    threshold; once it was met for that long, `reclaim` more has to be free for it to be over.
    """

    signal: str
    least: str
    grace: float = 0.0
    reclaim: str = ""


class Signal(msgspec.Struct, frozen=True):
    """What is left of something, and how much there is in all; bytes, inodes or PIDs."""

    available: int
    capacity: int


class Pressure(msgspec.Struct, frozen=True):
    """What is known from one observation to the next; moments are seconds of a clock that only goes on.

    `conditions` are those in force; `met` the thresholds that call for an eviction, their grace being over.
    """

    conditions: frozenset[str] = frozenset()
    met: tuple[Threshold, ...] = ()
    since: Mapping[Threshold, float] = {}
    last_seen: Mapping[str, float] = {}


def thresholds_of(config: KubeletConfiguration, *, ignore_eviction: bool = False) -> tuple[Threshold, ...]:
    """The thresholds of a configuration, which has been validated."""
    reclaim = config.eviction_minimum_reclaim
    hard = [
        Threshold(signal, least, 0.0, reclaim.get(signal, ""))
        for signal, least in config.eviction_hard.items()
        if least not in ("0%", "100%")
    ]
    soft = [
        Threshold(
            signal, least, parse_duration(config.eviction_soft_grace_period[signal]), reclaim.get(signal, "")
        )
        for signal, least in config.eviction_soft.items()
        if least not in ("0%", "100%")
    ]
    enforced = "pods" in config.enforce_node_allocatable and not ignore_eviction
    of_pods = [
        msgspec.structs.replace(threshold, signal="allocatableMemory.available")
        for threshold in hard
        if enforced and threshold.signal == "memory.available"
    ]
    return (*hard, *soft, *of_pods)


def for_filesystems(
    thresholds: Sequence[Threshold], *, own_image_fs: bool, split: bool
) -> tuple[Threshold, ...]:
    """The thresholds with those of the containers' filesystem, which cannot be set: they are those of the
    images' if that is one of its own and not `split` from the containers', else those of the node's.
    """
    source = "imagefs" if own_image_fs and not split else "nodefs"
    kept = [threshold for threshold in thresholds if not threshold.signal.startswith("containerfs.")]
    copied = [
        msgspec.structs.replace(threshold, signal=threshold.signal.replace(source, "containerfs", 1))
        for threshold in kept
        if threshold.signal.startswith(f"{source}.")
    ]
    return (*kept, *copied)


def observe(
    thresholds: Sequence[Threshold],
    signals: Mapping[str, Signal],
    before: Pressure,
    transition_period: float,
    now: float,
) -> Pressure:
    """What follows from the signals; one that could not be read meets no threshold."""
    crossed = [threshold for threshold in thresholds if _is_crossed(threshold, signals, reclaimed=False)]
    crossed += [
        threshold
        for threshold in before.met
        if threshold not in crossed and _is_crossed(threshold, signals, reclaimed=True)
    ]
    since = {threshold: before.since.get(threshold, now) for threshold in crossed}
    seen_now = dict.fromkeys((_CONDITIONS[threshold.signal] for threshold in crossed), now)
    last_seen = {**before.last_seen, **seen_now}
    return Pressure(
        conditions=frozenset(kind for kind, at in last_seen.items() if now - at < transition_period),
        met=tuple(threshold for threshold, at in since.items() if now - at >= threshold.grace),
        since=since,
        last_seen=last_seen,
    )


def _is_crossed(threshold: Threshold, signals: Mapping[str, Signal], *, reclaimed: bool) -> bool:
    signal = signals.get(threshold.signal)
    if signal is None:
        return False
    least = threshold_amount(threshold.least, signal.capacity)
    if reclaimed:
        least += threshold_amount(threshold.reclaim, signal.capacity)
    return signal.available < least
