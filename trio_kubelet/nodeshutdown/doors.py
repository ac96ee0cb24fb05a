"""What a shutdown needs of the pods."""

from __future__ import annotations

from typing import Protocol

import trio

from trio_kubelet.api import v1


class ShutdownPodsDoor(Protocol):
    """The pods of the node (implemented by `pods.victims.Victims`)."""

    def active(self) -> list[v1.Pod]:
        """Pods that run or will run, or are still ending."""
        ...

    def shut_down(self, pod: v1.Pod, *, grace: int, reason: str, message: str) -> trio.Event:
        """Ends a pod; the event is set once its containers have stopped."""
        ...

    async def wait_stopped(self, pod: v1.Pod, stopped: trio.Event, grace: int) -> bool:
        """Waits for that; False, with an event, if it did not stop in time."""
        ...

    def is_finished(self, uid: str) -> bool:
        """Whether nothing of the pod is left to be done, its volumes included."""
        ...
