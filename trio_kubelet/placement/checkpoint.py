"""`cpu_manager_state`, as the kubelet writes and reads it. Pure.

The format is that of v1.36 without the gate PodLevelResourceManagers (its `CPUManagerCheckpointV2`). The
checksum is over a dump of the data as Go's debugger would show it.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from trio_kubelet.native.hashes import fnv1a32
from trio_kubelet.placement.cpu_policy import CPUState
from trio_kubelet.placement.cpusets import cpus_text, parse_cpus

FILE_NAME: Final = "cpu_manager_state"


class PlacementStateError(Exception):
    """The file is not what this node's CPU manager can go on with; the text says why."""


class _File(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str
    default_cpu_set: str
    checksum: int
    entries: dict[str, dict[str, str]] = {}


def encode(policy: str, state: CPUState) -> bytes:
    """The file's content."""
    entries = {
        uid: {name: cpus_text(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(state.assigned.items())
    }
    shared = cpus_text(state.shared)
    content: dict[str, object] = {"policyName": policy, "defaultCpuSet": shared}
    if entries:
        content["entries"] = entries
    content["checksum"] = _checksum(policy, shared, entries)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def decode(content: bytes, policy: str) -> CPUState:
    """What a file says to an agent with this policy. Raises PlacementStateError."""
    try:
        file = msgspec.json.decode(content, type=_File)
        expected = _checksum(file.policy_name, file.default_cpu_set, file.entries)
        state = CPUState(
            parse_cpus(file.default_cpu_set),
            {
                uid: {name: parse_cpus(cpus) for name, cpus in containers.items()}
                for uid, containers in file.entries.items()
            },
        )
    except (msgspec.MsgspecError, ValueError) as exc:
        raise PlacementStateError(f"could not restore state from checkpoint: {exc}") from exc
    if file.checksum not in (0, expected):
        raise PlacementStateError("could not restore state from checkpoint: checkpoint is corrupted")
    if file.policy_name != policy:
        raise PlacementStateError(
            "could not restore state from checkpoint: "
            f'configured policy "{policy}" differs from state checkpoint policy "{file.policy_name}"'
        )
    return state


def _checksum(policy: str, shared: str, entries: dict[str, dict[str, str]]) -> int:
    """FNV-1a, 32 bits, of the dump."""
    containers = " ".join(
        f"{uid}:map[{' '.join(f'{name}:{cpus}' for name, cpus in sorted(of.items()))}]"
        for uid, of in sorted(entries.items())
    )
    dump = (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){shared} "
        f"Entries:(map[string]map[string]string)map[{containers}] Checksum:(checksum.Checksum)0}}"
    )
    return fnv1a32(dump.encode())
