"""What eviction needs from others, as small Protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

import trio

from trio_kubelet.api.v1 import Pod
from trio_kubelet.stats.summary_types import PodStats


class EvictionPodsDoor(Protocol):
    """The pods of the node (implemented by `pods.victims.Victims`)."""

    def candidates(self) -> list[Pod]:
        """Pods that could be evicted: they run or will run, were looked at since the agent started, and were
        not evicted yet. Of one that is ending something runs still.
        """
        ...

    def evict(
        self,
        pod: Pod,
        *,
        grace: int,
        message: str,
        disruption: bool,
        annotations: Mapping[str, str],
        why: str,
    ) -> trio.Event:
        """Ends a pod, as failed with that message; the event is set once its containers have stopped."""
        ...

    async def wait_stopped(self, pod: Pod, stopped: trio.Event, grace: int) -> bool:
        """Waits for that; False, with an event, if it did not stop in time."""
        ...

    def is_finished(self, uid: str) -> bool:
        """Whether nothing of the pod is left to be done."""
        ...


class StatsDoor(Protocol):
    """What pods use (implemented by `stats.pods.PodFigures`)."""

    async def measured(self, uids: Collection[str] | None = None) -> dict[str, PodStats] | None:
        """What these pods (all, if None) use now, by UID; those of which nothing is known are left out. None
        while the runtime does not tell which pods there are, and never has.
        """
        ...

    async def in_use(self) -> dict[str, PodStats] | None:
        """What all pods use of memory and processes at this moment, by UID; nothing about disks. None as for
        `measured`.
        """
        ...

    async def look_at_disks(self) -> None:
        """What is on disks is measured anew, as much of it as can be in a short while."""
        ...


class ReclaimDoor(Protocol):
    """Frees what no pod needs."""

    async def dead_containers(self) -> None:
        """Removes every container that does not run of pods that are over."""
        ...

    async def unused_images(self) -> None:
        """Removes every image that nothing uses."""
        ...


Alarm = Callable[[], Awaitable[None]]
"""Returns when the kernel says that memory runs short."""
