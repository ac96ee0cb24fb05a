"""Limits as properties of a systemd unit. Pure.

Rules: libcontainer's systemd manager, which the kubelet uses. What systemd has no property for (huge pages)
is written to the cgroup's files beside it, and so is everything else, so that both agree.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from trio_kubelet.cgroups.limits import Limits, cpu_weight

Property: TypeAlias = tuple[str, tuple[str, object]]
"""Name, and value as a D-Bus variant."""

INFINITY: Final = 2**64 - 1
_DEFAULT_PERIOD_US = 100_000
_QUOTA_STEP_US = 10_000
"""systemd keeps a quota as whole percents of a CPU."""

_FILES: Final = {
    "memory.high": "MemoryHigh",
    "memory.low": "MemoryLow",
    "memory.min": "MemoryMin",
    "memory.max": "MemoryMax",
    "memory.swap.max": "MemorySwapMax",
}


def unit_name(cgroup: str) -> str:
    """The slice whose cgroup this is."""
    return cgroup.rpartition("/")[2]


def with_whole_percents(limits: Limits) -> Limits:
    """The quota as systemd will have it, rounded up: containers then still get what they ask for."""
    if limits.cpu_quota is None or limits.cpu_quota <= 0:
        return limits
    period = limits.cpu_period or _DEFAULT_PERIOD_US
    rounded = _per_second(limits.cpu_quota, period)
    if rounded == limits.cpu_quota * 1_000_000 // period:
        return limits
    return msgspec.structs.replace(limits, cpu_quota=rounded * period // 1_000_000)


def _per_second(quota: int, period: int) -> int:
    """A quota in µs of CPU a second, as systemd keeps it."""
    return -(-(quota * 1_000_000 // period) // _QUOTA_STEP_US) * _QUOTA_STEP_US


def new_slice(cgroup: str) -> list[Property]:
    """What every slice is made with, besides its limits."""
    parent = unit_name(cgroup.rpartition("/")[0]) or "-.slice"
    name = unit_name(cgroup)
    return [
        ("Description", ("s", f"libcontainer container {name}")),
        ("Wants", ("as", [parent])),
        ("MemoryAccounting", ("b", True)),
        ("CPUAccounting", ("b", True)),
        ("IOAccounting", ("b", True)),
        ("TasksAccounting", ("b", True)),
        ("DefaultDependencies", ("b", False)),
    ]


def properties(limits: Limits, *, v2: bool) -> list[Property]:
    """The limits that systemd knows. `limits` are what `with_whole_percents` made of them."""
    found: list[Property] = []

    def add(name: str, value: int) -> None:
        found.append((name, ("t", value)))

    if limits.memory:
        add("MemoryMax" if v2 else "MemoryLimit", _or_infinity(limits.memory))
    if limits.cpu_shares is not None:
        add(*(("CPUWeight", cpu_weight(limits.cpu_shares)) if v2 else ("CPUShares", limits.cpu_shares)))
    if limits.cpu_period:
        add("CPUQuotaPeriodUSec", limits.cpu_period)
    if limits.cpu_quota or limits.cpu_period:
        quota, period = limits.cpu_quota or 0, limits.cpu_period or _DEFAULT_PERIOD_US
        add("CPUQuotaPerSecUSec", _per_second(quota, period) if quota > 0 else INFINITY)
    if limits.pids is not None:
        add("TasksMax", _or_infinity(limits.pids) if limits.pids else 1)
    if limits.cpuset and v2:
        found.append(("AllowedCPUs", ("ay", cpu_bits(limits.cpuset))))
    if v2:
        for name, value in sorted(limits.unified.items()):
            if name in _FILES:
                add(_FILES[name], INFINITY if value == "max" else int(value))
    return found


def cpu_bits(cpus: str) -> bytes:
    """A list of CPUs as a bit mask, the lowest byte first."""
    mask = 0
    for part in cpus.split(","):
        first, _, last = part.strip().partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            mask |= 1 << cpu
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _or_infinity(limit: int) -> int:
    return INFINITY if limit < 0 else limit
