"""Pods' stats for tests, from a few figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trio_kubelet.stats.summary_types import (
    ContainerStats,
    FsStats,
    MemoryStats,
    PodReference,
    PodStats,
    ProcessStats,
    VolumeStats,
)


def pod_stats(uid: str, use: Mapping[str, Any]) -> PodStats:
    """`mem`, `procs`, `es` (ephemeral storage), `c` (containers), `v` (volumes: bytes and inodes)."""
    return PodStats(
        pod_ref=PodReference(uid, "default", uid),
        start_time="",
        containers=[
            ContainerStats(
                name=each["n"],
                start_time="",
                memory=_memory(each.get("mem")),
                rootfs=_files(each.get("root")),
                logs=_files(each.get("logs")),
            )
            for each in use.get("c") or ()
        ],
        memory=_memory(use.get("mem")),
        volume=[
            VolumeStats(time="", name=name, used_bytes=used, inodes_used=inodes)
            for name, (used, inodes) in (use.get("v") or {}).items()
        ],
        ephemeral_storage=_files([use["es"]]) if "es" in use else None,
        process_stats=ProcessStats(use["procs"]) if "procs" in use else None,
    )


def _memory(working_set: int | None) -> MemoryStats | None:
    return None if working_set is None else MemoryStats(time="", working_set_bytes=working_set)


def _files(figures: Sequence[int] | None) -> FsStats | None:
    if figures is None:
        return None
    return FsStats(time="", used_bytes=figures[0], inodes_used=figures[1] if len(figures) > 1 else None)
