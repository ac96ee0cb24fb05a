"""Eviction thresholds: what may be left of which signal before the node acts. Pure.

The signals, what each is short of and which condition of the Node it turns are the kubelet's
(`pkg/kubelet/eviction`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trio_kubelet.api.quantity import BINARY_SI, Quantity, parse
from trio_kubelet.common.duration import parse_duration
from trio_kubelet.config.types import KubeletConfiguration, thresholds_in_force
from trio_kubelet.machine.facts import threshold_amount
from trio_kubelet.node.conditions import DISK, MEMORY, PID

MEMORY_AVAILABLE: Final = "memory.available"
ALLOCATABLE_MEMORY: Final = "allocatableMemory.available"
PIDS_AVAILABLE: Final = "pid.available"

CONDITIONS: Final = {
    MEMORY_AVAILABLE: MEMORY,
    ALLOCATABLE_MEMORY: MEMORY,
    "nodefs.available": DISK,
    "nodefs.inodesFree": DISK,
    "imagefs.available": DISK,
    "imagefs.inodesFree": DISK,
    "containerfs.available": DISK,
    "containerfs.inodesFree": DISK,
    PIDS_AVAILABLE: PID,
}
"""The condition that a signal under its threshold turns."""

INODES: Final = "inodes"
PIDS: Final = "pids"
STORAGE: Final = "ephemeral-storage"


class Layout(enum.Enum):
    """Where images and writable layers are: with the node's files, both on a filesystem of their own, or only
    the images.
    """

    ONE = "one filesystem"
    IMAGES_APART = "images and containers apart"
    SPLIT = "images apart, containers on the node's"


class Threshold(msgspec.Struct, frozen=True):
    """The least of a signal that may be left: a quantity or a percentage. `grace` in seconds, 0 for a hard
    threshold; once it was met for that long, `reclaim` more has to be free for it to be over.
    """

    signal: str
    least: str
    grace: float = 0.0
    reclaim: str = ""

    @property
    def hard(self) -> bool:
        """Whether it evicts at once."""
        return self.grace == 0


class Signal(msgspec.Struct, frozen=True):
    """What is left of something, and how much there is in all; bytes, inodes or PIDs, read at `at_ns`.

    Of memory, `cache` is the page cache; `idle` of it is not counted as used, the rest is, although the
    kernel could drop much of it.
    """

    available: int
    capacity: int
    at_ns: int = 0
    cache: int = 0
    idle: int = 0


def resource_of(signal: str) -> str:
    """What a signal is short of, as texts and requests name it."""
    if signal in (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY):
        return "memory"
    if signal == PIDS_AVAILABLE:
        return PIDS
    return INODES if signal.endswith(".inodesFree") else STORAGE


def is_crossed(threshold: Threshold, signal: Signal | None, *, reclaimed: bool) -> bool:
    """Whether less is left than may be; with `reclaimed` the minimum reclaim has to be left besides. A signal
    that could not be read crosses nothing.
    """
    if signal is None:
        return False
    least = threshold_amount(threshold.least, signal.capacity)
    if reclaimed:
        least += threshold_amount(threshold.reclaim, signal.capacity)
    return signal.available < least


def spelled(least: str, capacity: int) -> str:
    """A threshold as messages have it: a quantity as it was written, a percentage as what it comes to."""
    if least.endswith("%"):
        return str(Quantity(threshold_amount(least, capacity), 0, BINARY_SI))
    return str(parse(least))


def thresholds_of(config: KubeletConfiguration, *, ignore_eviction: bool = False) -> tuple[Threshold, ...]:
    """The thresholds of a configuration, which has been validated."""
    reclaim = config.eviction_minimum_reclaim
    hard = [
        Threshold(signal, least, 0.0, reclaim.get(signal, ""))
        for signal, least in thresholds_in_force(config.eviction_hard).items()
    ]
    soft = [
        Threshold(
            signal, least, parse_duration(config.eviction_soft_grace_period[signal]), reclaim.get(signal, "")
        )
        for signal, least in thresholds_in_force(config.eviction_soft).items()
    ]
    enforced = "pods" in config.enforce_node_allocatable and not ignore_eviction
    of_pods = [
        msgspec.structs.replace(threshold, signal=ALLOCATABLE_MEMORY)
        for threshold in (*hard, *soft)  # one without grace is as hard as the others
        if enforced and threshold.hard and threshold.signal == MEMORY_AVAILABLE
    ]
    return (*hard, *soft, *of_pods)


def for_filesystems(thresholds: Sequence[Threshold], layout: Layout) -> tuple[Threshold, ...]:
    """The thresholds with those of the containers' filesystem, which cannot be set: they are those of the
    images' where both are together on one of their own, else those of the node's.
    """
    source = "imagefs" if layout is Layout.IMAGES_APART else "nodefs"
    kept = [threshold for threshold in thresholds if not threshold.signal.startswith("containerfs.")]
    copied = [
        msgspec.structs.replace(threshold, signal=threshold.signal.replace(source, "containerfs", 1))
        for threshold in kept
        if threshold.signal.startswith(f"{source}.")
    ]
    return (*kept, *copied)


REST: Final = 5.0
"""Seconds between looks at a node that has plenty of everything (the kubelet: 10)."""

CALM: Final = 0.25
"""Seconds between looks where some signal could be at its threshold by then. From the crossing of a
threshold to the SIGTERM of the pod that goes it is to take a second at most, and not everything that runs out
can be told by the kernel. What comes after the look (who uses how much, the runtime's way to the process)
takes up to half a second on a busy machine.
"""

SHORTEST: Final = 0.05

FASTEST: Final = {"memory": 4 << 30, STORAGE: 4 << 30, INODES: 200_000, PIDS: 20_000}
"""What one CPU can take of a resource in a second, if it does nothing else: pages and blocks are written,
files and processes made no faster.
"""


def pause_before_next(
    thresholds: Sequence[Threshold],
    signals: Mapping[str, Signal],
    before: Mapping[str, Signal],
    elapsed: float,
    cpus: int,
) -> float:
    """Seconds until the next look: as long as nothing can be at its threshold even if all `cpus` take it as
    fast as they can, but not less than `CALM` for that; half of what is left until some threshold is crossed
    at the rate since `before`, which is `elapsed` seconds ago, where that is sooner.
    """
    pause = REST
    for threshold in thresholds:
        now, then = signals.get(threshold.signal), before.get(threshold.signal)
        if now is None:
            continue
        room = max(0, now.available - threshold_amount(threshold.least, now.capacity))
        pause = min(pause, max(CALM, room / (cpus * FASTEST[resource_of(threshold.signal)])))
        taken = then.available - now.available if then is not None else 0
        if room > 0 and taken > 0 and elapsed > 0:
            pause = min(pause, max(SHORTEST, room * elapsed / taken / 2))
    return pause
