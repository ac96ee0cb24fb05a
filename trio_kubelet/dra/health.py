"""What drivers say of the health of their devices (KEP-4680, `DRAResourceHealth` v1alpha1). Pure.

A report is good for as long as its driver says, then the device's health is not known any more. Reports are
kept in `dra_health_state`, as the kubelet writes and reads it, so that a pod's status tells the same after a
restart. The kubelet writes no checksum into it, and goes on without a file that it cannot read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import msgspec

from trio_kubelet.api.timestamps import parse_rfc3339, rfc3339_nano
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.common.deep_json import decode_flat

UNKNOWN: Final = "Unknown"
DEFAULT_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 365 * 86400.0
"""A report is good for no longer: a kubelet that reads the file counts nanoseconds in 64 bits."""
_LONGEST_NS: Final = int(LONGEST_SECONDS) * NANOSECONDS
MOST_REPORTS: Final = 10_000
"""Devices of one driver, those of the latest reports."""
MAX_MESSAGE: Final = 1024
"""Bytes: as the API server counts, which takes no status with a longer one."""

Key: TypeAlias = tuple[str, str]
"""Pool and device."""


class DeviceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One device's health, good for `seconds`, which end at `until` in Trio's time."""

    health: str
    message: str = ""
    seconds: float = DEFAULT_SECONDS
    until: float = 0.0


class DriverHealth:
    """The reports of one driver."""

    def __init__(self, reports: Mapping[Key, DeviceHealth] = {}) -> None:
        self._reports = dict(reports)

    @property
    def reports(self) -> Mapping[Key, DeviceHealth]:
        """All of them, whether still good or not."""
        return dict(self._reports)

    def get(self, key: Key, now: float) -> DeviceHealth:
        """What is known of a device."""
        report = self._reports.get(key)
        return report if report is not None and now <= report.until else DeviceHealth(health=UNKNOWN)

    def update(self, reports: Mapping[Key, DeviceHealth], now: float) -> frozenset[Key]:
        """Takes new reports; devices whose health is another one now, or is not known any more."""
        changed = {key for key, report in reports.items() if _differs(self._reports.get(key), report)}
        for key in [key for key, report in self._reports.items() if now > report.until]:
            if key not in reports:
                changed.add(key)
                del self._reports[key]
        for key in reports:  # the latest are last
            self._reports.pop(key, None)
        self._reports.update(reports)
        for key in list(islice(self._reports, max(0, len(self._reports) - MOST_REPORTS))):
            changed.add(key)
            del self._reports[key]
        return frozenset(changed)

    def clear(self) -> frozenset[Key]:
        """The driver says nothing any more."""
        known, self._reports = frozenset(self._reports), {}
        return known


def _differs(before: DeviceHealth | None, now: DeviceHealth) -> bool:
    """How long a report is good counts too: it stands in the file."""
    if before is None:
        return True
    return (before.health, before.message, before.seconds) != (now.health, now.message, now.seconds)


def shortened(message: str) -> str:
    """A message as long as a status may have it; no character is cut in two."""
    encoded = message.encode()
    if len(encoded) <= MAX_MESSAGE:
        return message
    return encoded[: MAX_MESSAGE - 3].decode(errors="ignore") + "..."


STATE_FILE: Final = "dra_health_state"

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


class HealthState(NamedTuple):
    """What is to be written; `now` in Trio's time, `now_ns` the wall clock's at the same moment."""

    reports: Reports
    now: float
    now_ns: int


def encode_reports(state: HealthState) -> bytes:
    """The file's content."""
    reports, now, now_ns = state
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


def decode_reports(content: bytes, *, now: float, now_ns: int) -> dict[str, dict[Key, DeviceHealth]]:
    """What a file says that is not too old, and not from the future. Raises ValueError."""
    found: dict[str, dict[Key, DeviceHealth]] = {}
    for driver, state in decode_flat(content, dict[str, _Driver]).items():
        for device in (state.devices or {}).values():
            seconds = min(device.health_check_timeout, _LONGEST_NS) / NANOSECONDS or DEFAULT_SECONDS
            age = (now_ns - parse_rfc3339(device.last_updated)) / NANOSECONDS
            if 0 <= age <= seconds:
                found.setdefault(driver, {})[device.pool_name, device.device_name] = DeviceHealth(
                    health=device.health,
                    message=device.message,
                    seconds=seconds,
                    until=now + seconds - age,
                )
    return found
