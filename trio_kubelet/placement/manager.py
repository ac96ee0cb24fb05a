"""What the CPU and the memory manager have in common: admission around a policy that decides, and the state.

The state is changed here and by nobody else. The state file is the kubelet's, and is on disk before a
container that it names is created.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Generic, TypeVar

from trio_kubelet.api import v1
from trio_kubelet.api.containers import regular_containers
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.log import get_logger
from trio_kubelet.placement.doors import (
    AllocationError,
    GivenState,
    NotWritten,
    PlacementPods,
    PlacementPolicy,
    PlacementStateError,
)
from trio_kubelet.placement.hints import Hint, Hints
from trio_kubelet.placement.manager_file import ManagerFile
from trio_kubelet.placement.metrics import PinningMetrics

log = get_logger(__name__)

S = TypeVar("S", bound=GivenState)
R = TypeVar("R")


class PlacementManager(ABC, Generic[S, R]):
    """A manager of something that containers have to themselves. Implements `doors.HintProvider`.

    `nothing`: the state of a node that has not given anything; `none_left`: of a pod without init containers.
    """

    def __init__(
        self,
        *,
        policy: PlacementPolicy[S, R],
        file: ManagerFile,
        pods: PlacementPods,
        metrics: PinningMetrics,
        nothing: S,
        none_left: R,
    ) -> None:
        self._rules = policy
        self._file = file
        self._pods = pods
        self._counts = metrics
        self._none_left = none_left
        self._state = nothing
        self._unwritten = False  # the file does not say yet what is free, or is not there
        self._unconfirmed: dict[str, set[str]] = {}  # by pod: containers whose share is not written down
        self._reusable: dict[str, R] = {}  # by pod: what its later containers may be given again

    # What is the manager's own

    @abstractmethod
    def _decode(self, content: bytes) -> S:
        """The state of a file. Raises PlacementStateError."""

    @abstractmethod
    def _encode(self) -> bytes:
        """The file of the state as it is now."""

    @abstractmethod
    def _gives(self, pod: v1.Pod, container: v1.Container) -> bool:
        """Whether the container is to be given something when its pod is admitted."""

    @abstractmethod
    def _alone(self, pod: v1.Pod, container: v1.Container) -> int:
        """How many kinds of what is given here the container has to itself."""

    def _tell(self) -> None:
        """The state is another now."""

    def _done(self, before: S, pod: v1.Pod, container: v1.Container) -> None:
        """The container has what it asks for, maybe since earlier."""

    def _failed(self) -> None:
        """A container could not be given what it asks for."""

    # Admission

    async def load(self) -> None:
        """Goes on with what an earlier agent, or a kubelet, assigned. Raises PlacementStateError.

        Where the file cannot be written the agent starts all the same, for it is the one to make room on the
        disk; until then nothing is given that is not in the file.
        """
        try:
            content = await self._file.read()
            known = self._state if content is None else self._decode(content)
            self._put(self._rules.check(known))
        except PlacementStateError as exc:
            raise self._file.unfit(exc) from exc
        await self._try_write()

    def hints(self, pod: v1.Pod, container: v1.Container) -> Hints:
        self._release_stale()
        return self._rules.hints(self._state, pod, container, self._reusable_of(pod))

    def pod_hints(self, pod: v1.Pod) -> Hints:
        self._release_stale()
        return self._rules.pod_hints(self._state, pod, self._reusable_of(pod))

    async def ready(self, pod: v1.Pod) -> None:
        """What there is is known from the start."""

    def take(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Gives the container what it asks for; the first of a pod that is served as one has all of them
        given theirs. Raises AllocationError.

        Who has it keeps it. A kubelet asks first whether as many whole cores are free, and so after a reboot
        refuses a pod that has most of them (kubernetes/kubernetes 129078).
        """
        self._release_stale()
        if not self._gives(pod, container):
            return
        uid, before, reusable = pod.metadata.uid, self._state, self._reusable_of(pod)
        as_one = self._rules.as_one(pod)
        if as_one and uid in before.assigned:
            return
        given = regular_containers(pod.spec) if as_one else [container]
        self._counts.asked(sum(self._alone(pod, each) > 0 for each in given) if as_one else 1)
        try:
            has = not as_one and container.name in before.assigned.get(uid, {})
            state = before if has else self._rules.allocate(before, pod, container, affinity, reusable)
        except AllocationError:
            self._counts.failed(as_one=as_one)
            self._failed()
            raise
        if not as_one:
            self._reusable[uid] = self._rules.reusable_after(state, pod, container, reusable)
        if state != before:
            self._unconfirmed.setdefault(uid, set()).update(each.name for each in given)
            self._change(state)
            for each in given:
                self._counts.gave(self._alone(pod, each), as_one=as_one)
        self._done(before, pod, container)

    async def confirm(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Returns when it is written down, with all else of the pod. Raises NotWritten."""
        if pod.metadata.uid not in self._unconfirmed:
            return
        try:
            await self._write()
        except OSError as exc:
            text = f"the {self._file.manager}'s state cannot be written: {error_words(exc)}"
            raise NotWritten(text) from exc
        self._unconfirmed.pop(pod.metadata.uid, None)

    def let_go(self, pod: v1.Pod) -> None:
        uid, state = pod.metadata.uid, self._state
        self._reusable.pop(uid, None)
        for name in self._unconfirmed.pop(uid, ()):
            state = state.without_container(uid, name)
        if state != self._state:
            self._change(state)

    def leaving(self) -> Collection[str]:
        self._release_stale()
        return self._state.assigned.keys() - {pod.metadata.uid for pod in self._pods.active()}

    async def take_back(self) -> None:
        """What pods had that are over, or were refused after they were given it, is free."""
        self._release_stale()
        if self._unwritten:
            await self._try_write()

    # The state

    def _change(self, state: S) -> None:
        self._unwritten = True
        self._put(state)

    def _put(self, state: S) -> None:
        self._state = state
        self._tell()

    def _reusable_of(self, pod: v1.Pod) -> R:
        return self._reusable.get(pod.metadata.uid, self._none_left)

    def _release_stale(self) -> None:
        """What pods had that are over is free, once it is known that they are."""
        state = self._state
        if state.assigned:
            active = {
                pod.metadata.uid: {c.name for c in regular_containers(pod.spec)}
                for pod in self._pods.active()
            }
            ending = self._pods.ending() if state.assigned.keys() - active.keys() else ()
            for uid, containers in self._state.assigned.items():
                if uid in ending or not (uid in active or self._pods.is_known(uid)):
                    continue
                for name in containers.keys() - active.get(uid, set()):
                    log.v(2).info("Removing container", podUID=uid, containerName=name)
                    state = state.without_container(uid, name)
        for uid in self._reusable.keys() - state.assigned.keys():
            del self._reusable[uid]
        if state != self._state:
            self._change(state)

    async def _write(self) -> None:
        """The state as it is now is on disk afterwards. Raises OSError."""
        self._unwritten = False
        try:
            await self._file.write(self._encode)
        except BaseException:  # cancelled before its turn, too
            self._unwritten = True
            raise

    async def _try_write(self) -> None:
        """As `_write`. After a failure the next change writes it too, or the next `take_back`."""
        try:
            await self._write()
        except OSError as exc:
            self._file.complain(exc)
