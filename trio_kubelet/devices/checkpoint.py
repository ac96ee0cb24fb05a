"""`kubelet_internal_checkpoint`, as the kubelet writes and reads it. Pure.

The checksum is over a dump of the data as Go's debugger would show it (kubelet: `checksum.New`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.devices.assignments import Assignment, Key
from trio_kubelet.native.hashes import fnv1a32

FILE_NAME: Final = "kubelet_internal_checkpoint"


class DeviceCheckpointError(Exception):
    """The file is not what a kubelet writes; the text says why."""


class PodDevicesEntry(msgspec.Struct, frozen=True, rename="pascal"):
    """Devices of one container. `device_ids`: by NUMA node; `alloc_resp`: base64."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[int, list[str] | None] | None = msgspec.field(name="DeviceIDs")
    alloc_resp: str | None = msgspec.field(name="AllocResp")


class Data(msgspec.Struct, frozen=True, rename="pascal"):
    """All of them, and the resources with the devices that were healthy."""

    pod_device_entries: list[PodDevicesEntry] | None
    registered_devices: dict[str, list[str] | None] | None


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    data: Data
    checksum: int


def data_of(assignments: Iterable[tuple[Key, Assignment]], healthy: Mapping[str, list[str] | None]) -> Data:
    """What is written of assignments and of the healthy devices of each resource."""
    entries = [
        PodDevicesEntry(
            pod_uid=key.pod,
            container_name=key.container,
            resource_name=key.resource,
            device_ids={node: list(ids) for node, ids in each.by_node.items()},
            alloc_resp=base64.b64encode(each.answer).decode(),
        )
        for key, each in assignments
    ]
    return Data(entries or None, dict(healthy))


def assignments_of(data: Data) -> Iterable[tuple[Key, Assignment]]:
    """The assignments that are written there."""
    for entry in data.pod_device_entries or ():
        devices = {node: list(ids or ()) for node, ids in (entry.device_ids or {}).items()}
        assignment = Assignment(devices, base64.b64decode(entry.alloc_resp or ""))
        yield Key(entry.pod_uid, entry.container_name, entry.resource_name), assignment


def encode(data: Data) -> bytes:
    """The file's content."""
    plain = msgspec.to_builtins(data, str_keys=True)
    text = json.dumps({"Data": plain, "Checksum": checksum(data)}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def decode(content: bytes) -> Data:
    """What a file says. Raises DeviceCheckpointError."""
    try:
        file = decode_flat(content, _File)
        expected = checksum(file.data)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise DeviceCheckpointError(f"cannot be read: {exc}") from exc
    if file.checksum != expected:
        raise DeviceCheckpointError(f"checkpoint is corrupted: checksum {file.checksum}, expected {expected}")
    return file.data


def checksum(data: Data) -> int:
    """FNV-1a, 32 bits, of the dump. Raises ValueError for an answer that is no base64."""
    return fnv1a32(_dump(data).encode("utf-8", "surrogateescape"))


def _dump(data: Data) -> str:
    entries = (
        "<nil>"
        if data.pod_device_entries is None
        else f"[{' '.join(_entry(each) for each in data.pod_device_entries)}]"
    )
    registered = _map(data.registered_devices)
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} "
        f"RegisteredDevices:(map[string][]string){registered}}}"
    )


def _entry(entry: PodDevicesEntry) -> str:
    answer = "<nil>"
    if entry.alloc_resp is not None:
        raw = base64.b64decode(entry.alloc_resp, validate=True)
        answer = f"[{' '.join(map(str, raw))}]"
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container_name} "
        f"ResourceName:(string){entry.resource_name} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA){_map(entry.device_ids)} AllocResp:([]uint8){answer}}}"
    )


def _map(values: Mapping[str, Sequence[str] | None] | Mapping[int, Sequence[str] | None] | None) -> str:
    if values is None:
        return "<nil>"
    items: Iterable[tuple[object, Sequence[str] | None]] = sorted(values.items())
    return f"map[{' '.join(f'{key}:{_list(value)}' for key, value in items)}]"


def _list(value: Sequence[str] | None) -> str:
    return "<nil>" if value is None else f"[{' '.join(value)}]"
