"""Giving devices of one resource to one container: which ones, and having its plugin prepare them.

A device is taken before its plugin is asked about it and given back if the plugin refuses, so that pods that
are admitted side by side cannot get the same one. A plugin is asked one thing at a time: plugins know a
kubelet that admits one pod after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Self

from trio_kubelet.common.log import get_logger
from trio_kubelet.devices.assignments import Assignment, Assignments, Key
from trio_kubelet.devices.choice import choose, in_order, question, sort_free
from trio_kubelet.devices.doors import DevicePlugin, DevicePluginError, PluginLost
from trio_kubelet.devices.inventory import Inventory
from trio_kubelet.devices.metrics import DeviceMetrics
from trio_kubelet.devices.values import by_node
from trio_kubelet.placement.doors import AllocationError, AskAgain
from trio_kubelet.placement.hints import Hint

log = get_logger(__name__)


class _Wish(NamedTuple):
    """What is asked for: so many devices of a resource, of `reusable` ones all that can be had."""

    resource: str
    wanted: int
    reusable: frozenset[str]
    affinity: Hint | None


class _Hold:
    """Devices that are nobody else's while the block lasts; a reusable one may be among them."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self.devices = frozenset[str]()

    def take(self, devices: frozenset[str]) -> None:
        """These instead of those before."""
        self._taken -= self.devices
        self.devices = devices
        self._taken |= devices

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.take(frozenset())


class Giver:
    """Knows what is free, and gives it."""

    def __init__(self, inventory: Inventory, assignments: Assignments, metrics: DeviceMetrics) -> None:
        self._inventory = inventory
        self._assignments = assignments
        self._metrics = metrics
        self._reserved: dict[str, set[str]] = {}  # by resource: taken while a plugin is asked about them

    def free(self, name: str) -> frozenset[str]:
        """Healthy devices of a resource that nobody has."""
        healthy = self._inventory.known(name).healthy
        return healthy - self._assignments.in_use(name) - self._reserved.get(name, set())

    def check(self, name: str, has: Assignment | None) -> None:
        """That the resource can be given, and is sound where the container has it. Raises AllocationError."""
        if name not in self._inventory:
            raise AllocationError(f"cannot allocate unregistered device {name}")
        resource = self._inventory.known(name)
        if not resource.healthy:
            text = f"no healthy devices present; cannot allocate unhealthy devices {name}"
            raise AllocationError(text)
        if has is not None and not has.devices <= resource.healthy:
            raise AllocationError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {name}"
            )

    async def give(self, key: Key, wanted: int, reusable: frozenset[str], affinity: Hint | None) -> None:
        """Gives a container so many devices that no other has, first those of its pod that it may reuse.
        Raises AllocationError, and AskAgain when the plugin went meanwhile.
        """
        name = key.resource
        wish = _Wish(name, wanted, reusable & self._inventory.known(name).healthy, affinity)
        with _Hold(self._reserved.setdefault(name, set())) as mine:
            mine.take(self._choose(wish))
            try:
                async with self._inventory.asking(name) as plugin:
                    if preferred := await self._preferred(plugin, wish, mine.devices):
                        mine.take(frozenset())
                        mine.take(self._choose(wish, preferred))
                    with self._metrics.allocation.labels(name).time():
                        answer = await plugin.allocate(in_order(mine.devices))
            except PluginLost as exc:
                raise AskAgain(str(exc)) from exc
            except DevicePluginError as exc:
                raise AllocationError(str(exc)) from exc
            if answer is None:
                raise AllocationError("no containers return in allocation response ")
            devices = self._inventory.known(name).devices
            self._assignments.put(key, Assignment(by_node(devices, mine.devices), answer))
        log.info("Gave devices to a container", podUID=key.pod, container=key.container, resource=name)

    def _choose(self, wish: _Wish, preferred: Collection[str] = ()) -> frozenset[str]:
        name, wanted, reusable, affinity = wish
        devices = self._inventory.known(name).devices
        free = sort_free(devices, self.free(name) - reusable, affinity)
        chosen = choose(wanted, reusable, free, preferred)
        if chosen is None:
            needed = wanted - len(reusable)
            raise AllocationError(
                f"requested number of devices unavailable for {name}. "
                f"Requested: {needed}, Available: {len(free.all)}"
            )
        return frozenset(chosen)

    async def _preferred(self, plugin: DevicePlugin, wish: _Wish, mine: Collection[str]) -> Sequence[str]:
        """What the plugin would rather give, of what is free and what was taken for this container."""
        name, wanted, reusable, affinity = wish
        resource = self._inventory.known(name)
        if not resource.options.preferred_allocation_available:
            return ()
        free = sort_free(resource.devices, (self.free(name) | {*mine}) - reusable, affinity)
        asked = question(wanted, reusable, free)
        if asked is None:
            return ()
        try:
            return await plugin.preferred(in_order(asked.available), in_order(asked.must_include), wanted)
        except DevicePluginError as exc:
            raise type(exc)(f"device plugin GetPreferredAllocation rpc failed with err: {exc}") from exc
