"""Where device plugins register: the Registration service on `device-plugins/kubelet.sock`, and a task for
each plugin that follows its list of devices.

Plugins know that the agent has started anew when the socket is made anew, and then register again; so the
directory is cleared of sockets first, and a socket that somebody deletes is put back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.inotify import DirectoryWatch, WatchError
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger, go_quote
from trio_kubelet.devices.doors import DevicePluginError
from trio_kubelet.devices.manager import DeviceManager
from trio_kubelet.devices.proto import plugin_pb2 as api
from trio_kubelet.devices.values import Device, is_extended_resource
from trio_kubelet.grpc.channel import connect
from trio_kubelet.grpc.errors import Code, GrpcError
from trio_kubelet.grpc.loop import AsyncioLoop
from trio_kubelet.grpc.server import Service, serve
from trio_kubelet.plugins.doors import PluginError
from trio_kubelet.plugins.sockets import identity_of
from trio_kubelet.plugins.states import PluginInfo

log = get_logger(__name__)

VERSION: Final = "v1beta1"
SOCKET: Final = "kubelet.sock"
PLUGIN_TYPE: Final = "DevicePlugin"
_WATCHED_LOOK: Final = 30.0  # seconds
_LOOK: Final = 1.0
_DIRECTORY_MODE: Final = 0o755  # the checkpoint's, by which a kubelet makes it
_FAILED: Final = (
    "device registration error: device plugin registration gRPC server failed "
    "and no device plugins can register"
)


class DevicePlugins:
    """The service, and the plugins that have registered."""

    def __init__(self, *, loop: AsyncioLoop, directory: str, manager: DeviceManager) -> None:
        self._loop = loop
        self._directory = directory
        self._manager = manager
        self._sessions: dict[str, tuple[str, trio.CancelScope]] = {}  # by resource, the last: endpoint, task
        self._nursery: trio.Nursery | None = None
        self._error: str | None = None

    def healthy(self) -> str | None:
        """None, or why no plugin can register, for `/healthz/device-plugin`."""
        return self._error

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled. Raises an error when the socket cannot be made; may be started again."""
        try:
            await NODE_FILES.run(clear_sockets, self._directory)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                while True:
                    await self._serve(task_status)
                    task_status = trio.TASK_STATUS_IGNORED
                    log.info("Somebody has removed the socket of device plugins, making it again")
        except Exception as exc:  # out of nurseries, in a group
            self._error = f"{_FAILED}: {error_words(exc)}"
            raise
        finally:
            self._nursery = None

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Serves as long as the socket is there."""
        path = os.path.join(self._directory, SOCKET)
        service = Service(api.DESCRIPTOR, "Registration", {"Register": self.register})
        await NODE_FILES.run(partial(os.makedirs, self._directory, _DIRECTORY_MODE, exist_ok=True))
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, self._loop, path, [service])
            self._error = None
            task_status.started()
            await _until_gone(path)
            nursery.cancel_scope.cancel()

    async def register(self, request: api.RegisterRequest) -> api.Empty:
        """The call of a plugin (`Registration.Register`). Raises GrpcError."""
        name = request.resource_name
        log.info("Got registration request from device plugin with resource", resourceName=name)
        self._manager.count_registration(name)
        text = ""
        if request.version != VERSION:
            version = go_quote(request.version)
            text = f"requested API version {version} is not supported by kubelet. "
            text += f'Supported version is ["{VERSION}"]'
        elif not is_extended_resource(name):
            text = f"the ResourceName {go_quote(name)} is invalid"
        if text:
            log.error("Bad registration request from device plugin", resourceName=name, err=text)
            raise GrpcError(Code.UNKNOWN, text)
        try:
            await self.connect(name, f"{self._directory}/{request.endpoint}")
        except DevicePluginError as exc:
            log.error("Error connecting to device plugin client", resourceName=name, err=exc)
            raise GrpcError(Code.UNKNOWN, str(exc)) from exc
        return api.Empty()

    async def connect(self, name: str, endpoint: str) -> None:
        """Takes the plugin whose service is on the socket `endpoint`. Raises DevicePluginError."""
        if self._nursery is None:
            raise DevicePluginError("the agent is not ready")
        error: DevicePluginError | None = await self._nursery.start(self._follow, name, endpoint)
        if error is not None:
            raise error

    def disconnect(self, name: str, endpoint: str) -> None:
        """The plugin's socket has gone."""
        session = self._sessions.get(name)
        if session is not None and session[0] == endpoint:
            session[1].cancel()

    async def _follow(
        self, name: str, endpoint: str, task_status: trio.TaskStatus[DevicePluginError | None]
    ) -> None:
        """One plugin, from its registration to the end of its list; what went wrong at first is told."""
        from trio_kubelet.devices.plugin import GrpcPlugin

        with trio.CancelScope() as scope, connect(self._loop, endpoint) as channel:
            plugin = GrpcPlugin(channel)
            try:
                await self._manager.inventory.connect(name, plugin)
            except DevicePluginError as exc:
                task_status.started(exc)
                return
            before = self._sessions.get(name)
            self._sessions[name] = endpoint, scope
            if before is not None:
                before[1].cancel()
            task_status.started(None)

            def listed(devices: Sequence[Device]) -> None:
                self._manager.inventory.listed(name, plugin, devices)

            try:
                await plugin.watch(listed)
                log.error("ListAndWatch ended unexpectedly for device plugin", resource=name)
            except DevicePluginError as exc:
                log.error("ListAndWatch ended unexpectedly for device plugin", resource=name, err=exc)
            except Exception as exc:  # whatever one plugin lists, the others stay
                log.error("Unexpected error in what a device plugin lists", resource=name, err=exc)
            finally:
                self._manager.inventory.disconnect(name, plugin)


