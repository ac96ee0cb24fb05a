"""What the plugin watcher needs of others: who takes plugins of a type, and who speaks with their sockets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from trio_kubelet.plugins.states import PluginInfo


class PluginError(Exception):
    """A plugin cannot be used; the text is told to it and logged."""


class NobodyListens(PluginError):
    """There is a socket but no process behind it: its plugin has died without removing it."""


class PluginHandler(Protocol):
    """Takes plugins of one type (kubelet: `cache.PluginHandler`). Calls for one socket never overlap."""

    def validate(self, plugin: PluginInfo) -> None:
        """Raises PluginError if name or versions are not acceptable."""
        ...

    async def register(self, plugin: PluginInfo) -> None:
        """Takes the plugin into use. Raises PluginError; is then asked again, with back-off."""
        ...

    async def deregister(self, plugin: PluginInfo) -> None:
        """Its socket has gone. Does not raise; a plugin that was never taken is nothing."""
        ...


class RegistrationConnection(Protocol):
    """The Registration service of one plugin. Each call has a deadline and raises PluginError."""

    async def get_info(self) -> PluginInfo:
        """Type, name, versions; `endpoint` may be empty."""
        ...

    async def notify(self, registered: bool, error: str) -> None:
        """Tells the plugin what has become of it (`NotifyRegistrationStatus`)."""
        ...


OpenRegistration = Callable[[str], AbstractAsyncContextManager[RegistrationConnection]]
"""Connects to the socket at a path. Raises PluginError."""
