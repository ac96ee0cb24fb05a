"""Where on the machine something could be given from: hints, as values (kubelet: `TopologyHint`).

A mask has bit n set for NUMA node n. A provider gives, for each resource that a pod or container asks for,
the sets of nodes that could serve it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Hint(NamedTuple):
    """One set of NUMA nodes that would do. `mask` None: anywhere; `preferred`: none smaller would do."""

    mask: int | None
    preferred: bool


Hints: TypeAlias = Mapping[str, Sequence[Hint] | None]
"""By resource. None: the resource has no preference; an empty list: no set of nodes can serve it."""


def mask_of(nodes: Sequence[int]) -> int:
    """The mask of NUMA nodes by number."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def has_node(mask: int, node: int) -> bool:
    """Whether NUMA node `node` is in the mask; -1 (no node) never is."""
    return node >= 0 and bool(mask >> node & 1)
