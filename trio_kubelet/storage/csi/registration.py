"""CSI drivers: which there are. The plugin watcher brings them; they are taken into use, told to the cluster,
and given up again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger, go_quote
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.states import PluginInfo
from trio_kubelet.storage.doors import DriverCalls, NodeInfo, NodeInfoWriter
from trio_kubelet.storage.errors import Ending, OperationError

if TYPE_CHECKING:  # imported with the first driver
    from trio_kubelet.storage.csi.driver import CSIDriverClient

log = get_logger(__name__)

PLUGIN_TYPE: Final = "CSIPlugin"
_VERSION: Final = re.compile(r"\s*v?([0-9]+(?:\.[0-9]+)*)", re.ASCII)


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

    def has(self, endpoint: str) -> bool:
        """Whether a registered driver is behind this socket."""
        return any(driver.endpoint == endpoint for driver in self._drivers.values())

    def names(self) -> list[str]:
        """All registered drivers."""
        return sorted(self._drivers)

    def get(self, name: str, what: str = "") -> CSIDriverClient:
        """The driver, for the operation `what`. Raises OperationError if it is not registered."""
        driver = self._drivers.get(name)
        if driver is None:
            prefix = f"kubernetes.io/csi: {what}: " if what else ""
            text = f"{prefix}driver name {name} not found in the list of registered CSI drivers"
            raise OperationError(text, Ending.TRANSIENT)
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

        self._check(plugin, "RegisterPlugin")
        driver = CSIDriverClient(plugin.name, plugin.endpoint, self._calls, self._called)
        try:
            info = await driver.info()
            self._check(plugin, "RegisterPlugin")  # another of the name may have been faster
            await self._write_down(plugin.name, info)
            version = self._check(plugin, "RegisterPlugin")
        except GrpcError as error:
            self._forget_unused(plugin.endpoint)
            raise PluginError(str(error)) from error
        except PluginError:
            self._forget_unused(plugin.endpoint)
            raise
        self._versions[plugin.name] = version
        self._drivers.put(driver)

    async def deregister(self, plugin: PluginInfo) -> None:
        known = self._drivers.find(plugin.name)
        is_known = known is not None and known.endpoint == plugin.endpoint
        if is_known:
            self._versions.pop(plugin.name, None)
            self._drivers.remove(plugin.name)
        self._forget_unused(plugin.endpoint)
        if is_known:
            await self._write_off(plugin.name)

    def _forget_unused(self, endpoint: str) -> None:
        """Drivers come back at other sockets, and with them what is kept for each would grow for ever."""
        if not self._drivers.has(endpoint):
            self._calls.forget(endpoint)

    async def _write_down(self, name: str, info: NodeInfo) -> None:
        """What the driver says of the node is known to the cluster. Raises PluginError."""
        if self._writer is None:
            return
        try:
            await self._writer.install(name, info)
        except PluginError:
            if self._drivers.find(name) is None:
                await self._write_off(name)
            raise

    async def _write_off(self, name: str) -> None:
        """Nothing that the cluster knows of the driver stays."""
        if self._writer is not None:
            with trio.move_on_after(30):
                try:
                    await self._writer.uninstall(name)
                except PluginError as error:
                    log.error("A driver that has gone is still written down", driver=name, err=error)

    def _check(self, plugin: PluginInfo, caller: str) -> tuple[int, ...]:
        """The newest version the driver has that is understood here. Raises PluginError."""
        prefix = f'kubernetes.io/csi: {caller} for CSI driver "{plugin.name}" failed.'
        if not plugin.versions:
            raise PluginError(f"{prefix} Plugin returned an empty list for supported versions")
        shown = " ".join(f'"{version}"' for version in plugin.versions)
        try:
            newest = newest_version(plugin.versions)
        except ValueError as error:
            text = f"{prefix} None of the versions specified [{shown}] are supported. err={error}"
            raise PluginError(text) from error
        known = self._versions.get(plugin.name)
        if known is not None and _order(known) >= _order(newest):
            raise PluginError(
                f"{prefix} Another driver with the same name is already registered with a higher supported "
                f'version: "{".".join(map(str, known))}"'
            )
        return newest


def newest_version(versions: Sequence[str]) -> tuple[int, ...]:
    """The newest of versions of CSI that is 1.x. Raises ValueError with the kubelet's words
    (`HighestSupportedVersion`).
    """
    newest: tuple[int, ...] | None = None
    why = "<nil>"
    for version in reversed(versions):
        try:
            parsed = _parsed(version)
        except ValueError as error:
            why = str(error)
            continue
        if parsed[0] <= 1 and (newest is None or _order(newest) < _order(parsed)):
            newest = parsed
    if newest is None:
        shown = " ".join(versions)
        raise ValueError(
            f"could not find a highest supported version from versions ([{shown}]) reported: {why}"
        )
    if newest[0] != 1:
        shown = ".".join(map(str, newest))
        raise ValueError(f"highest supported version reported is {shown}, must be v1.x")
    return newest


def _parsed(version: str) -> tuple[int, ...]:
    """The numbers a version begins with, two at least. Raises ValueError."""
    found = _VERSION.match(version)
    if found is None:
        raise ValueError(f"could not parse {go_quote(version)} as version")
    parts = found[1].split(".")
    if len(parts) < 2:
        raise ValueError(f"illegal version string {go_quote(version)}")
    if parts[0].startswith("0") and parts[0] != "0":
        text = f"illegal zero-prefixed version component {go_quote(parts[0])} in {go_quote(version)}"
        raise ValueError(text)
    return tuple(map(int, parts))


def _order(version: tuple[int, ...]) -> tuple[int, ...]:
    """What versions are compared by: 1.0 is 1.0.0."""
    length = len(version)
    while length > 1 and version[length - 1] == 0:
        length -= 1
    return version[:length]
