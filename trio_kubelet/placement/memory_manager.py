"""The memory manager: containers of Guaranteed pods have their memory on NUMA nodes where it is counted.

It owns the state; the policy decides. The state file is the kubelet's, and is on disk before a container that
it names is created.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.common.log import get_logger
from trio_kubelet.placement.checkpoint import PlacementStateError
from trio_kubelet.placement.doors import AllocationError, PlacementPods
from trio_kubelet.placement.hints import Hint, Hints
from trio_kubelet.placement.manager_file import ManagerFile
from trio_kubelet.placement.memory_checkpoint import FILE_NAME, decode, encode
from trio_kubelet.placement.memory_policy import (
    InvalidMemory,
    MemoryPolicy,
    NoMemory,
    Reusable,
    manages,
    reusable_after,
)
from trio_kubelet.placement.memory_state import Block, MemoryState
from trio_kubelet.placement.metrics import MemoryMetrics
from trio_kubelet.placement.stale import stale_containers

log = get_logger(__name__)

POLICY: Final = "Static"
NO_POLICY: Final = "None"


def memory_state_file(root_dir: str) -> ManagerFile:
    """The file in the agent's directory."""
    return ManagerFile(root_dir=root_dir, name=FILE_NAME, manager="memory manager")


class MemoryManager:
    """The policy `Static` at work. Implements `doors.HintProvider`."""

    def __init__(
        self, *, policy: MemoryPolicy, root_dir: str, pods: PlacementPods, metrics: MemoryMetrics
    ) -> None:
        self._policy = policy
        self._file = memory_state_file(root_dir)
        self._pods = pods
        self._metrics = metrics
        self._state = MemoryState()
        self._reusable: dict[str, Reusable] = {}  # by pod: what its later containers may be given again

    async def load(self) -> None:
        """Goes on with what an earlier agent, or a kubelet, assigned. Raises PlacementStateError, OSError."""
        try:
            content = await self._file.read()
            known = MemoryState() if content is None else decode(content, POLICY)
            self._state = self._policy.check(known)
        except (InvalidMemory, PlacementStateError) as exc:
            raise self._file.unfit(exc) from exc
        await self._write()

    # Admission

    def hints(self, pod: v1.Pod, container: v1.Container) -> Hints:
        self._release_stale()
        return self._policy.hints(self._state, pod, container, self._reusable_of(pod))

    def pod_hints(self, pod: v1.Pod) -> Hints:
        self._release_stale()
        return self._policy.pod_hints(self._state, pod, self._reusable_of(pod))

    async def ready(self, pod: v1.Pod) -> None:
        """Memory is known from the start."""

    async def allocate(self, pod: v1.Pod, container: v1.Container, affinity: Hint | None) -> None:
        """Gives the container its memory and returns when that is written down. Raises AllocationError."""
        self._release_stale()
        if not manages(pod):
            return
        if self._pods.runs(pod.metadata.uid) and self._state.of(pod.metadata.uid, container.name) is None:
            return  # an init container of a pod that has gone on: what it had may be another's now
        self._metrics.requests.inc()
        uid, reusable, before = pod.metadata.uid, self._reusable_of(pod), self._state
        try:
            state = self._policy.allocate(before, pod, container, affinity, reusable)
        except NoMemory as exc:
            self._metrics.errors.inc()
            raise AllocationError(str(exc)) from exc
        blocks = state.of(uid, container.name) or ()
        self._reusable[uid] = reusable_after(pod, container, blocks, reusable)
        if state == before:
            return
        self._state = state
        try:
            await self._write()
        except OSError as exc:
            self._state = self._state.without_container(uid, container.name)
            raise AllocationError(f"the memory manager's state cannot be written: {exc}") from exc

    def _reusable_of(self, pod: v1.Pod) -> Reusable:
        return self._reusable.get(pod.metadata.uid, {})

    # What containers have

    def concerns(self, pod: v1.Pod) -> bool:
        """Whether the pod's containers are to have memory of their own."""
        return manages(pod)

    def of(self, uid: str, container: str) -> Sequence[Block]:
        """What a container has."""
        return self._state.of(uid, container) or ()

    def nodes_of(self, uid: str, container: str) -> str:
        """The NUMA nodes that a container's memory is on, as `cpuset.mems` has them; "" for any."""
        nodes = {node for block in self.of(uid, container) for node in block.nodes}
        return ",".join(map(str, sorted(nodes)))

    def allocatable(self) -> Sequence[Block]:
        """What there is for containers on each node, whoever has it."""
        return [
            Block((number,), kind, table.allocatable)
            for number, node in sorted(self._policy.initial().items())
            for kind, table in node.tables.items()
            if table.allocatable
        ]

    async def starts(self, pod: v1.Pod, container: v1.Container) -> None:
        """The container is about to be made: what init containers before it had is free, for they have ended.
        Sidecars keep theirs.
        """
        state = self._state
        for init in pod.spec.init_containers or ():
            if init.name == container.name:
                break
            if not is_sidecar(init):
                state = state.without_container(pod.metadata.uid, init.name)
        if state != self._state:
            self._state = state
            try:
                await self._write()
            except OSError as exc:  # the next change writes it too
                log.error("Failed to save checkpoint", path=self._file.path, err=exc)

    # The state

    def _release_stale(self) -> None:
        for uid, name in list(stale_containers(self._state.assigned, self._pods)):
            self._state = self._state.without_container(uid, name)
        for uid in self._reusable.keys() - self._state.assigned.keys():
            del self._reusable[uid]

    async def _write(self) -> None:
        await self._file.write(lambda: encode(POLICY, self._state))
