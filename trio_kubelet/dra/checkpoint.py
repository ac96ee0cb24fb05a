"""`dra_manager_state`, as the kubelet writes and reads it. Pure, but for a line in the log."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from trio_kubelet.common.deep_json import decode_flat
from trio_kubelet.common.log import get_logger
from trio_kubelet.dra.states import Claim, PreparedDevice

log = get_logger(__name__)

FILE_NAME: Final = "dra_manager_state"
_KIND: Final = "DRACheckpoint"
_VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


class ClaimCheckpointError(Exception):
    """The file is not what a kubelet writes; the text says why."""


class _Device(msgspec.Struct, rename="pascal"):
    pool_name: str
    device_name: str
    share_id: str | None = msgspec.field(name="ShareID", default=None)
    request_names: list[str] | None = None
    cdi_device_ids: list[str] | None = msgspec.field(name="CDIDeviceIDs", default=None)


class _Driver(msgspec.Struct, rename="pascal"):
    devices: list[_Device] | None = None


class _Claim(msgspec.Struct, rename="pascal"):
    claim_uid: str = msgspec.field(name="ClaimUID")
    claim_name: str
    namespace: str
    pod_uids: dict[str, Any] | None = msgspec.field(name="PodUIDs", default=None)
    driver_state: dict[str, _Driver] | None = None


class _Data(msgspec.Struct):
    kind: str = ""
    version: str = msgspec.field(name="apiVersion", default="")
    claims: list[_Claim] | None = msgspec.field(name="ClaimInfoStateList", default=None)


class _File(msgspec.Struct, rename="pascal"):
    data: str
    checksum: int


def encode(claims: Iterable[Claim]) -> bytes:
    """The file's content."""
    listed = [
        {
            "ClaimUID": claim.uid,
            "ClaimName": claim.name,
            "Namespace": claim.namespace,
            "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
            "DriverState": {
                driver: {"Devices": [_plain(device) for device in devices] or None}
                for driver, devices in sorted(claim.drivers.items())
            },
        }
        for claim in claims
    ]
    data = json.dumps(
        {"kind": _KIND, "apiVersion": _VERSION, "ClaimInfoStateList": listed},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return msgspec.json.encode(_File(data=data, checksum=zlib.crc32(data.encode())))


def _plain(device: PreparedDevice) -> dict[str, object]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.name,
        "ShareID": device.share_id,
        "RequestNames": list(device.requests) or None,
        "CDIDeviceIDs": list(device.cdi_ids) or None,
    }


def decode(content: bytes) -> list[Claim]:
    """What a file says. Raises ClaimCheckpointError."""
    try:
        file = decode_flat(content, _File)
        data = decode_flat(file.data, _Data)
    except msgspec.MsgspecError as exc:
        raise ClaimCheckpointError(f"cannot be read: {exc}") from exc
    expected = zlib.crc32(file.data.encode())
    if file.checksum != expected:
        raise ClaimCheckpointError(f"checkpoint is corrupted: checksum {file.checksum}, expected {expected}")
    if (data.kind, data.version) != (_KIND, _VERSION):  # so it is gone by what it says, as in the kubelet
        log.warning("Claims file is of another version", kind=data.kind, version=data.version)
    return [
        Claim(
            uid=claim.claim_uid,
            name=claim.claim_name,
            namespace=claim.namespace,
            pods=frozenset(claim.pod_uids or ()),
            drivers={
                name: tuple(_device(device) for device in driver.devices or ())
                for name, driver in (claim.driver_state or {}).items()
            },
        )
        for claim in data.claims or ()
    ]


def _device(device: _Device) -> PreparedDevice:
    return PreparedDevice(
        pool=device.pool_name,
        name=device.device_name,
        share_id=device.share_id,
        requests=tuple(device.request_names or ()),
        cdi_ids=tuple(device.cdi_device_ids or ()),
    )
