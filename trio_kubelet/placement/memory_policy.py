"""From which NUMA nodes containers have their memory: the memory manager's policy `Static`. Pure.

Containers of Guaranteed pods have the memory and the huge pages they ask for on as few NUMA nodes as will do.
Rules: the kubelet's `memorymanager/policy_static.go`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from trio_kubelet.api import quantity, v1
from trio_kubelet.api.containers import is_sidecar, regular_containers
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.hints import Hint, Hints, has_node, mask_of
from trio_kubelet.placement.memory_state import (
    MEMORY,
    Block,
    Machine,
    MemoryState,
    MemoryTable,
    NodeMemory,
    given,
)
from trio_kubelet.placement.pod_level import has_pod_resources
from trio_kubelet.podinfo.amounts import Amounts, add, raise_to
from trio_kubelet.podinfo.qos import QOSClass, pod_qos

Reusable: TypeAlias = Mapping[tuple[int, str], int]
"""What init containers that end leave to later containers of their pod: bytes by mask of nodes and kind."""


class NoMemory(Exception):
    """The container cannot be given its memory; the text is the kubelet's."""


class InvalidMemory(Exception):
    """The recorded assignments do not fit the machine or the configuration."""


class MemoryPolicy(msgspec.Struct, frozen=True):
    """The policy on this machine. `reserved`: bytes kept for the system, by node and kind."""

    nodes: Sequence[NUMAMemory]
    reserved: Mapping[int, Mapping[str, int]]

    def initial(self) -> Machine:
        """The machine with nothing given. Memory set aside for huge pages is no other memory."""
        return {node.number: NodeMemory(0, dict(self._tables(node)), (node.number,)) for node in self.nodes}

    def _tables(self, node: NUMAMemory) -> Iterator[tuple[str, MemoryTable]]:
        reserved = self.reserved.get(node.number, {})
        for kind, total in node.huge_pages.items():
            free = max(0, total - reserved.get(kind, 0))
            yield kind, MemoryTable(total, reserved.get(kind, 0), free, 0, free)
        kept = reserved.get(MEMORY, 0)
        free = max(0, node.memory - kept - sum(node.huge_pages.values()))
        yield MEMORY, MemoryTable(node.memory, kept, free, 0, free)

    def check(self, state: MemoryState) -> MemoryState:
        """The state as it may be gone on with; raises InvalidMemory with the kubelet's words."""
        if not state.machine:
            if state.assigned:
                raise InvalidMemory(
                    "[memorymanager] machine state can not be empty when it has memory assignments"
                )
            return msgspec.structs.replace(state, machine=self.initial())
        expected = self.initial()
        for uid, containers in state.assigned.items():
            for name, blocks in containers.items():
                for block in blocks:
                    where = f"[memorymanager] (pod: {uid}, container: {name})"
                    if not expected.keys() >= set(block.nodes):
                        raise InvalidMemory(
                            f"{where} the memory assignment uses the NUMA that does not exist"
                        )
                    if any(block.kind not in expected[node].tables for node in block.nodes):
                        raise InvalidMemory(
                            f"{where} the memory assignment uses memory resource that does not exist"
                        )
                    expected = given(expected, block)
        if not _equal(state.machine, expected):
            raise InvalidMemory("[memorymanager] the expected machine state is different from the real one")
        return state

    # Hints

    def hints(self, state: MemoryState, pod: v1.Pod, container: v1.Container, reusable: Reusable) -> Hints:
        """From which NUMA nodes the container could be given its memory."""
        if not manages(pod):
            return {}
        try:
            wanted = wanted_by(container)
        except NoMemory:
            return {}
        known = state.of(pod.metadata.uid, container.name)
        if known is not None:
            return _known_hints(known, wanted)
        return self._hints(state.machine, wanted, reusable)

    def pod_hints(self, state: MemoryState, pod: v1.Pod, reusable: Reusable) -> Hints:
        """From which NUMA nodes the pod as a whole could be given its memory."""
        if not manages(pod):
            return {}
        try:
            wanted = wanted_by_pod(pod)
        except NoMemory:
            return {}
        for container in regular_containers(pod.spec):
            known = state.of(pod.metadata.uid, container.name)
            if known is not None:
                return _known_hints(known, wanted)
        return self._hints(state.machine, wanted, reusable)

    def _hints(self, machine: Machine, wanted: Amounts, reusable: Reusable) -> dict[str, list[Hint]]:
        found: list[tuple[int, ...]] = []
        narrowest = len(machine)
        for width in range(1, len(machine) + 1):
            for nodes in itertools.combinations(sorted(machine), width):
                tables = [machine[node].tables for node in nodes]
                if not _covers(wanted, {k: _sum(tables, k, "allocatable") for k in wanted}):
                    continue
                narrowest = min(narrowest, width)
                free = {k: _sum(tables, k, "free") + reusable.get((mask_of(nodes), k), 0) for k in wanted}
                if _may_group(machine, nodes) and _covers(wanted, free):
                    found.append(nodes)
        if not found:
            return {}
        hints = [Hint(mask_of(nodes), len(nodes) == narrowest) for nodes in found]
        return dict.fromkeys(wanted, hints)

    # Giving

    def allocate(
        self,
        state: MemoryState,
        pod: v1.Pod,
        container: v1.Container,
        affinity: Hint | None,
        reusable: Reusable,
    ) -> MemoryState:
        """The state after the container was given its memory; the same if it has it. Raises NoMemory."""
        uid = pod.metadata.uid
        if state.of(uid, container.name) is not None:
            return state
        wanted = wanted_by(container)
        nodes = self._choose(state.machine, wanted, affinity, reusable)
        machine, blocks = state.machine, []
        for kind, size in sorted(wanted.items()):
            blocks.append(Block(nodes, kind, size))
            more = max(0, size - reusable.get((mask_of(nodes), kind), 0))
            machine = given(machine, Block(nodes, kind, more))
        state = msgspec.structs.replace(state, machine=machine).with_blocks(uid, container.name, blocks)
        return _counted_once(state, pod, container, blocks)

    def _choose(
        self, machine: Machine, wanted: Amounts, affinity: Hint | None, reusable: Reusable
    ) -> tuple[int, ...]:
        """The nodes of the affinity; those that were hinted at, if it names none or not enough. Raises
        NoMemory.
        """
        best = affinity or Hint(None, False)
        if best.mask is None:
            hints = self._hints(machine, wanted, reusable)
            if MEMORY not in hints:
                raise NoMemory(
                    "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough "
                    "memory is available"
                )
            best = _instead(best, hints[MEMORY], "default")
        assert best.mask is not None
        nodes = _nodes(machine, best.mask)
        tables = [machine[node].tables for node in nodes]
        if not _covers(wanted, {kind: _sum(tables, kind, "free") for kind in wanted}):
            hints = self._hints(machine, wanted, reusable)
            wider = [
                h for h in hints.get(MEMORY, []) if h.mask is not None and h.mask & best.mask == best.mask
            ]
            if not wider:
                raise NoMemory(
                    "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
                )
            best = _instead(best, wider, "extended")
            assert best.mask is not None
            nodes = _nodes(machine, best.mask)
        if len(nodes) > 1 and not _may_group(machine, nodes):
            raise NoMemory("[memorymanager] preferred hint violates NUMA node allocation")
        return nodes