class DevicePluginHandler:
    """Device plugins among those of the plugin watcher (type `DevicePlugin`)."""

    def __init__(self, plugins: DevicePlugins) -> None:
        self._plugins = plugins

    def validate(self, plugin: PluginInfo) -> None:
        """Raises PluginError."""
        if VERSION not in plugin.versions:
            versions = " ".join(plugin.versions)
            raise PluginError(
                f"manager version, {VERSION}, is not among plugin supported versions [{versions}]"
            )
        if not is_extended_resource(plugin.name):
            raise PluginError(
                f"invalid name of device plugin socket: the ResourceName {go_quote(plugin.name)} is invalid"
            )

    async def register(self, plugin: PluginInfo) -> None:
        """Raises PluginError."""
        try:
            await self._plugins.connect(plugin.name, plugin.endpoint)
        except DevicePluginError as exc:
            raise PluginError(str(exc)) from exc

    async def deregister(self, plugin: PluginInfo) -> None:
        """Its socket has gone."""
        self._plugins.disconnect(plugin.name, plugin.endpoint)


def clear_sockets(directory: str) -> None:
    """Removes all sockets: plugins that see theirs gone register again. One that cannot be removed keeps no
    other from registering. Blocking; raises OSError.
    """
    os.makedirs(directory, _DIRECTORY_MODE, exist_ok=True)
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as exc:
            log.warning("Cannot clear away what is in the directory of device plugins", path=path, err=exc)


async def _until_gone(path: str) -> None:
    """Returns when the socket at `path` is not the present one any more. It is looked at every second where
    its directory cannot be watched.
    """
    identity = await NODE_FILES.run(identity_of, path)
    watch: DirectoryWatch | None = None
    try:
        while identity is not None:
            if watch is None:
                with suppress(WatchError, OSError):
                    watch = DirectoryWatch(os.path.dirname(path))
            if await NODE_FILES.run(identity_of, path) != identity:
                return
            if watch is None:
                await trio.sleep(_LOOK)
                continue
            with trio.move_on_after(_WATCHED_LOOK):
                await watch.wait()
            watch.take()
    finally:
        if watch is not None:
            watch.close()
