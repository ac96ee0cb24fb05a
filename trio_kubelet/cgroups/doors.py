"""Who makes cgroups."""

from __future__ import annotations

from typing import Protocol

from trio_kubelet.cgroups.limits import Limits


class CgroupDriver(Protocol):
    """Makes, changes and removes single cgroups. A cgroup is a path below the hierarchies' roots
    (`/kubepods.slice/kubepods-burstable.slice`). Methods raise OSError and BusError.
    """

    async def create(self, cgroup: str, limits: Limits) -> None:
        """The cgroup is there and has the limits; one that is there is kept."""
        ...

    async def update(self, cgroup: str, limits: Limits) -> None:
        """The limits that are given are in force."""
        ...

    async def remove(self, cgroup: str) -> bool:
        """Whether the cgroup and those below it are gone; False while it has processes or is being used."""
        ...
