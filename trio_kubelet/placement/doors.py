"""Who gives hints and then gives what was hinted at: devices, CPUs; and what they ask of the agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol, Self, TypeVar

from trio_kubelet.api import v1
from trio_kubelet.placement.hints import Hint, Hints


class AllocationError(Exception):
    """A container cannot be given what it asks for; the text is part of the refusal of its pod. `reason`: of
    the refusal, "" for one that nobody expects.
    """

    reason = ""

    def __init__(self, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        if reason is not None:
            self.reason = reason


class AskAgain(AllocationError):
    """Who was asked has gone meanwhile, and may be back: `HintProvider.ready` waits for that."""


class NotWritten(AllocationError):
    """It cannot be written down who has what: for want of room on the disk, say, which comes again."""


class PlacementStateError(Exception):
    """What is written down as given is not what this agent can go on with on this node; the text says why."""


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

    def take(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """What the container asks for is nobody else's from now on, from `affinity` if that can be. Init
        containers come first, in order, then the others. Raises AllocationError.
        """
        ...

    async def confirm(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Makes what was taken for the container its own: whoever has to prepare it has, and it is written
        down. In the same order. Raises AllocationError.
        """
        ...

    def let_go(self, pod: v1.Pod) -> None:
        """What was taken for the pod and not confirmed is free."""
        ...

    def leaving(self) -> Collection[str]:
        """Pods, by UID, that have something and are not wanted, as far as is known: it will be free."""
        ...


class GivenState(Protocol):
    """Who has what, as a value."""

    @property
    def assigned(self) -> Mapping[str, Mapping[str, object]]:
        """By pod UID, then by container."""
        ...

    def without_container(self, uid: str, container: str) -> Self:
        """What the container had is free."""
        ...


S = TypeVar("S", bound=GivenState)
R = TypeVar("R")


class PlacementPolicy(Protocol[S, R]):
    """Decides; `R` is what init containers leave to later containers of their pod."""

    def as_one(self, pod: v1.Pod) -> bool:
        """Whether the pod is given things as a whole."""
        ...

    def check(self, state: S) -> S:
        """The state as it may be gone on with. Raises PlacementStateError."""
        ...

    def hints(self, state: S, pod: v1.Pod, container: v1.Container, reusable: R) -> Hints:
        """Where the container could be given what it asks for."""
        ...

    def pod_hints(self, state: S, pod: v1.Pod, reusable: R) -> Hints:
        """Where the pod as a whole could be given what it asks for."""
        ...

    def allocate(
        self, state: S, pod: v1.Pod, container: v1.Container, affinity: Hint | None, reusable: R
    ) -> S:
        """The state after the container was given what it asks for. Raises AllocationError."""
        ...

    def reusable_after(self, state: S, pod: v1.Pod, container: v1.Container, reusable: R) -> R:
        """What later containers may be given a second time."""
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

    def is_known(self, uid: str) -> bool:
        """Whether every source has told its pods that the pod may be of."""
        ...

    def ending(self) -> Collection[str]:
        """UIDs of pods that are not active, and of which something still runs."""
        ...

    def runs(self, uid: str) -> bool:
        """Whether a sandbox or a container of the pod runs."""
        ...

    def running(self) -> Iterable[Running]:
        """Containers that run, of active pods and of those that are ending."""
        ...


class CPUSetter(Protocol):
    """Changes the CPUs of a container that runs."""

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Raises CRIError."""
        ...
