"""`memory_manager_state`, as the kubelet writes and reads it. Pure.

With the gate PodLevelResourceManagers the file also says what pods were given as a whole (v1.36's
`MemoryManagerCheckpointV2`); a file without that is read too, one with it is refused without the gate. The
checksum is over a dump of the data as Go's debugger would show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.native.hashes import fnv1a32
from trio_kubelet.placement.doors import PlacementStateError
from trio_kubelet.placement.memory_state import Block, MemoryState, NodeMemory
from trio_kubelet.placement.pod_level import PodLevel

FILE_NAME: Final = "memory_manager_state"


class _PodEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    blocks: tuple[Block, ...] = msgspec.field(name="memoryBlocks", default=())


class _File(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str
    machine_state: dict[int, NodeMemory]
    checksum: int
    entries: dict[str, dict[str, tuple[Block, ...]]] = {}
    pod_entries: msgspec.Raw = msgspec.Raw(b"{}")


def encode(policy: str, state: MemoryState, pod_level: PodLevel = PodLevel.SHARED) -> bytes:
    """The file's content."""
    content: dict[str, object] = {
        "policyName": policy,
        "machineState": {str(number): node for number, node in sorted(state.machine.items())},
    }
    if state.assigned:
        content["entries"] = state.assigned
    pods = None if pod_level is PodLevel.SHARED else state.pods
    if pods:
        content["podEntries"] = {uid: _PodEntry(blocks) for uid, blocks in pods.items()}
    content["checksum"] = _checksum(policy, state, pods)
    return json.dumps(msgspec.to_builtins(content), ensure_ascii=False, separators=(",", ":")).encode()


def decode(content: bytes, policy: str, pod_level: PodLevel = PodLevel.SHARED) -> MemoryState:
    """What a file says to an agent with this policy. Raises PlacementStateError."""
    try:
        file = decode_flat(content, _File, strict=False)
    except msgspec.MsgspecError as exc:
        raise PlacementStateError(f"could not restore state from checkpoint: {exc}") from exc
    state = MemoryState(file.machine_state, file.entries)
    pods = None if pod_level is PodLevel.SHARED else _pods(file.pod_entries)
    state = msgspec.structs.replace(state, pods=pods or {})
    expected = (_checksum(file.policy_name, state, each) for each in (None, pods))
    if file.checksum not in (0, *expected):
        raise PlacementStateError("could not restore state from checkpoint: checkpoint is corrupted")
    if file.policy_name != policy:
        raise PlacementStateError(
            "could not restore state from checkpoint: "
            f'[memorymanager] configured policy "{policy}" differs from state checkpoint policy '
            f'"{file.policy_name}"'
        )
    return state


def _pods(content: msgspec.Raw) -> Mapping[str, tuple[Block, ...]] | None:
    """What pods were given as a whole; None where that is not to be made out."""
    try:
        entries = decode_flat(content, dict[str, _PodEntry])
    except msgspec.MsgspecError:
        return None
    return {uid: entry.blocks for uid, entry in entries.items()}


def _checksum(policy: str, state: MemoryState, pods: Mapping[str, tuple[Block, ...]] | None) -> int:
    """FNV-1a, 32 bits, of the dump. `pods` None: of a file that does not know them."""
    machine = " ".join(f"{number}:{_node(node)}" for number, node in sorted(state.machine.items()))
    entries = _map({uid: _map({c: _blocks(b) for c, b in of.items()}) for uid, of in state.assigned.items()})
    wholes = ""
    if pods is not None:
        shown = {uid: f"{{MemoryBlocks:([]state.Block){_blocks(blocks)}}}" for uid, blocks in pods.items()}
        wholes = f"PodEntries:(state.PodMemoryAssignments){_map(shown)} "
    dump = (
        f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} "
        f"MachineState:(state.NUMANodeMap)map[{machine}] "
        f"Entries:(state.ContainerMemoryAssignments){entries} {wholes}Checksum:(checksum.Checksum)0}}"
    )
    return fnv1a32(dump.encode())


def _node(node: NodeMemory) -> str:
    tables = {
        kind: f"<*>{{TotalMemSize:(uint64){table.total} SystemReserved:(uint64){table.system_reserved} "
        f"Allocatable:(uint64){table.allocatable} Reserved:(uint64){table.reserved} "
        f"Free:(uint64){table.free}}}"
        for kind, table in node.tables.items()
    }
    return (
        f"<*>{{NumberOfAssignments:(int){node.assignments} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){_map(tables)} Cells:{_ints(node.cells)}}}"
    )


def _blocks(blocks: Iterable[Block]) -> str:
    shown = (
        f"{{NUMAAffinity:{_ints(block.nodes)} Type:(v1.ResourceName){block.kind} Size:(uint64){block.size}}}"
        for block in blocks
    )
    return f"[{' '.join(shown)}]"


def _ints(numbers: Iterable[int]) -> str:
    return f"([]int)[{' '.join(map(str, numbers))}]"


def _map(of: Mapping[str, str]) -> str:
    return f"map[{' '.join(f'{key}:{value}' for key, value in sorted(of.items()))}]"
