"""Sets of CPUs and how they are written: `0-3,8` (kernel and kubelet alike)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from trio_kubelet.common.go_words import parse_integer

CPUSet: TypeAlias = frozenset[int]

NONE: CPUSet = frozenset()


def parse_cpus(text: str) -> CPUSet:
    """The CPUs of a list such as `0-3,8`; empty for an empty text. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        low = parse_integer(first)
        high = parse_integer(last) if dash else low
        if low > high:
            raise ValueError(f'invalid range "{part}" ({low} > {high})')
        if high > 65_535:
            raise ValueError(f'"{part}" is no range of CPUs')
        found.update(range(low, high + 1))
    return frozenset(found)


def cpus_text(cpus: Iterable[int]) -> str:
    """The list that stands for `cpus`, ranges joined."""
    parts: list[str] = []
    run: list[int] = []
    for cpu in [*sorted(cpus), -1]:
        if run and cpu != run[-1] + 1:
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        run.append(cpu)
    return ",".join(parts)
