"""The machine's NUMA nodes and their memory, from sysfs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from trio_kubelet.api.quantity import BINARY_SI, Quantity

_NODES: Final = "/sys/devices/system/node"
_KIB: Final = 1024


class NUMAMemory(msgspec.Struct, frozen=True):
    """What a NUMA node has of memory, in bytes. `huge_pages`: by resource (`hugepages-2Mi`); `memory` counts
    them too.
    """

    number: int
    memory: int
    huge_pages: Mapping[str, int] = {}


def numa_nodes(directory: str = _NODES) -> tuple[int, ...]:
    """Their numbers; (0,) on a machine that does not tell. Blocking, but for a few microseconds in sysfs."""
    try:
        names = os.listdir(directory)
    except OSError:
        return (0,)
    return tuple(sorted(_numbers(names))) or (0,)


def numa_memory(directory: str = _NODES) -> tuple[NUMAMemory, ...]:
    """The memory of each node. A machine without NUMA has one node, whose memory nobody tells (cAdvisor says
    0 of it). Blocking. Raises OSError, ValueError when the kernel does not tell.
    """
    return tuple(_memory_of(Path(directory, f"node{number}"), number) for number in numa_nodes(directory))


def _numbers(names: Iterable[str]) -> Iterator[int]:
    found = (re.fullmatch(r"node(\d+)", name) for name in names)
    return (int(match[1]) for match in found if match)


def _memory_of(node: Path, number: int) -> NUMAMemory:
    try:
        told = (node / "meminfo").read_text()
    except FileNotFoundError:
        return NUMAMemory(number, 0)
    total = re.search(r"^Node \d+ MemTotal: +(\d+) kB$", told, re.MULTILINE)
    if total is None:
        raise ValueError(f"{node}/meminfo has no line MemTotal")
    pages = {}
    for directory in sorted(node.glob("hugepages/hugepages-*kB")):
        size = int(directory.name.removeprefix("hugepages-").removesuffix("kB")) * _KIB
        count = int((directory / "nr_hugepages").read_text())
        pages[f"hugepages-{Quantity(size, 0, BINARY_SI)}"] = size * count
    return NUMAMemory(number, int(total[1]) * _KIB, pages)
