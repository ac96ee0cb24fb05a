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
from trio_kubelet.api.containers import ends, is_sidecar, regular_containers
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.doors import AllocationError, PlacementStateError
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
from trio_kubelet.placement.pod_level import EmptyPool, PodLevel, has_pod_resources, served_as_one, shares
from trio_kubelet.podinfo.amounts import Amounts, add, raise_to
from trio_kubelet.podinfo.qos import QOSClass, pod_qos

Reusable: TypeAlias = Mapping[tuple[int, str], int]
"""What init containers that end leave to later containers of their pod: bytes by mask of nodes and kind."""


class NoMemory(AllocationError):
    """The container cannot be given its memory; the text is the kubelet's."""


class MemoryPolicy(msgspec.Struct, frozen=True):
    """The policy on this machine. `reserved`: bytes kept for the system, by node and kind."""

    nodes: Sequence[NUMAMemory]
    reserved: Mapping[int, Mapping[str, int]]
    pod_level: PodLevel = PodLevel.SHARED

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
        """The state as it may be gone on with; raises PlacementStateError with the kubelet's words."""
        if not state.machine:
            if state.assigned:
                raise PlacementStateError(
                    "[memorymanager] machine state can not be empty when it has memory assignments"
                )
            return msgspec.structs.replace(state, machine=self.initial())
        expected = self.initial()
        for uid, containers in state.assigned.items():
            whole = state.pods.get(uid)
            for name, blocks in ({"": whole} if whole else containers).items():
                for block in blocks:
                    where = f"[memorymanager] (pod: {uid}, container: {name})"
                    if not expected.keys() >= set(block.nodes):
                        raise PlacementStateError(
                            f"{where} the memory assignment uses the NUMA that does not exist"
                        )
                    if any(block.kind not in expected[node].tables for node in block.nodes):
                        raise PlacementStateError(
                            f"{where} the memory assignment uses memory resource that does not exist"
                        )
                    expected = given(expected, block)
        if not _equal(state.machine, expected):
            raise PlacementStateError(
                "[memorymanager] the expected machine state is different from the real one"
            )
        return state

    # Hints

    def hints(self, state: MemoryState, pod: v1.Pod, container: v1.Container, reusable: Reusable) -> Hints:
        """From which NUMA nodes the container could be given its memory."""
        if not self.manages(pod):
            return {}
        try:
            wanted = self.wanted_by(pod, container)
        except NoMemory:
            return {}
        known = state.of(pod.metadata.uid, container.name)
        if known is not None:
            return _known_hints(known, wanted)
        return self._hints(state.machine, wanted, reusable)

    def pod_hints(self, state: MemoryState, pod: v1.Pod, reusable: Reusable) -> Hints:
        """From which NUMA nodes the pod as a whole could be given its memory."""
        if not self.manages(pod):
            return {}
        try:
            wanted = self.wanted_by_pod(pod)
        except NoMemory:
            return {}
        if self.as_one(pod):
            return self._hints_as_one(state, pod, wanted)
        for container in regular_containers(pod.spec):
            known = state.of(pod.metadata.uid, container.name)
            if known is not None:
                return _known_hints(known, wanted)
        return self._hints(state.machine, wanted, reusable)

    def _hints_as_one(self, state: MemoryState, pod: v1.Pod, wanted: Amounts) -> Hints:
        known = state.pods.get(pod.metadata.uid)
        if known is not None:
            return _known_hints(known, wanted)
        try:
            self._check_pool(pod, wanted)
        except AllocationError:
            return {kind: [] for kind in wanted}
        return self._hints(state.machine, wanted, {})

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
        """The state after the container was given its memory; the same if it has it. Raises NoMemory,
        EmptyPool.
        """
        uid = pod.metadata.uid
        if self.as_one(pod):
            return self._allocate_pod(state, pod, affinity)
        if state.of(uid, container.name) is not None:
            return state
        wanted = self.wanted_by(pod, container)
        nodes = self._choose(state.machine, wanted, affinity, reusable)
        machine, blocks = state.machine, []
        for kind, size in sorted(wanted.items()):
            blocks.append(Block(nodes, kind, size))
            more = max(0, size - reusable.get((mask_of(nodes), kind), 0))
            machine = given(machine, Block(nodes, kind, more))
        state = msgspec.structs.replace(state, machine=machine).with_blocks(uid, container.name, blocks)
        return _counted_once(state, pod, container, blocks)

    def _allocate_pod(self, state: MemoryState, pod: v1.Pod, affinity: Hint | None) -> MemoryState:
        uid = pod.metadata.uid
        try:
            wanted = self.wanted_by_pod(pod)
        except NoMemory:
            return state
        if uid in state.assigned:
            return state
        self._check_pool(pod, wanted)
        nodes = self._choose(state.machine, wanted, affinity, {})
        whole, machine = _blocks(nodes, wanted), state.machine
        for block in whole:
            machine = given(machine, block)
        parts = {name: _blocks(nodes, part) for name, part in self._parts(pod, wanted)}
        return MemoryState(machine, {**state.assigned, uid: parts}, {**state.pods, uid: whole})

    def _parts(self, pod: v1.Pod, whole: Amounts) -> Iterator[tuple[str, Amounts]]:
        """What each container has of the memory of its pod. Init containers have all in turn, but for what
        sidecars before them keep; who has none alone shares what is left.
        """
        left, sharing = dict(whole), []
        for container in regular_containers(pod.spec):
            own, stays = self.wanted_by(pod, container), not ends(pod.spec, container)
            if not own and stays:
                sharing.append(container.name)
                continue
            yield container.name, own or dict(left)
            if stays:
                left = {kind: max(0, size - own.get(kind, 0)) for kind, size in left.items()}
        for name in sharing:
            yield name, left

    def _check_pool(self, pod: v1.Pod, whole: Amounts) -> None:
        """Raises EmptyPool, NoMemory."""
        lasting: Amounts = {}
        sharing = False
        for container in regular_containers(pod.spec):
            own = self.wanted_by(pod, container)
            if not ends(pod.spec, container):
                sharing = sharing or not own
                add(lasting, own)
            elif not own and (kind := _used_up(whole, lasting)):
                text = f"pod rejected, pod has shared init containers but no {kind} available for them"
                raise EmptyPool(text)
        if sharing and (kind := _used_up(whole, lasting)):
            raise EmptyPool(
                f"pod rejected, sum of exclusive container {kind} requests equals pod budget, leaving no "
                "memory for shared containers"
            )

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
        # A node of a group would leave it, and the state would fit no machine: the kubelet gives it, and does
        # not start again.
        alone = len(nodes) == 1 and not _may_group(machine, nodes)
        if alone or not _covers(wanted, {kind: _sum(tables, kind, "free") for kind in wanted}):
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

    def reusable_after(
        self, state: MemoryState, pod: v1.Pod, container: v1.Container, reusable: Reusable
    ) -> Reusable:
        """What later containers of the pod may be given a second time, once this one was given its memory."""
        after = dict(reusable)
        for block in state.of(pod.metadata.uid, container.name) or ():
            key = mask_of(block.nodes), block.kind
            left = after.get(key, 0)
            after[key] = max(left, block.size) if ends(pod.spec, container) else max(0, left - block.size)
        return after

    # Who has memory of its own

    def as_one(self, pod: v1.Pod) -> bool:
        """Whether the pod is given things as a whole."""
        return served_as_one(pod, self.pod_level)

    def manages(self, pod: v1.Pod) -> bool:
        """Whether the containers of the pod have memory of their own."""
        alone = self.pod_level is not PodLevel.SHARED or not has_pod_resources(pod)
        return alone and pod_qos(pod) is QOSClass.GUARANTEED

    def wanted_by(self, pod: v1.Pod, container: v1.Container) -> Amounts:
        """Bytes by kind of memory that the container is to have to itself. Raises NoMemory."""
        return {} if shares(pod, container, self.pod_level) else _memory_of(container.resources.requests)

    def wanted_by_pod(self, pod: v1.Pod) -> Amounts:
        """What the pod has at the most at one time, as a whole or its containers together. Raises
        NoMemory.
        """
        if self.as_one(pod) and pod.spec.resources is not None:
            asked = _memory_of(pod.spec.resources.requests)
            return {kind: size for kind, size in asked.items() if size > 0}
        sidecars: Amounts = {}
        before: Amounts = {}
        for container in pod.spec.init_containers or ():
            wanted = self.wanted_by(pod, container)
            if is_sidecar(container):
                add(sidecars, wanted)
            else:
                raise_to(before, {kind: sidecars.get(kind, 0) + size for kind, size in wanted.items()})
        lasting: Amounts = {}
        for container in pod.spec.containers or ():
            add(lasting, self.wanted_by(pod, container))
        return {k: max(size + sidecars.get(k, 0), before.get(k, 0)) for k, size in lasting.items()}


def _memory_of(requests: Mapping[str, str] | None) -> Amounts:
    return {kind: whole_bytes(text) for kind, text in (requests or {}).items() if is_memory(kind)}


def _blocks(nodes: tuple[int, ...], amounts: Amounts) -> tuple[Block, ...]:
    return tuple(Block(nodes, kind, size) for kind, size in sorted(amounts.items()) if size > 0)


def _used_up(whole: Amounts, lasting: Amounts) -> str:
    """A kind of which nothing is left; "" if there is none."""
    return next((kind for kind, size in sorted(whole.items()) if lasting.get(kind, 0) >= size), "")


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
