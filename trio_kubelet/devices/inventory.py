"""Which resources there are, with their devices, and the plugins that offer them.

A resource outlives its plugin for a while: nothing of it can be given then, but the Node goes on showing how
much there is, and pods that want some wait for the plugin.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.devices.doors import DevicePlugin, DevicePluginError, PluginLost
from trio_kubelet.devices.values import GRACE, Counts, Device, DeviceResource, changed_health, count

log = get_logger(__name__)

NONE = frozenset[str]()
MOST_RESOURCES: Final = 1000
"""Names that plugins may have registered, those that are no more too: each stands on the Node."""


class Inventory:
    """All resources. `changed` is told of a resource and which of its devices have another health."""

    def __init__(
        self,
        *,
        numa_nodes: Sequence[int],
        changed: Callable[[str, frozenset[str]], None],
    ) -> None:
        self._numa_nodes = frozenset(numa_nodes)
        self._changed = changed
        self._resources: dict[str, DeviceResource] = {}
        self._plugins: dict[str, DevicePlugin] = {}
        self._asking: dict[str, trio.Lock] = {}
        self._removed: set[str] = set()
        self._told: dict[str, Mapping[str, Device]] = {}
        self._news = trio.Event()  # a plugin has told its devices, or a resource is no more

    def __contains__(self, name: object) -> bool:
        return name in self._resources

    def resources(self) -> Iterator[tuple[str, DeviceResource]]:
        """All by name."""
        return iter(sorted(self._resources.items()))

    def known(self, name: str) -> DeviceResource:
        """What is known of a resource; an empty one if there is none of the name."""
        return self._resources.get(name, DeviceResource())

    def told(self, name: str) -> Mapping[str, Device]:
        """The devices as the resource's plugin told them last, also after the resource is no more (kubelet:
        `allDevices`).
        """
        return self._told.get(name, {})

    def counts(self) -> Counts:
        """What the Node's status says."""
        return count(self._resources, frozenset(self._removed))

    def await_plugins(self, names: Iterable[str]) -> None:
        """Resources that were there before the agent: their plugins should come back."""
        for name in names:
            self._resources[name] = DeviceResource(stopped_at=trio.current_time())

    def awaited(self, name: str) -> bool:
        """Whether the resource is there and its plugin is not, or has not told its devices yet."""
        return name in self._resources and self._resources[name].awaited

    async def until_offered(self, name: str) -> None:
        """Returns when devices are on offer, or when the resource is no more."""
        while self.awaited(name):
            await self._news.wait()

    @asynccontextmanager
    async def asking(self, name: str) -> AsyncIterator[DevicePlugin]:
        """The plugin of a resource, which is asked by nobody else meanwhile; one that is lost meanwhile is
        out at once, not when its list ends, too. Raises DevicePluginError.
        """
        plugin = self._plugins.get(name)
        if plugin is None:
            raise DevicePluginError(f"endpoint {name} has been stopped")
        try:
            async with self._asking[name]:
                yield plugin
        except PluginLost:
            self.disconnect(name, plugin)
            raise

    async def connect(self, name: str, plugin: DevicePlugin) -> None:
        """A plugin offers the resource from now on; one that did before is out. Raises DevicePluginError."""
        options = await plugin.options()
        if not self._has_room(name):
            raise DevicePluginError(f"no room for {name}: {MOST_RESOURCES} resources have been registered")
        before = self._resources.get(name, DeviceResource())
        if name in self._plugins:
            log.info("Another plugin has registered for the resource", resource=name)
        self._plugins[name] = plugin
        self._asking[name] = trio.Lock()
        self._removed.discard(name)
        self._resources[name] = msgspec.structs.replace(before, options=options, stopped_at=None)
        log.info("Device plugin connected", resource=name)

    def listed(self, name: str, plugin: DevicePlugin, devices: Sequence[Device]) -> None:
        """The plugin has told which devices there are; one that is out is not listened to."""
        if self._plugins.get(name) is not plugin:
            return
        before = self._resources[name]
        self._told[name] = now = {device.id: device for device in devices}
        if len(now) != len(devices):
            log.warning("A device plugin lists devices twice, the last counts", resource=name)
        unknown = sorted({n for each in now.values() for n in each.nodes} - self._numa_nodes)
        if unknown and now != before.devices:
            log.warning("Ignoring NUMA nodes that a plugin names", resource=name, unknownNodes=unknown[:16])
        after = msgspec.structs.replace(before, devices=now, offered=True)
        if after == before:
            return
        self._resources[name] = after
        self._wake()
        self._changed(name, changed_health(before.devices, now))
        log.v(2).info(
            "Processed device updates for resource",
            resource=name,
            totalCount=len(now),
            healthyCount=len(after.healthy),
        )

    def disconnect(self, name: str, plugin: DevicePlugin) -> None:
        """The plugin has gone: nothing is allocatable until it, or another, is back."""
        if self._plugins.get(name) is not plugin:
            return
        del self._plugins[name]
        stopped = msgspec.structs.replace(
            self._resources[name], offered=False, stopped_at=trio.current_time()
        )
        self._resources[name] = stopped
        log.info("Endpoint became unhealthy", resource=name)
        self._changed(name, NONE)

    def expire(self) -> None:
        """Takes resources away whose plugin has been gone for longer than its grace."""
        now = trio.current_time()
        gone = [name for name, resource in self._resources.items() if resource.expired(now)]
        for name in gone:
            del self._resources[name]
            self._removed.add(name)
            log.info("Resource is no more, its plugin has not come back", resource=name, seconds=GRACE)
            self._wake()
            self._changed(name, NONE)

    def _has_room(self, name: str) -> bool:
        known = self._resources.keys() | self._removed
        return name in known or len(known) < MOST_RESOURCES

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()
