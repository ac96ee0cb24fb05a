"""What the device manager needs of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from trio_kubelet.api import v1
from trio_kubelet.devices.values import Device, DevicePluginOptions


class DevicePluginError(Exception):
    """A call to a device plugin failed; the text is gRPC's."""


class PluginLost(DevicePluginError):
    """The plugin has gone, or went during the call, which may have been carried out."""


class DevicePlugin(Protocol):
    """A device plugin that has registered. Each call has a deadline and raises DevicePluginError."""

    async def options(self) -> DevicePluginOptions:
        """What it wants to be asked."""
        ...

    async def watch(self, listed: Callable[[Sequence[Device]], None]) -> None:
        """Calls `listed` with all devices, at first and whenever one changes; returns when the plugin ends
        its stream (`ListAndWatch`). The newest list counts: others may be left out.
        """
        ...

    async def preferred(
        self, available: Collection[str], must_include: Collection[str], size: int
    ) -> Sequence[str]:
        """Which devices it would rather give (`GetPreferredAllocation`)."""
        ...

    async def allocate(self, devices: Sequence[str]) -> bytes | None:
        """Prepares devices for a container; its answer, None if there is none in the message."""
        ...

    async def pre_start(self, devices: Sequence[str]) -> None:
        """A container with the devices is about to start."""
        ...


class DevicePods(Protocol):
    """What is known of the node's pods."""

    def active(self) -> Collection[v1.Pod]:
        """Pods that run or will run here."""
        ...

    def all_known(self) -> bool:
        """Whether every source has told its pods."""
        ...

    def is_known(self, uid: str) -> bool:
        """Whether every source has told its pods that the pod may be of: if it is neither active nor ending,
        what it has is free then.
        """
        ...

    def ending(self) -> Collection[str]:
        """UIDs of pods that are not active, and of which something still runs."""
        ...

    def runs(self, uid: str) -> bool:
        """Whether the runtime has a running container of the pod."""
        ...


class Recorder(Protocol):
    """Takes events about pods."""

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        """`type` is Normal or Warning."""
        ...
