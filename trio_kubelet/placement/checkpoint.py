"""`cpu_manager_state`, as the kubelet writes and reads it. Pure.

With the gate PodLevelResourceManagers the file also says what pods were given as a whole (v1.36's
`CPUManagerCheckpointV3`); a file without that is read too, one with it is refused without the gate. The
checksum is over a dump of the data as Go's debugger would show it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.common.cpusets import CPUSet, cpus_text, parse_cpus
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.native.hashes import fnv1a32
from trio_kubelet.placement.cpu_state import CPUState
from trio_kubelet.placement.doors import PlacementStateError
from trio_kubelet.placement.pod_level import PodLevel

FILE_NAME: Final = "cpu_manager_state"


class _PodEntry(msgspec.Struct, frozen=True):
    cpus: str = msgspec.field(name="cpuSet", default="")


class _File(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str
    default_cpu_set: str
    checksum: int
    entries: dict[str, dict[str, str]] = {}
    pod_entries: msgspec.Raw = msgspec.Raw(b"{}")


def encode(policy: str, state: CPUState, pod_level: PodLevel = PodLevel.SHARED) -> bytes:
    """The file's content."""
    entries = {
        uid: {name: cpus_text(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(state.assigned.items())
    }
    shared = cpus_text(state.shared)
    content: dict[str, object] = {"policyName": policy, "defaultCpuSet": shared}
    if entries:
        content["entries"] = entries
    pods = None if pod_level is PodLevel.SHARED else state.pods
    if pods:
        content["podEntries"] = {uid: {"cpuSet": cpus_text(cpus)} for uid, cpus in sorted(pods.items())}
    content["checksum"] = _checksum(policy, shared, entries, pods)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def decode(content: bytes, policy: str, pod_level: PodLevel = PodLevel.SHARED) -> CPUState:
    """What a file says to an agent with this policy. Raises PlacementStateError."""
    try:
        file = decode_flat(content, _File)
        of_file = file.policy_name, file.default_cpu_set, file.entries
        pods = None if pod_level is PodLevel.SHARED else _pods(file.pod_entries)
        if file.checksum not in (0, _checksum(*of_file, None), _checksum(*of_file, pods)):
            raise PlacementStateError("checkpoint is corrupted")
        if file.policy_name != policy:
            raise PlacementStateError(
                f'configured policy "{policy}" differs from state checkpoint policy "{file.policy_name}"'
            )
        return CPUState(_parsed(file.default_cpu_set, "default cpu set"), _assigned(file.entries), pods or {})
    except (msgspec.MsgspecError, PlacementStateError) as exc:
        raise PlacementStateError(f"could not restore state from checkpoint: {exc}") from exc


def _assigned(entries: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, CPUSet]]:
    """Raises PlacementStateError."""
    return {
        uid: {
            name: _parsed(cpus, "cpuset", f' for container "{name}" in pod "{uid}"')
            for name, cpus in containers.items()
        }
        for uid, containers in entries.items()
    }


def _parsed(cpus: str, what: str, whose: str = "") -> CPUSet:
    """Raises PlacementStateError."""
    try:
        return parse_cpus(cpus)
    except ValueError as exc:
        raise PlacementStateError(f'could not parse {what} "{cpus}"{whose}: {exc}') from exc


def _pods(content: msgspec.Raw) -> Mapping[str, CPUSet] | None:
    """What pods were given as a whole; None where that is not to be made out."""
    try:
        entries = decode_flat(content, dict[str, _PodEntry])
        return {uid: parse_cpus(entry.cpus) for uid, entry in entries.items()}
    except (msgspec.MsgspecError, ValueError):
        return None


def _checksum(
    policy: str, shared: str, entries: Mapping[str, Mapping[str, str]], pods: Mapping[str, CPUSet] | None
) -> int:
    """FNV-1a, 32 bits, of the dump. `pods` None: of a file that does not know them."""
    containers = " ".join(
        f"{uid}:map[{' '.join(f'{name}:{cpus}' for name, cpus in sorted(of.items()))}]"
        for uid, of in sorted(entries.items())
    )
    wholes = ""
    if pods is not None:
        each = " ".join(
            f"{uid}:{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{_elements(cpus)}]}}}}"
            for uid, cpus in sorted(pods.items())
        )
        wholes = f"PodEntries:(state.PodCPUAssignments)map[{each}] "
    dump = (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){shared} "
        f"Entries:(map[string]map[string]string)map[{containers}] {wholes}Checksum:(checksum.Checksum)0}}"
    )
    return fnv1a32(dump.encode())


def _elements(cpus: CPUSet) -> str:
    return " ".join(f"{cpu}:{{}}" for cpu in sorted(cpus))
