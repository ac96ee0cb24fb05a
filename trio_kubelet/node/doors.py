"""What the Node object needs of others."""

from __future__ import annotations

from typing import Protocol

from trio_kubelet.common.listeners import Listeners


class PressureDoor(Protocol):
    """Which pressures the node is under (implemented by `eviction.monitor.PressureMonitor`)."""

    changed: Listeners[[]]
    """Tells when a condition turns."""

    @property
    def conditions(self) -> frozenset[str]:
        """The conditions in force."""
        ...

    async def look(self) -> object:
        """Observes once."""
        ...
