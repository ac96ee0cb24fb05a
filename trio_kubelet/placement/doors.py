"""Who gives hints and then gives what was hinted at: devices, CPUs, memory."""

from __future__ import annotations

from typing import Protocol

from trio_kubelet.api import v1
from trio_kubelet.placement.hints import Hint, Hints


class AllocationError(Exception):
    """A container cannot be given what it asks for; the text is part of the refusal of its pod."""


class Provider(Protocol):
    """Gives containers something that is handed out piece by piece (kubelet: `topologymanager.HintProvider`).

    What was given stays the container's until its pod is over, and is given again when it is asked for again.
    """

    def hints(self, pod: v1.Pod, container: v1.Container) -> Hints:
        """Where the container could be given what it asks for."""
        ...

    def pod_hints(self, pod: v1.Pod) -> Hints:
        """Where the pod as a whole could be given what it asks for."""
        ...

    async def allocate(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Gives the container what it asks for, from `affinity` if that can be. Init containers come first,
        in order, then the others. Raises AllocationError.
        """
        ...
