"""What containers have been given, for those who ask over the pod resources service. Joins rooms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trio_kubelet.api import v1
from trio_kubelet.common.cpusets import NONE, CPUSet
from trio_kubelet.common.log import get_logger
from trio_kubelet.devices.values import NO_NODE
from trio_kubelet.dra.claims import ClaimError
from trio_kubelet.placement.memory_state import Block
from trio_kubelet.plugged import Plugged
from trio_kubelet.podresources.doors import HeldClaim, HeldClaimDevice, HeldDevice, HeldMemory

log = get_logger(__name__)


class NodeHoldings:
    """Implements `podresources.doors.Holdings`."""

    def __init__(self, plugged: Plugged) -> None:
        self._plugged = plugged

    def devices(self, pod: v1.Pod, container: v1.Container) -> Iterator[HeldDevice]:
        """As they were given; the plugin may have told otherwise since."""
        for name, assignment in self._plugged.devices.of_container(pod.metadata.uid, container.name).items():
            for node, ids in assignment.by_node.items():
                yield from (HeldDevice(name, id, None if node == NO_NODE else node) for id in ids)

    def claims(self, pod: v1.Pod, container: v1.Container) -> Iterable[HeldClaim]:
        """With everything that was prepared for the claim, as the kubelet tells it."""
        try:
            claims = self._plugged.dra.of_container(pod, container)
        except ClaimError as exc:
            log.error("Unable to get container claim info state", pod=pod, err=exc)
            return []
        return [
            HeldClaim(
                namespace=claim.namespace,
                name=claim.name,
                devices=[
                    HeldClaimDevice(
                        driver=driver,
                        pool=device.pool,
                        device=device.name,
                        share_id=device.share_id,
                        cdi_ids=device.cdi_ids,
                    )
                    for driver, devices in sorted(claim.drivers.items())
                    for device in devices
                ],
            )
            for claim in claims
        ]

    def allocatable_devices(self) -> Iterator[HeldDevice]:
        """All healthy devices."""
        for name, devices in self._plugged.devices.allocatable().items():
            for device in devices:
                for node in device.nodes or (None,):
                    yield HeldDevice(name, device.id, node)

    def cpus(self, pod: v1.Pod, container: v1.Container) -> CPUSet:
        """None without a CPU policy, as with the kubelet's policy `none`."""
        cpus = self._plugged.cpus
        return cpus.exclusive(pod.metadata.uid, container.name) if cpus is not None else NONE

    def allocatable_cpus(self) -> CPUSet:
        """All but the reserved ones; none without a CPU policy."""
        return self._plugged.cpus.allocatable() if self._plugged.cpus is not None else NONE

    def memory(self, pod: v1.Pod, container: v1.Container) -> Iterable[HeldMemory]:
        """None without a memory policy."""
        memory = self._plugged.memory
        return _held(memory.of(pod.metadata.uid, container.name)) if memory is not None else ()

    def allocatable_memory(self) -> Iterable[HeldMemory]:
        """What is not reserved; none without a memory policy."""
        return _held(self._plugged.memory.allocatable()) if self._plugged.memory is not None else ()


def _held(blocks: Iterable[Block]) -> Iterable[HeldMemory]:
    return (HeldMemory(block.kind, block.size, block.nodes) for block in blocks)
