"""Which memory of which NUMA node belongs to which container, as values. Pure.

Sizes are in bytes. Nodes that once served a container together form a group, and serve only it or such as it
until all of that memory is free again. Rules: the kubelet's memory manager (`memorymanager/policy_static.go`,
KEP-1769).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

MEMORY = "memory"
POLICY = "Static"
NO_POLICY = "None"
"""The memory manager's policies."""


class MemoryTable(msgspec.Struct, frozen=True, rename={"system_reserved": "systemReserved"}):
    """One kind of memory (`memory`, `hugepages-2Mi` …) of a NUMA node. `reserved`: given to containers."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int

    def give(self, wanted: int) -> tuple[MemoryTable, int]:
        """As much of `wanted` as is free; and how much is still wanted."""
        given = min(self.free, wanted)
        return self._with(given), wanted - given

    def take_back(self, returned: int) -> tuple[MemoryTable, int]:
        """As much of `returned` as had been given; and what belongs to other nodes."""
        taken = min(self.reserved, returned)
        return self._with(-taken), returned - taken

    def _with(self, more: int) -> MemoryTable:
        return msgspec.structs.replace(self, reserved=self.reserved + more, free=self.free - more)


class NodeMemory(
    msgspec.Struct, frozen=True, rename={"assignments": "numberOfAssignments", "tables": "memoryMap"}
):
    """The memory of a NUMA node. `assignments`: how many blocks are on it; `cells`: its group."""

    assignments: int
    tables: Mapping[str, MemoryTable]
    cells: tuple[int, ...]


class Block(msgspec.Struct, frozen=True, rename={"nodes": "numaAffinity", "kind": "type"}):
    """Memory of one kind that a container was given, somewhere on `nodes`."""

    nodes: tuple[int, ...]
    kind: str
    size: int


Machine: TypeAlias = Mapping[int, NodeMemory]
"""By NUMA node."""
Assigned: TypeAlias = Mapping[str, Mapping[str, tuple[Block, ...]]]
"""By pod UID, then by container."""


class MemoryState(msgspec.Struct, frozen=True):
    """Who has which memory. `pods`: of pods that were given theirs as a whole, by UID; what `assigned` says
    of their containers are parts of that, several maybe the same.
    """

    machine: Machine = {}
    assigned: Assigned = {}
    pods: Mapping[str, tuple[Block, ...]] = {}

    def of(self, uid: str, container: str) -> tuple[Block, ...] | None:
        return self.assigned.get(uid, {}).get(container)

    def with_blocks(self, uid: str, container: str, blocks: Sequence[Block]) -> MemoryState:
        """Says so of the container; the machine is as it was."""
        own = {**self.assigned.get(uid, {}), container: tuple(blocks)}
        return msgspec.structs.replace(self, assigned={**self.assigned, uid: own})

    def without_container(self, uid: str, container: str) -> MemoryState:
        """The container's memory is free; that of a pod as a whole with its last container."""
        blocks = self.of(uid, container)
        if blocks is None:
            return self
        own, pods = {name: of for name, of in self.assigned[uid].items() if name != container}, self.pods
        if uid in pods:
            blocks = () if own else pods[uid]
            pods = pods if own else {pod: of for pod, of in pods.items() if pod != uid}
        rest = {pod: of for pod, of in self.assigned.items() if pod != uid}
        return MemoryState(given_back(self.machine, blocks), {**rest, uid: own} if own else rest, pods)


def given(machine: Machine, block: Block) -> Machine:
    """The machine after the block was given: each node of it is in the group, the first ones give most."""
    changed, wanted = dict(machine), block.size
    for number in block.nodes:
        node = changed[number]
        tables = dict(node.tables)
        if wanted:
            tables[block.kind], wanted = tables[block.kind].give(wanted)
        changed[number] = NodeMemory(node.assignments + 1, tables, block.nodes)
    return changed


def given_back(machine: Machine, blocks: Iterable[Block]) -> Machine:
    """The machine after the blocks were given back. A node without blocks is in no group."""
    changed = dict(machine)
    for block in blocks:
        returned = block.size
        for number in block.nodes:
            node = changed[number]
            tables = dict(node.tables)
            if returned:
                tables[block.kind], returned = tables[block.kind].take_back(returned)
            count = node.assignments - 1
            changed[number] = NodeMemory(count, tables, node.cells if count else (number,))
    return changed
