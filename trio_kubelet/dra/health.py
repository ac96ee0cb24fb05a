"""What drivers say of the health of their devices (KEP-4680, `DRAResourceHealth` v1alpha1). Pure.

A report is good for as long as its driver says, then the device's health is not known any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

UNKNOWN: Final = "Unknown"
DEFAULT_SECONDS: Final = 30.0
MAX_MESSAGE: Final = 1024

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
        self._reports.update(reports)
        return frozenset(changed)

    def clear(self) -> frozenset[Key]:
        """The driver says nothing any more."""
        known, self._reports = frozenset(self._reports), {}
        return known


def _differs(before: DeviceHealth | None, now: DeviceHealth) -> bool:
    return before is None or (before.health, before.message) != (now.health, now.message)


def shortened(message: str) -> str:
    """A message as long as a status may have it."""
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 3]}..."
