"""What the manager of dynamic resources needs of others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from trio_kubelet.api import v1
from trio_kubelet.dra.claims import ResourceClaim
from trio_kubelet.dra.states import Claim, PreparedDevice

SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The versions of a driver's service, as drivers name them when they register; the newest first."""


class DriverError(Exception):
    """A call to a driver failed, or there is no such driver; the text is told to users."""


class DraDriver(Protocol):
    """A driver on this node. Each call has a deadline and raises DriverError."""

    @property
    def name(self) -> str:
        """The driver's name."""
        ...

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Devices by claim UID, or why a claim cannot be prepared."""
        ...

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        """By claim UID, "" or why it could not be undone."""
        ...


class ClaimObjects(Protocol):
    """Claims and slices at the API server."""

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        """Raises ClaimError."""
        ...

    async def delete_slices(self, driver: str) -> None:
        """Deletes the ResourceSlices of this node, of all drivers for "". Raises ClaimError."""
        ...


class ClaimPods(Protocol):
    """What is known of the node's pods."""

    def active(self) -> Collection[v1.Pod]:
        """Pods that run or will run here."""
        ...

    def all_known(self) -> bool:
        """Whether every source has told its pods."""
        ...

    def ending(self) -> Collection[str]:
        """UIDs of pods that are not active, and of which something still runs."""
        ...
