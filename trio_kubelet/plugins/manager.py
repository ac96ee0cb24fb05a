"""Registers plugins whose sockets lie in `plugins_registry`, with the handler of their type.

One task decides, one short task per socket speaks with its plugin; what is to be done is `states.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.plugins.doors import (
    NobodyListens,
    OpenRegistration,
    PluginError,
    PluginHandler,
    RegistrationConnection,
)
from trio_kubelet.plugins.sockets import remove_socket
from trio_kubelet.plugins.states import (
    FailedRegistration,
    PluginInfo,
    Registered,
    SocketIdentity,
    after_failure,
    decide,
)
from trio_kubelet.plugins.watcher import SocketWatcher

log = get_logger(__name__)

DEAD_AFTER: Final = 300.0
"""Seconds after which a socket that nobody listens on is removed. One whose process has died can never be
used again; the time is for a plugin that has bound its socket and does not listen yet."""


class PluginManager:
    """Desired and actual plugins of the node, and the tasks that bring them together."""

    def __init__(
        self,
        *,
        directory: str,
        handlers: Mapping[str, PluginHandler],
        open_registration: OpenRegistration,
        registry: CollectorRegistry,
    ) -> None:
        self._handlers = handlers
        self._open = open_registration
        self._watcher = SocketWatcher(directory, self._sockets_are)
        self._desired: Mapping[str, SocketIdentity] = {}
        self._actual: dict[str, Registered] = {}
        self._retries: dict[str, FailedRegistration] = {}
        self._deaf_since: dict[str, tuple[SocketIdentity, float]] = {}
        self._busy: set[str] = set()
        self._news = trio.Event()
        MetricMaker(registry).counted(
            "plugin_manager_total_plugins",
            "Number of plugins in Plugin Manager",
            ["socket_path", "state"],
            self._counts,
        )

    def _counts(self) -> dict[tuple[str, ...], float]:
        states = {"actual_state_of_world": self._actual, "desired_state_of_world": self._desired}
        return {(path, state): 1 for state, sockets in states.items() for path in tuple(sockets)}

    @property
    def registered(self) -> tuple[Registered, ...]:
        """The plugins that are in use."""
        return tuple(self._actual.values())

    async def run(self) -> None:
        """Watches and registers until cancelled; may be started again after an error."""
        self._busy.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watcher.run)
            while True:
                self._news = trio.Event()
                wake_at = self._begin(nursery)
                with trio.move_on_at(wake_at):
                    await self._news.wait()

    def _begin(self, nursery: trio.Nursery) -> float:
        """Starts what is to be done; returns when to decide again."""
        decision = decide(self._desired, self._actual, self._busy, self._retries, trio.current_time())
        for plugin in decision.unregister:
            self._busy.add(plugin.socket)
            nursery.start_soon(self._unregister, plugin)
        for path, identity in decision.register:
            self._busy.add(path)
            nursery.start_soon(self._register, path, identity)
        return float("inf") if decision.wake_at is None else decision.wake_at

    def _sockets_are(self, sockets: Mapping[str, SocketIdentity]) -> None:
        self._desired = sockets
        self._retries = {path: retry for path, retry in self._retries.items() if path in sockets}
        self._deaf_since = {path: since for path, since in self._deaf_since.items() if path in sockets}
        self._news.set()

    async def _unregister(self, plugin: Registered) -> None:
        log.info("Plugin has gone", type=plugin.plugin.type, name=plugin.plugin.name, path=plugin.socket)
        self._actual.pop(plugin.socket, None)
        try:
            await self._handlers[plugin.plugin.type].deregister(plugin.plugin)
        except Exception as exc:  # whatever one plugin's end raises, the others are served
            log.error("Unexpected error in taking leave of a plugin", path=plugin.socket, err=exc)
        finally:
            self._hurry(plugin.plugin.name)
            self._done(plugin.socket)

    def _hurry(self, name: str) -> None:
        """Others of the name may have been refused because of the one that is gone."""
        for path, retry in self._retries.items():
            if retry.name == name:
                self._retries[path] = retry._replace(not_before=0.0)

    async def _register(self, path: str, identity: SocketIdentity) -> None:
        name = ""
        try:
            async with self._open(path) as connection:
                info = await connection.get_info()
                name = info.name
                registered = await self._introduce(connection, info, path, identity)
            log.info("Registered plugin", type=registered.plugin.type, name=registered.plugin.name, path=path)
            self._retries.pop(path, None)
            self._deaf_since.pop(path, None)
        except Exception as exc:  # whatever one plugin says of itself, the others are registered
            now = trio.current_time()
            self._retries[path] = retry = after_failure(self._retries.get(path), identity, now, name)
            expected = isinstance(exc, PluginError)
            log.error(
                "OperationExecutor.RegisterPlugin failed"
                if expected
                else "Unexpected error in registering a plugin",
                path=path,
                retry_after=round(retry.not_before - now, 1),
                err=exc,
            )
            if expected:
                await self._remove_if_dead(path, identity, isinstance(exc, NobodyListens))
        finally:
            self._done(path)

    async def _introduce(
        self, connection: RegistrationConnection, info: PluginInfo, path: str, identity: SocketIdentity
    ) -> Registered:
        """Validate, register, notify, with the kubelet's words. Raises PluginError."""
        plugin = PluginInfo(
            type=info.type, name=info.name, endpoint=info.endpoint or path, versions=info.versions
        )
        refuse = partial(self._refuse, connection)
        handler = self._handlers.get(plugin.type)
        if handler is None:
            raise await refuse(f"no handler registered for plugin type: {plugin.type} at socket {path}")
        try:
            handler.validate(plugin)
        except PluginError as exc:
            raise await refuse(f"plugin validation failed with err: {exc}") from exc
        try:
            await handler.register(plugin)
        except PluginError as exc:
            raise await refuse(f"plugin registration failed with err: {exc}") from exc
        registered = Registered(socket=path, identity=identity, plugin=plugin)
        self._actual[path] = registered
        try:
            await connection.notify(True, "")
        except PluginError as exc:
            del self._actual[path]
            await handler.deregister(plugin)
            text = f"RegisterPlugin error -- failed to send registration status at socket {path}, err: {exc}"
            raise PluginError(text) from exc
        return registered

    async def _refuse(self, connection: RegistrationConnection, reason: str) -> PluginError:
        """Tells the plugin why it is refused; the error to raise."""
        text = f"RegisterPlugin error -- {reason}"
        try:
            await connection.notify(False, text)
        except PluginError as exc:
            log.v(2).info("Cannot tell a plugin that it is refused", err=exc)
        return PluginError(text)

    async def _remove_if_dead(self, path: str, identity: SocketIdentity, deaf: bool) -> None:
        known = self._deaf_since.get(path)
        if not deaf:
            self._deaf_since.pop(path, None)
        elif known is None or known[0] != identity:
            self._deaf_since[path] = identity, trio.current_time()
        elif trio.current_time() - known[1] >= DEAD_AFTER:
            try:
                removed = await NODE_FILES.run(remove_socket, path, identity)
            except OSError as exc:
                log.error("Cannot remove the socket of a dead plugin", path=path, err=exc)
            else:
                if removed:
                    log.info("Removed the socket of a dead plugin", path=path, seconds=DEAD_AFTER)
                self._deaf_since.pop(path, None)

    def _done(self, path: str) -> None:
        self._busy.discard(path)
        self._news.set()
