"""`dra_health_state`, as the kubelet writes and reads it: what drivers said of their devices. Pure.

With it a pod's status tells the same after a restart of the agent, until a driver says otherwise or what it
said is too old. The kubelet writes no checksum into it, and goes on without a file that it cannot read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339_nano
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.dra.health import DEFAULT_SECONDS, DeviceHealth, Key

FILE_NAME: Final = "dra_health_state"

Reports: TypeAlias = Mapping[str, Mapping[Key, DeviceHealth]]
"""By driver."""


class _Device(msgspec.Struct, rename="pascal"):
    pool_name: str
    device_name: str
    health: str
    last_updated: str
    health_check_timeout: int = 0  # nanoseconds; 0: the usual time
    message: str = ""


class _Driver(msgspec.Struct, rename="pascal"):
    devices: dict[str, _Device] | None = None


def encode(reports: Reports, *, now: float, now_ns: int) -> bytes:
    """The file's content; `now` in Trio's time, `now_ns` the wall clock's at the same moment."""
    content = {
        driver: {
            "Devices": {
                f"{pool}/{device}": {
                    "PoolName": pool,
                    "DeviceName": device,
                    "Health": report.health,
                    "LastUpdated": rfc3339_nano(
                        now_ns - int((now - (report.until - report.seconds)) * NANOSECONDS)
                    ),
                    "HealthCheckTimeout": int(report.seconds * NANOSECONDS),
                    "Message": report.message,
                }
                for (pool, device), report in sorted(of_driver.items())
            }
        }
        for driver, of_driver in sorted(reports.items())
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def decode(content: bytes, *, now: float, now_ns: int) -> dict[str, dict[Key, DeviceHealth]]:
    """What a file says that is not too old, and not from the future. Raises ValueError."""
    found: dict[str, dict[Key, DeviceHealth]] = {}
    for driver, state in msgspec.json.decode(content, type=dict[str, _Driver]).items():
        for device in (state.devices or {}).values():
            seconds = device.health_check_timeout / NANOSECONDS or DEFAULT_SECONDS
            age = (now_ns - parse_rfc3339(device.last_updated)) / NANOSECONDS
            if 0 <= age <= seconds:
                found.setdefault(driver, {})[device.pool_name, device.device_name] = DeviceHealth(
                    health=device.health,
                    message=device.message,
                    seconds=seconds,
                    until=now + seconds - age,
                )
    return found
