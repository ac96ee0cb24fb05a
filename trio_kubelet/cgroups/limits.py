"""What a cgroup is limited to, and how the two versions of cgroups say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_SHARES = 262_144


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a cgroup is limited to; None or empty leaves a limit as it is, -1 lifts it. Bytes and µs.

    `cpuset` is a list of CPUs as the kernel writes it (`0-3,8`); `huge_pages` is by page size in the kernel's
    spelling (`2MB`); `unified` are files of version 2.
    """

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory: int | None = None
    pids: int | None = None
    cpuset: str = ""
    huge_pages: Mapping[str, int] = {}
    unified: Mapping[str, str] = {}


def with_limits(old: Limits, new: Limits) -> Limits:
    """`old` with what `new` says."""
    said: dict[str, Any] = {name: value for name, value in msgspec.structs.asdict(new).items() if value}
    huge_pages, unified = {**old.huge_pages, **new.huge_pages}, {**old.unified, **new.unified}
    return msgspec.structs.replace(old, **{**said, "huge_pages": huge_pages, "unified": unified})


def cpu_weight(shares: int) -> int:
    """cpu.weight of version 2 for cpu.shares of version 1 (KEP-2254)."""
    return 1 + (min(shares, MAX_SHARES) - 2) * 9999 // 262_142


def cpu_shares(weight: int) -> int:
    """cpu.shares of version 1 for cpu.weight of version 2; what `cpu_weight` rounds off is lost."""
    return (weight - 1) * 262_142 // 9999 + 2
