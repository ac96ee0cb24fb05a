"""Looks every few seconds which pressures the node is under. The deciding is done in `pressure`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import trio

from trio_kubelet.common.lanes import STATS
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.client import ImageService
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.node.events import NodeEvents
from trio_kubelet.node.pressure import Pressure, Signal, Threshold, for_filesystems, observe
from trio_kubelet.node.signals import SignalPlaces, are_apart

log = get_logger(__name__)

PERIOD = 10.0
TIMEOUT = 10.0
COMPLAINT_PERIOD = 300.0


class PressureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says; seconds."""

    places: SignalPlaces
    thresholds: tuple[Threshold, ...] = ()
    transition_period: float = 300.0


class PressureMonitor:
    """Keeps the pressures; `read` reads signals (in a thread), `changed` is called when a condition turns."""

    def __init__(
        self,
        settings: PressureSettings,
        images: ImageService,
        read: Callable[[SignalPlaces], dict[str, Signal]],
        events: NodeEvents,
    ) -> None:
        self.pressure = Pressure()
        self.changed: Callable[[], None] = lambda: None
        self._settings = settings
        self._places = settings.places
        self._images = images
        self._read = read
        self._events = events
        self._complained_at: float | None = None

    async def run(self) -> None:
        """Looks, the first time after a period, until cancelled."""
        while True:
            await trio.sleep(PERIOD)
            await self.look()

    async def look(self) -> None:
        """Looks once."""
        if not self._settings.thresholds:
            return
        await self._find_filesystems()
        signals = await STATS.run(self._read, self._places)
        before = self.pressure.conditions
        self.pressure = observe(
            self._effective(), signals, self.pressure, self._settings.transition_period, trio.current_time()
        )
        if self.pressure.conditions != before:
            log.info("Node pressure has changed", conditions=",".join(sorted(self.pressure.conditions)))
            self.changed()
        if self._places.image_fs and not signals.get("imagefs.available", Signal(0, 0)).capacity:
            self._complain()

    def _effective(self) -> tuple[Threshold, ...]:
        places = self._places
        own = bool(places.image_fs) and are_apart(places.image_fs, places.root_dir)
        split = own and are_apart(places.image_fs, places.container_fs)
        return for_filesystems(self._settings.thresholds, own_image_fs=own, split=split)

    async def _find_filesystems(self) -> None:
        """Asks the runtime where images and containers are; the last answer stays while it gives none."""
        try:
            with trio.fail_after(TIMEOUT):
                answer = await self._images.image_fs_info()
        except (CRIError, trio.TooSlowError) as exc:
            log.v(2).info("The runtime does not tell its filesystems", err=exc)
            return
        images = _mount_point(answer.image_filesystems)
        if images:
            containers = _mount_point(answer.container_filesystems) or images
            self._places = msgspec.structs.replace(self._places, image_fs=images, container_fs=containers)

    def _complain(self) -> None:
        now = trio.current_time()
        if self._complained_at is None or now - self._complained_at >= COMPLAINT_PERIOD:
            self._complained_at = now
            text = "invalid capacity 0 on image filesystem"
            self._events.record_node("Warning", "InvalidDiskCapacity", text)


def _mount_point(filesystems: Sequence[cri.FilesystemUsage]) -> str:
    return filesystems[0].fs_id.mountpoint if filesystems else ""