def manages(pod: v1.Pod) -> bool:
    """Whether the containers of the pod have memory of their own. Without the gate PodLevelResourceManagers
    those of a pod that asks for resources as a whole have none.
    """
    return pod_qos(pod) is QOSClass.GUARANTEED and not has_pod_resources(pod)


def wanted_by(container: v1.Container) -> Amounts:
    """Bytes by kind of memory. Raises NoMemory."""
    requests = container.resources.requests if container.resources else None
    return {kind: whole_bytes(text) for kind, text in (requests or {}).items() if is_memory(kind)}


def wanted_by_pod(pod: v1.Pod) -> Amounts:
    """What the pod's containers have at the most at one time. Raises NoMemory."""
    sidecars: Amounts = {}
    before: Amounts = {}
    for container in pod.spec.init_containers or ():
        wanted = wanted_by(container)
        if is_sidecar(container):
            add(sidecars, wanted)
        else:
            raise_to(before, {kind: sidecars.get(kind, 0) + size for kind, size in wanted.items()})
    lasting: Amounts = {}
    for container in pod.spec.containers or ():
        add(lasting, wanted_by(container))
    return {kind: max(size + sidecars.get(kind, 0), before.get(kind, 0)) for kind, size in lasting.items()}


def reusable_after(
    pod: v1.Pod, container: v1.Container, blocks: Sequence[Block], reusable: Reusable
) -> Reusable:
    """What later containers of the pod may be given a second time, after this one was given `blocks`."""
    after = dict(reusable)
    for block in blocks:
        key = mask_of(block.nodes), block.kind
        left = after.get(key, 0)
        after[key] = max(left, block.size) if _ends(pod, container) else max(0, left - block.size)
    return after


