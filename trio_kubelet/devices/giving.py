"""Giving devices of one resource to one container: which ones, and having its plugin prepare them.

A device is taken before its plugin is asked about it, so that pods that are admitted side by side cannot get
the same one. A plugin is asked one thing at a time: plugins know a kubelet that admits one pod after the
other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from trio_kubelet.common.log import get_logger
from trio_kubelet.devices.assignments import Assignment, Assignments, Key
from trio_kubelet.devices.choice import Free, choose, in_order, question, sort_free
from trio_kubelet.devices.doors import DevicePlugin, DevicePluginError, PluginLost
from trio_kubelet.devices.inventory import Inventory
from trio_kubelet.devices.metrics import DeviceMetrics
from trio_kubelet.devices.values import by_node
from trio_kubelet.placement.doors import AllocationError, AskAgain
from trio_kubelet.placement.hints import Hint

log = get_logger(__name__)


class Wish(NamedTuple):
    """What a container asks for: so many devices of a resource, of `reusable` ones all that can be had."""

    number: int
    reusable: frozenset[str]
    affinity: Hint | None


class Giver:
    """Knows what is free, and gives it."""

    def __init__(self, inventory: Inventory, assignments: Assignments, metrics: DeviceMetrics) -> None:
        self._inventory = inventory
        self._assignments = assignments
        self._metrics = metrics

    def free(self, name: str) -> frozenset[str]:
        """Healthy devices of a resource that nobody has."""
        healthy = self._inventory.known(name).healthy
        return healthy - self._assignments.in_use(name)

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

    def take(self, key: Key, wish: Wish, preferred: Collection[str] = ()) -> None:
        """Takes as many devices for a container as it wishes that no other has, first those of its pod that
        it may reuse. Another time takes others instead. Raises AllocationError.
        """
        free = self._free_for(key, wish)
        chosen = choose(wish.number, wish.reusable, free, preferred)
        if chosen is None:
            needed = wish.number - len(wish.reusable)
            raise AllocationError(
                f"requested number of devices unavailable for {key.resource}. "
                f"Requested: {needed}, Available: {len(free.all)}"
            )
        self._assignments.take(key, frozenset(chosen))

    async def give(self, key: Key, wish: Wish) -> None:
        """Has the plugin prepare what was taken for a container, or what it would rather give, and gives it.
        Raises AllocationError, and AskAgain when the plugin went meanwhile.
        """
        name = key.resource
        try:
            async with self._inventory.asking(name) as plugin:
                self.take(key, wish, await self._preferred(plugin, key, wish))
                mine = self._assignments.taken[key]
                with self._metrics.allocation.labels(name).time():
                    answer = await plugin.allocate(in_order(mine))
        except PluginLost as exc:
            raise AskAgain(str(exc)) from exc
        except DevicePluginError as exc:
            raise AllocationError(str(exc)) from exc
        if answer is None:
            raise AllocationError("no containers return in allocation response ")
        self._assignments.put(key, Assignment(by_node(self._inventory.known(name).devices, mine), answer))
        log.info("Gave devices to a container", podUID=key.pod, container=key.container, resource=name)

    def _free_for(self, key: Key, wish: Wish) -> Free:
        """Beside what it may reuse, what nobody has, or what was taken for this container."""
        devices = self._inventory.known(key.resource)
        mine = self._assignments.taken.get(key, frozenset()) & devices.healthy
        return sort_free(devices.devices, (self.free(key.resource) | mine) - wish.reusable, wish.affinity)

    async def _preferred(self, plugin: DevicePlugin, key: Key, wish: Wish) -> Sequence[str]:
        """What the plugin would rather give."""
        if not self._inventory.known(key.resource).options.preferred_allocation_available:
            return ()
        asked = question(wish.number, wish.reusable, self._free_for(key, wish))
        if asked is None:
            return ()
        available, must_include = in_order(asked.available), in_order(asked.must_include)
        try:
            return await plugin.preferred(available, must_include, wish.number)
        except DevicePluginError as exc:
            raise type(exc)(f"device plugin GetPreferredAllocation rpc failed with err: {exc}") from exc
