"""The memory manager: containers of Guaranteed pods have their memory on NUMA nodes where it is counted."""

from __future__ import annotations

from collections.abc import Sequence

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.placement.doors import PlacementPods
from trio_kubelet.placement.manager import PlacementManager
from trio_kubelet.placement.manager_file import memory_state_file
from trio_kubelet.placement.memory_checkpoint import decode, encode
from trio_kubelet.placement.memory_policy import MemoryPolicy, Reusable
from trio_kubelet.placement.memory_state import POLICY, Block, MemoryState
from trio_kubelet.placement.metrics import MemoryMetrics


class MemoryManager(PlacementManager[MemoryState, Reusable]):
    """The policy `Static` at work."""

    def __init__(
        self, *, policy: MemoryPolicy, root_dir: str, pods: PlacementPods, metrics: MemoryMetrics
    ) -> None:
        super().__init__(
            policy=policy,
            file=memory_state_file(root_dir),
            pods=pods,
            metrics=metrics,
            nothing=MemoryState(),
            none_left={},
        )
        self._policy = policy

    # Admission

    def _decode(self, content: bytes) -> MemoryState:
        return decode(content, POLICY, self._policy.pod_level)

    def _encode(self) -> bytes:
        return encode(POLICY, self._state, self._policy.pod_level)

    def _gives(self, pod: v1.Pod, container: v1.Container) -> bool:
        """Not to an init container of a pod that has gone on: what it had may be another's now."""
        uid = pod.metadata.uid
        passed = self._pods.runs(uid) and self._state.of(uid, container.name) is None
        return self._policy.manages(pod) and not passed

    def _alone(self, pod: v1.Pod, container: v1.Container) -> int:
        return len(self._policy.wanted_by(pod, container))

    # What containers have

    def concerns(self, pod: v1.Pod) -> bool:
        """Whether the pod's containers are to have memory of their own."""
        return self._policy.manages(pod)

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
            self._put(state)
            await self._try_write()
