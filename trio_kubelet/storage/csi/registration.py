"""CSI drivers: which there are. The plugin watcher brings them; they are taken into use, told to the cluster,
and given up again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.states import PluginInfo
from trio_kubelet.storage.doors import DriverCalls, NodeInfoWriter
from trio_kubelet.storage.errors import Ending, OperationError

if TYPE_CHECKING:  # imported with the first driver
    from trio_kubelet.storage.csi.driver import CSIDriverClient

log = get_logger(__name__)

PLUGIN_TYPE: Final = "CSIPlugin"


class CSIDrivers:
    """The registered drivers by name; `changed` tells the name of each that comes or goes."""

    def __init__(self) -> None:
        self._drivers: dict[str, CSIDriverClient] = {}
        self.changed: Listeners[[str]] = Listeners()

    def put(self, driver: CSIDriverClient) -> None:
        """The driver answers calls from now on."""
        self._drivers[driver.name] = driver
        self.changed.tell(driver.name)

    def remove(self, name: str) -> None:
        """The driver is gone."""
        if self._drivers.pop(name, None) is not None:
            self.changed.tell(name)

    def find(self, name: str) -> CSIDriverClient | None:
        """The driver, if it is registered."""
        return self._drivers.get(name)

    def names(self) -> list[str]:
        """All registered drivers."""
        return sorted(self._drivers)

    def get(self, name: str, what: str) -> CSIDriverClient:
        """The driver, for the operation `what`. Raises OperationError if it is not registered."""
        driver = self._drivers.get(name)
        if driver is None:
            raise OperationError(
                f"kubernetes.io/csi: {what}: driver name {name} not found in the list of registered CSI "
                "drivers",
                Ending.TRANSIENT,
            )
        return driver


class CSIPlugins:
    """Implements `plugins.doors.PluginHandler`. Without `writer` (no API server) nothing is written down."""

    def __init__(
        self,
        *,
        drivers: CSIDrivers,
        calls: DriverCalls,
        writer: NodeInfoWriter | None,
        called: Callable[[str, str, Code, float, bool], None],
    ) -> None:
        self._drivers = drivers
        self._calls = calls
        self._writer = writer
        self._called = called
        self._versions: dict[str, tuple[int, ...]] = {}

    def validate(self, plugin: PluginInfo) -> None:
        try:
            self._check(plugin, "ValidatePlugin")
        except PluginError as error:
            raise PluginError(
                f"validation failed for CSI Driver {plugin.name} at endpoint {plugin.endpoint}: {error}"
            ) from error

    async def register(self, plugin: PluginInfo) -> None:
        from trio_kubelet.storage.csi.driver import CSIDriverClient

        version = self._check(plugin, "RegisterPlugin")
        driver = CSIDriverClient(plugin.name, plugin.endpoint, self._calls, self._called)
        try:
            info = await driver.info()
        except GrpcError as error:
            raise PluginError(str(error)) from error
        if self._writer is not None:
            await self._writer.install(plugin.name, info)
        self._versions[plugin.name] = version
        self._drivers.put(driver)

    async def deregister(self, plugin: PluginInfo) -> None:
        known = self._drivers.find(plugin.name)
        if known is None or known.endpoint != plugin.endpoint:
            return
        self._versions.pop(plugin.name, None)
        self._drivers.remove(plugin.name)
        if self._writer is not None:
            with trio.move_on_after(30):
                try:
                    await self._writer.uninstall(plugin.name)
                except PluginError as error:
                    log.error("A driver that has gone is still written down", driver=plugin.name, err=error)

    def _check(self, plugin: PluginInfo, caller: str) -> tuple[int, ...]:
        """The newest version the driver has that is understood here. Raises PluginError."""
        prefix = f'kubernetes.io/csi: {caller} for CSI driver "{plugin.name}" failed.'
        if not plugin.versions:
            raise PluginError(f"{prefix} Plugin returned an empty list for supported versions")
        shown = " ".join(f'"{version}"' for version in plugin.versions)
        newest = newest_version(plugin.versions)
        if newest is None:
            raise PluginError(f"{prefix} None of the versions specified [{shown}] are supported.")
        known = self._versions.get(plugin.name)
        if known is not None and known >= newest:
            raise PluginError(
                f"{prefix} Another driver with the same name is already registered with a higher supported "
                f'version: "{".".join(map(str, known))}"'
            )
        return newest


def newest_version(versions: tuple[str, ...]) -> tuple[int, ...] | None:
    """The newest of versions of CSI that is 1.x, None if there is none."""
    parsed = []
    for version in versions:
        parts = version.removeprefix("v").split(".")
        if all(part.isascii() and part.isdigit() for part in parts):
            parsed.append(tuple(int(part) for part in parts))
    return max((each for each in parsed if each and each[0] == 1), default=None)
