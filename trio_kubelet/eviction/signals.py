"""Reads what eviction thresholds are compared with: memory, filesystems and PIDs that are left. Blocking."""

from __future__ import annotations

from typing import Final

import msgspec

from trio_kubelet.common.clock import Clock
from trio_kubelet.eviction.thresholds import (
    ALLOCATABLE_MEMORY,
    MEMORY_AVAILABLE,
    PIDS_AVAILABLE,
    Layout,
    Signal,
)
from trio_kubelet.machine.cgroup_reader import CgroupReader
from trio_kubelet.machine.node_reader import are_apart, filesystem_of, processes_of_machine

_UNLIMITED: Final = 1 << 62


class SignalPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look. `memory` is what the machine has, in bytes; `pods_cgroup` is above all pods'; the
    filesystems of images and containers are "" while the runtime has not named them.
    """

    memory: int
    root_dir: str
    pods_cgroup: str
    image_fs: str = ""
    container_fs: str = ""


def read_signals(places: SignalPlaces, cgroups: CgroupReader, clock: Clock) -> dict[str, Signal]:
    """All signals that can be read."""
    signals: dict[str, Signal] = {}
    whole, pods = cgroups.uses(["/", places.pods_cgroup], processes=False)
    if whole is not None and whole.memory is not None:
        left = max(0, places.memory - whole.working_set)
        signals[MEMORY_AVAILABLE] = Signal(left, places.memory, whole.at_ns, whole.cache, whole.inactive_file)
    if pods is not None and pods.memory is not None and 0 < pods.memory_limit < _UNLIMITED:
        limit = pods.memory_limit
        signals[ALLOCATABLE_MEMORY] = Signal(
            max(0, limit - pods.working_set), limit, pods.at_ns, pods.cache, pods.inactive_file
        )
    named = {"nodefs": places.root_dir, "imagefs": places.image_fs, "containerfs": places.container_fs}
    for name, path in named.items():
        found = filesystem_of(path, clock) if path else None
        if found is not None:
            signals[f"{name}.available"] = Signal(found.available, found.capacity, found.at_ns)
            if found.inodes:  # Btrfs has as many as there is room for, and tells none
                signals[f"{name}.inodesFree"] = Signal(found.inodes_free, found.inodes, found.at_ns)
    tasks = processes_of_machine(clock)
    if tasks.limit is not None and tasks.running is not None:
        signals[PIDS_AVAILABLE] = Signal(tasks.limit - tasks.running, tasks.limit, tasks.at_ns)
    return signals


def layout_of(places: SignalPlaces) -> Layout:
    """Which of the three layouts of disks these places are. Blocking."""
    if not places.image_fs or not are_apart(places.image_fs, places.root_dir):
        return Layout.ONE
    return Layout.SPLIT if are_apart(places.image_fs, places.container_fs) else Layout.IMAGES_APART
