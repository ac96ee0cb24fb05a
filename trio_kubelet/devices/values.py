"""Devices and what is known of a resource that a plugin offers. Values, and pure functions over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from trio_kubelet.api.validation.formats import qualified_name

HEALTHY: Final = "Healthy"
NO_NODE: Final = -1
"""Stands for devices that are on no NUMA node (kubelet: `nodeWithoutTopology`)."""
GRACE: Final = 300.0
"""Seconds that a resource stays on the Node after its plugin has gone (kubelet: endpointStopGracePeriod)."""


class Device(msgspec.Struct, frozen=True):
    """One device as its plugin tells it; `nodes`: the NUMA nodes it is near."""

    id: str
    healthy: bool = True
    nodes: tuple[int, ...] = ()


class DevicePluginOptions(NamedTuple):
    """What a plugin wants to be asked (`DevicePluginOptions`)."""

    pre_start_required: bool = False
    preferred_allocation_available: bool = False


class DeviceResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource by its name.

    `devices` are those of the last list, kept after the plugin has gone; `offered` says whether they are on
    offer: not before the first list, and not when the plugin has gone. `stopped_at` (Trio time): since when
    there is no plugin.
    """

    devices: Mapping[str, Device] = {}
    offered: bool = False
    options: DevicePluginOptions = DevicePluginOptions()
    stopped_at: float | None = None

    @property
    def healthy(self) -> frozenset[str]:
        """Devices that can be given."""
        if not self.offered:
            return frozenset()
        return frozenset(device.id for device in self.devices.values() if device.healthy)

    @property
    def awaited(self) -> bool:
        """Whether the plugin is away, or has come and not told its devices yet."""
        return not self.offered

    def expired(self, now: float) -> bool:
        """Whether the plugin has been away for longer than its grace."""
        return self.stopped_at is not None and now - self.stopped_at > GRACE

    def near_nodes(self) -> bool:
        """Whether any device says where it is: then the resource cares."""
        return any(device.nodes for device in self.devices.values())


class Counts(NamedTuple):
    """What the Node's status says of devices, by resource; `removed`: resources that are no more."""

    capacity: dict[str, int] = {}  # noqa: RUF012 (never changed)
    allocatable: dict[str, int] = {}  # noqa: RUF012
    removed: frozenset[str] = frozenset()


def count(resources: Mapping[str, DeviceResource], removed: frozenset[str] = frozenset()) -> Counts:
    """Capacity is every device that is known, allocatable the healthy ones (kubelet: `GetCapacity`)."""
    capacity = {name: len(resource.devices) for name, resource in resources.items()}
    allocatable = {name: len(resource.healthy) for name, resource in resources.items()}
    return Counts(capacity, allocatable, removed)


def changed_health(before: Mapping[str, Device], after: Mapping[str, Device]) -> frozenset[str]:
    """Devices whose health is another one, or that were not there before."""
    return frozenset(
        id for id, device in after.items() if id not in before or before[id].healthy != device.healthy
    )


def is_extended_resource(name: str) -> bool:
    """Whether plugins may offer a resource of this name (kubelet: `IsExtendedResourceName`)."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return not qualified_name(f"requests.{name}")


def by_node(devices: Mapping[str, Device], ids: Iterable[str]) -> dict[int, list[str]]:
    """Ids under each node they are near, as the checkpoint has them; a device that is not listed any more is
    near none.
    """
    found: dict[int, list[str]] = {}
    for id in sorted(ids):
        device = devices.get(id)
        for node in (device.nodes if device is not None else ()) or (NO_NODE,):
            found.setdefault(node, []).append(id)
    return dict(sorted(found.items()))
