"""What this room needs of the one that knows claims, drivers and disks, as a Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.podinfo.context import BlockDevice, VolumeMountPoint


class Shortfall(msgspec.Struct, frozen=True):
    """Which of a pod's volumes are not there, by their names in the pod.

    `unattached` of those wait for being attached; of the `unprocessed` it is not even known what they are,
    and why. `too_many`: some cannot be attached because the node has reached its limit.
    """

    unmounted: tuple[str, ...] = ()
    unattached: tuple[str, ...] = ()
    unprocessed: Mapping[str, str] = {}
    too_many: bool = False


class PersistentVolumesDoor(Protocol):
    """Volumes that outlive their pods, or are made by others than the agent."""

    async def set_up(self, pod: v1.Pod, volumes: Sequence[v1.Volume], patience: float) -> Shortfall:
        """Begins to make these volumes of the pod, and waits for them for `patience` seconds at most. May be
        repeated.
        """
        ...

    async def tear_down(self, uid: str) -> None:
        """Nothing of them is mounted for the pod any more. May be repeated. Raises VolumeError."""
        ...

    def mounts(self, uid: str) -> Mapping[str, VolumeMountPoint]:
        """Where those of a pod are that are filesystems, by their names in the pod."""
        ...

    def devices(self, uid: str) -> Mapping[str, BlockDevice]:
        """Those of a pod that are block devices."""
        ...

    def extra_groups(self, pod: v1.Pod) -> tuple[int, ...]:
        """Groups besides the pod's own that its processes need for its volumes."""
        ...
