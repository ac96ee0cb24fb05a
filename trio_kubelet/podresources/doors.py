"""Who knows what containers have been given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from trio_kubelet.api import v1


class HeldDevice(msgspec.Struct, frozen=True, order=True):
    """A device of a plugin. One that is near several NUMA nodes is held once for each; None: near none."""

    resource: str
    id: str
    node: int | None = None


class HeldClaimDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a driver has prepared for a claim."""

    driver: str
    pool: str
    device: str
    share_id: str | None = None
    cdi_ids: Sequence[str] = ()


class HeldClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that a container uses."""

    namespace: str
    name: str
    devices: Sequence[HeldClaimDevice] = ()


class HeldMemory(msgspec.Struct, frozen=True, order=True):
    """Memory of one kind (`memory`, `hugepages-2Mi` …), in bytes, on one or more NUMA nodes."""

    kind: str
    size: int
    nodes: tuple[int, ...]


class Holdings(Protocol):
    """What containers have, and what there is to be had."""

    def devices(self, pod: v1.Pod, container: v1.Container) -> Iterable[HeldDevice]:
        """Devices of a container."""
        ...

    def claims(self, pod: v1.Pod, container: v1.Container) -> Iterable[HeldClaim]:
        """Claims of a container."""
        ...

    def cpus(self, pod: v1.Pod, container: v1.Container) -> Iterable[int]:
        """CPUs that a container has to itself."""
        ...

    def memory(self, pod: v1.Pod, container: v1.Container) -> Iterable[HeldMemory]:
        """Memory that is counted for a container."""
        ...

    def allocatable_devices(self) -> Iterable[HeldDevice]:
        """All healthy devices, whoever has them."""
        ...

    def allocatable_cpus(self) -> Iterable[int]:
        """All CPUs that containers may have to themselves, whoever has them."""
        ...

    def allocatable_memory(self) -> Iterable[HeldMemory]:
        """What there is for containers on each NUMA node, whoever has it."""
        ...
