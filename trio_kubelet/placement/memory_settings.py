"""What of the configuration concerns the memory manager on this machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trio_kubelet.api.quantity import DECIMAL_SI, Quantity, parse
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration, MemoryReservation
from trio_kubelet.machine.facts import kept_quantity
from trio_kubelet.machine.numa import NUMAMemory
from trio_kubelet.placement.memory_policy import MemoryPolicy, NoMemory, is_memory, whole_bytes
from trio_kubelet.placement.memory_state import MEMORY, NO_POLICY, POLICY
from trio_kubelet.placement.pod_level import PodLevel

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
        for kind, text in each.limits.items():
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
        for kind, text in each.limits.items():
            reserved[kind] = parse(text).add(reserved.get(kind, _NOTHING))
    for kind in sorted({*reserved, *kept}):
        mine, its = reserved.get(kind, _NOTHING), kept.get(kind, _NOTHING)
        if mine.compare(its):
            raise ConfigurationError(
                f'the total amount "{mine}" of type "{kind}" is not equal to the value "{its}" determined by '
                "Node Allocatable feature"
            )