def _ends(pod: v1.Pod, container: v1.Container) -> bool:
    """Whether it is an init container that ends before the next begins."""
    return any(
        each.name == container.name and not is_sidecar(each) for each in pod.spec.init_containers or ()
    )


def _counted_once(
    state: MemoryState, pod: v1.Pod, container: v1.Container, blocks: Sequence[Block]
) -> MemoryState:
    """What the container has from init containers before it counts as theirs no longer, so that the blocks
    of a pod add up to what it has.
    """
    uid = pod.metadata.uid
    for block in blocks:
        size = block.size
        for init in pod.spec.init_containers or ():
            if init.name == container.name:
                break
            theirs = state.of(uid, init.name)
            if not theirs or not size or is_sidecar(init):
                continue
            left = []
            for each in theirs:
                same = each.kind == block.kind and set(each.nodes) == set(block.nodes)
                passed_on = min(each.size, size) if same else 0
                size -= passed_on
                left.append(Block(each.nodes, each.kind, each.size - passed_on))
            state = state.with_blocks(uid, init.name, left)
    return state


def _known_hints(blocks: Sequence[Block], wanted: Amounts) -> Hints:
    """The nodes that a container has its memory from; nothing, if it is not what is asked for now."""
    if {block.kind: block.size for block in blocks} != wanted or len(blocks) != len(wanted):
        return {}
    return {block.kind: [Hint(mask_of(block.nodes), True)] for block in blocks}


def _may_group(machine: Machine, nodes: tuple[int, ...]) -> bool:
    """Whether the nodes may serve one container: alone if none is in a group, together as the group they are
    or when nothing is on them.
    """
    if len(nodes) == 1:
        return len(machine[nodes[0]].cells) == 1
    return all(not machine[node].assignments or set(machine[node].cells) == set(nodes) for node in nodes)


def _instead(current: Hint, hints: Sequence[Hint], what: str) -> Hint:
    """The best of the hints: preferred, then narrow, then low. Raises NoMemory if `current` was better."""
    best = min(hints, key=lambda hint: (not hint.preferred, (hint.mask or 0).bit_count(), hint.mask or 0))
    if current.preferred and not best.preferred:
        raise NoMemory(f"[memorymanager] failed to find the {what} preferred hint")
    return best


def _nodes(machine: Machine, mask: int) -> tuple[int, ...]:
    return tuple(node for node in sorted(machine) if has_node(mask, node))


def _sum(tables: Sequence[Mapping[str, MemoryTable]], kind: str, what: Literal["allocatable", "free"]) -> int:
    return sum(getattr(table[kind], what) for table in tables if kind in table)


def _covers(wanted: Amounts, there: Amounts) -> bool:
    return all(there[kind] >= size for kind, size in wanted.items())


def _equal(one: Machine, other: Machine) -> bool:
    """Whether the machines are the same, but for how groups share what they have given."""
    if one.keys() != other.keys():
        return False
    for number, mine in one.items():
        its = other[number]
        if mine.assignments != its.assignments or set(mine.cells) != set(its.cells):
            return False
        if mine.tables.keys() != its.tables.keys() or not one.keys() >= set(mine.cells):
            return False
        for kind, table in mine.tables.items():
            if _fixed(table) != _fixed(its.tables[kind]) or any(
                _of_group(one, mine.cells, kind, what) != _of_group(other, mine.cells, kind, what)
                for what in ("free", "reserved")
            ):
                return False
    return True


def _fixed(table: MemoryTable) -> tuple[int, int, int]:
    return table.total, table.system_reserved, table.allocatable


def _of_group(machine: Machine, cells: Sequence[int], kind: str, what: Literal["free", "reserved"]) -> int:
    return sum(getattr(machine[node].tables[kind], what) for node in cells if kind in machine[node].tables)


def is_memory(name: str) -> bool:
    """Whether the resource is a kind of memory."""
    return name == MEMORY or name.startswith("hugepages-")


def whole_bytes(text: str) -> int:
    """As Go's `Quantity.AsInt64`, which knows no quantity that is not written as a whole number."""
    parsed = quantity.parse(text)
    if parsed.dec is not None or parsed.scale < 0:
        raise NoMemory("[memorymanager] failed to represent quantity as int64")
    return parsed.value()
