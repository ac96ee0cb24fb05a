"""Which devices a container gets. Pure; follows the kubelet's order (`devicesToAllocate`).

Devices that earlier init containers of the pod leave come first, then those near the NUMA nodes that were
agreed on, then what the plugin prefers, then the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from trio_kubelet.devices.values import Device
from trio_kubelet.placement.hints import Hint, has_node


class Free(NamedTuple):
    """Devices that can be given, by where they are: near the agreed nodes, near others, near none."""

    aligned: frozenset[str]
    unaligned: frozenset[str]
    nowhere: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.aligned | self.unaligned | self.nowhere


class PreferredAllocation(NamedTuple):
    """What the plugin is asked to choose from (`GetPreferredAllocation`)."""

    available: frozenset[str]
    must_include: frozenset[str]


def sort_free(devices: Mapping[str, Device], free: Iterable[str], affinity: Hint | None) -> Free:
    """`free` by where the devices are. Without an affinity, or when no device says where it is, it does not
    matter.
    """
    ids = frozenset(free)
    if affinity is None or affinity.mask is None or not any(each.nodes for each in devices.values()):
        return Free(frozenset(), frozenset(), ids)
    aligned, unaligned = set(), set()
    for id in ids:
        nodes = devices[id].nodes
        if any(has_node(affinity.mask, node) for node in nodes):
            aligned.add(id)
        elif nodes:
            unaligned.add(id)
    return Free(frozenset(aligned), frozenset(unaligned), ids - aligned - unaligned)


def question(required: int, reusable: Collection[str], free: Free) -> PreferredAllocation | None:
    """What to ask the plugin; None when there is nothing to choose."""
    picked = frozenset(in_order(reusable)[:required])
    needed = required - len(picked)
    aligned = free.aligned - picked
    if needed == 0 or needed == len(aligned) or needed > len(free.all - picked):
        return None
    if needed < len(aligned):
        return PreferredAllocation(aligned | picked, picked)
    picked |= aligned
    return PreferredAllocation(free.all | picked, picked)


def choose(
    required: int, reusable: Collection[str], free: Free, preferred: Collection[str] = ()
) -> tuple[str, ...] | None:
    """`required` devices, None if there are not so many. What the plugin prefers counts where it is free."""
    wanted = frozenset(preferred)
    if required - len(set(reusable)) < len(free.aligned - set(reusable)):
        tiers: tuple[Collection[str], ...] = (reusable, wanted & free.aligned, free.aligned)
    else:
        tiers = (reusable, free.aligned, wanted & free.all, free.unaligned, free.nowhere)
    picked: dict[str, None] = {}
    for tier in tiers:
        for id in in_order(tier):
            if len(picked) == required:
                break
            picked[id] = None
    return tuple(picked) if len(picked) == required else None


def in_order(ids: Iterable[str]) -> list[str]:
    """Ids as people count them: dev-2 before dev-10."""
    return sorted(ids, key=_natural)


def _natural(id: str) -> tuple[list[tuple[int, str]], str]:
    parts = re.split(r"(\d+)", id)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts], id
