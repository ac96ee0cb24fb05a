"""The memory manager: containers of Guaranteed pods have their memory on NUMA nodes where it is counted.

What of the configuration concerns it, on this machine, is `memory_policy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar
from trio_kubelet.api.quantity import DECIMAL_SI, Quantity, parse
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration, MemoryReservation
from trio_kubelet.machine.facts import kept_quantity
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.doors import PlacementPods
from trio_kubelet.placement.manager import PlacementManager
from trio_kubelet.placement.manager_file import memory_state_file
from trio_kubelet.placement.memory_checkpoint import decode, encode
from trio_kubelet.placement.memory_policy import MemoryPolicy, NoMemory, Reusable, is_memory, whole_bytes
from trio_kubelet.placement.memory_state import MEMORY, NO_POLICY, POLICY, Block, MemoryState
from trio_kubelet.placement.metrics import MemoryMetrics
from trio_kubelet.placement.pod_level import PodLevel


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


_NOTHING: Final = Quantity(0, 0, DECIMAL_SI)


def memory_policy(
    config: KubeletConfiguration,
    capacity: Mapping[str, str],
    nodes: Sequence[NUMAMemory],
    *,
    pod_level: PodLevel = PodLevel.SHARED,
    ignore_eviction: bool = False,
) -> MemoryPolicy | None:
    """The memory manager's policy; None for `None`. Raises ConfigurationError with the kubelet's words."""
    chosen = config.memory_manager_policy or NO_POLICY
    if chosen == NO_POLICY:
        return None
    if chosen != POLICY:
        raise ConfigurationError(f'unknown policy: "{chosen}"')
    kept = {
        name: kept_quantity(config, name, total, ignore_eviction=ignore_eviction)
        for name, total in capacity.items()
        if is_memory(name)
    }
    _check_sums(kept, config.reserved_memory, nodes)
    reserved: dict[int, dict[str, int]] = {}
    for each in config.reserved_memory:
        for kind, text in (each.limits or {}).items():
            try:
                reserved.setdefault(each.numa_node, {})[kind] = whole_bytes(text)
            except NoMemory as exc:
                raise ConfigurationError("could not covert a variable of type Quantity to int64") from exc
    if not sum(kinds.get(MEMORY, 0) for kinds in reserved.values()):
        raise ConfigurationError("[memorymanager] you should specify the system reserved memory")
    return MemoryPolicy(nodes, reserved, pod_level)


def _check_sums(
    kept: Mapping[str, Quantity], reservations: Sequence[MemoryReservation], nodes: Sequence[NUMAMemory]
) -> None:
    """Of each kind as much has to be reserved on NUMA nodes as is kept from pods on the whole."""
    reserved: dict[str, Quantity] = {}
    known = {node.number for node in nodes}
    for each in reservations:
        if each.numa_node not in known:
            raise ConfigurationError(
                f"the reserved memory configuration references a NUMA node {each.numa_node} that does not "
                "exist on this machine"
            )
        for kind, text in (each.limits or {}).items():
            reserved[kind] = parse(text).add(reserved.get(kind, _NOTHING))
    for kind in sorted({*reserved, *kept}):
        mine, its = reserved.get(kind, _NOTHING), kept.get(kind, _NOTHING)
        if mine.compare(its):
            raise ConfigurationError(
                f'the total amount "{mine}" of type "{kind}" is not equal to the value "{its}" determined by '
                "Node Allocatable feature"
            )
