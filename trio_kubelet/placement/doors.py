"""Who gives hints and then gives what was hinted at: devices, CPUs; and what they ask of the agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from trio_kubelet.api import v1
from trio_kubelet.placement.hints import Hint, Hints


class AllocationError(Exception):
    """A container cannot be given what it asks for; the text is part of the refusal of its pod. `reason`: of
    the refusal, "" for one that nobody expects.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class HintProvider(Protocol):
    """Gives containers something that is handed out piece by piece (kubelet: `topologymanager.HintProvider`).

    What was given stays the container's until its pod is over, and is given again when it is asked for again.
    """

    async def ready(self, pod: v1.Pod) -> None:
        """Returns when it is known what there is of what the pod asks for; after a while in any case."""
        ...

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


class Running(NamedTuple):
    """A container that runs."""

    uid: str  # its pod's
    name: str
    id: str


class PlacementPods(Protocol):
    """The pods of the node."""

    def active(self) -> Collection[v1.Pod]:
        """PlacementPods that run or will run here."""
        ...

    def all_known(self) -> bool:
        """Whether every source has told its pods."""
        ...

    def runs(self, uid: str) -> bool:
        """Whether a sandbox or a container of the pod runs."""
        ...

    def running(self) -> Iterable[Running]:
        """Containers of active pods that run."""
        ...


class CPUSetter(Protocol):
    """Changes the CPUs of a container that runs."""

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Raises CRIError."""
        ...
