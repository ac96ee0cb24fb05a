"""`allocated_pods_state` and `actuated_pods_state`, as the kubelet writes and reads them. Pure.

Both have the same form: what each pod has for itself and for its containers. The kubelet does not start with
a file whose checksum is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.api.quantity import QuantityError, parse
from trio_kubelet.api.v1 import ResourceRequirements
from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.native.hashes import fnv1a32

ALLOCATED: Final = "allocated_pods_state"
"""What pods were granted."""
ACTUATED: Final = "actuated_pods_state"
"""What they and their containers have of it."""


class AllocationFileError(Exception):
    """The file is not what a kubelet writes; the text says why."""


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod was granted: for itself and for its containers by name."""

    containers: dict[str, ResourceRequirements] = msgspec.field(name="ContainerResources", default={})
    pod_level: ResourceRequirements | None = msgspec.field(name="PodLevelResources", default=None)


class _Entries(msgspec.Struct, omit_defaults=True):
    entries: dict[str, Allocation] = {}


class _File(msgspec.Struct):
    data: str
    checksum: int


def encode(allocations: Mapping[str, Allocation]) -> bytes:
    """The content of a file with these pods, by UID."""
    data = msgspec.json.encode(_Entries(dict(allocations)), order="deterministic").decode()
    return msgspec.json.encode(_File(data, _checksum(data)))


def decode(content: bytes) -> dict[str, Allocation]:
    """What pods have, by UID. Raises AllocationFileError."""
    try:
        file = decode_flat(content, _File)
        if file.checksum != _checksum(file.data):
            raise AllocationFileError("checkpoint is corrupted")
        entries = decode_flat(file.data, _Entries).entries
        for each in entries.values():
            _check(each)
    except (msgspec.MsgspecError, QuantityError) as exc:
        raise AllocationFileError(f"failed to get pod resource information: {exc}") from exc
    return entries


def _check(allocation: Allocation) -> None:
    """Raises QuantityError for an amount that is none."""
    whole = () if allocation.pod_level is None else (allocation.pod_level,)
    for resources in (*allocation.containers.values(), *whole):
        for amount in (*(resources.requests or {}).values(), *(resources.limits or {}).values()):
            parse(amount)


def _checksum(data: str) -> int:
    """FNV-1a, 32 bits, of Go's dump of a string."""
    return fnv1a32(b"(string)" + data.encode())
