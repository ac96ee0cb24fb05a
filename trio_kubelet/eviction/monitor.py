"""Observes what is left of memory, disks and PIDs, and which pressures the node is under by that.

The deciding is done in `pressure`; whoever acts on it asks for an observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import trio

from trio_kubelet.common.lanes import PRESSURE, WorkHangs
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.log import get_logger
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService
from trio_kubelet.eviction.pressure import Pressure, observe, to_act_on
from trio_kubelet.eviction.signals import SignalPlaces, layout_of
from trio_kubelet.eviction.thresholds import Layout, Signal, Threshold, for_filesystems
from trio_kubelet.podinfo.doors import NodeRecorderDoor

log = get_logger(__name__)

TIMEOUT = 2.0
"""Seconds the runtime has to answer: memory is not looked at meanwhile."""
ASK_AGAIN = 10.0
"""Seconds until it is asked again if it did not."""
COMPLAINT_PERIOD = 300.0
PLACES_PERIOD = 60.0
"""Seconds between questions to the runtime where its filesystems are; they hardly ever move."""
_HANGS = "A filesystem hangs; memory and PIDs are looked at without it"
_NO_THREAD = "No thread to look at memory, disks and PIDs"


class PressureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says; seconds."""

    places: SignalPlaces
    thresholds: tuple[Threshold, ...] = ()
    transition_period: float = 300.0


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One look: what is left, the thresholds that count here, those of them to act on, most urgent first."""

    signals: Mapping[str, Signal]
    thresholds: tuple[Threshold, ...]
    met: tuple[Threshold, ...]
    layout: Layout


class PressureMonitor:
    """Keeps the pressures; `read` reads signals (in a thread), `changed` tells when a condition turns."""

    def __init__(
        self,
        settings: PressureSettings,
        images: ImageService,
        read: Callable[[SignalPlaces], dict[str, Signal]],
        events: NodeRecorderDoor,
    ) -> None:
        self.pressure = Pressure()
        self.changed: Listeners[[]] = Listeners()
        self.settings = settings
        self._places = settings.places
        self._layout = Layout.ONE
        self._images = images
        self._read = read
        self._events = events
        self._places_due = -math.inf
        self._image_fs: tuple[int, int] | None = None
        self._complained_at: float | None = None
        self._hindered = ""  # why it cannot be looked in a thread, as told

    @property
    def conditions(self) -> frozenset[str]:
        """The conditions of the Node that are in force."""
        return self.pressure.conditions

    def image_filesystem(self) -> tuple[int, int] | None:
        """Capacity and available bytes of the filesystem with the images, as of the last look."""
        return self._image_fs

    async def look(self) -> Observation:
        """Looks once, and keeps what follows."""
        signals = await self.signals()
        thresholds = for_filesystems(self.settings.thresholds, self._layout)
        before = self.pressure
        self.pressure = observe(
            thresholds, signals, before, self.settings.transition_period, trio.current_time()
        )
        if self.pressure.conditions != before.conditions:
            log.info("Node pressure has changed", conditions=",".join(sorted(self.pressure.conditions)))
            self.changed.tell()
        met = to_act_on(self.pressure, before)
        return Observation(signals=signals, thresholds=thresholds, met=met, layout=self._layout)

    async def signals(self) -> dict[str, Signal]:
        """What is left now; nothing follows from it here."""
        await self._find_filesystems()
        signals = await self._read_signals()
        disk = signals.get("imagefs.available")
        self._image_fs = (disk.capacity, disk.available) if disk is not None else None
        if self._places.image_fs and not signals.get("imagefs.available", Signal(0, 0)).capacity:
            self._complain()
        return signals

    async def _read_signals(self) -> dict[str, Signal]:
        """Reads in a thread that is kept warm by being used all the time, or here when there is none to be
        had, because the process table is full. A disk that hangs keeps nobody from seeing memory and PIDs:
        the disks are looked at again when the threads are back from it.
        """
        if self._hindered and PRESSURE.left_behind:
            return self._read_without_disks()
        try:
            signals = await PRESSURE.run(self._read, self._places)
        except WorkHangs as error:
            self._tell(_HANGS, error)
            return self._read_without_disks()
        except RuntimeError as error:  # Python's for a thread that cannot be started
            self._tell(_NO_THREAD, error)
            return self._read(self._places)
        if self._hindered:
            log.info("Memory, disks and PIDs are looked at as usual again")
            self._hindered = ""
        return signals

    def _read_without_disks(self) -> dict[str, Signal]:
        return self._read(msgspec.structs.replace(self._places, root_dir="", image_fs="", container_fs=""))

    def _tell(self, text: str, error: Exception) -> None:
        """Says it once."""
        if self._hindered != text:
            log.warning(text, err=error)
        self._hindered = text

    async def _find_filesystems(self) -> None:
        """Asks the runtime where images and containers are; the last answer stays while it gives none."""
        if trio.current_time() < self._places_due:
            return
        try:
            with trio.fail_after(TIMEOUT):
                answer = await self._images.image_fs_info()
        except (CRIError, trio.TooSlowError) as exc:
            log.v(2).info("The runtime does not tell its filesystems", err=exc)
            self._places_due = trio.current_time() + ASK_AGAIN
            return
        self._places_due = trio.current_time() + PLACES_PERIOD
        images = _mount_point(answer.image_filesystems)
        if images:
            containers = _mount_point(answer.container_filesystems) or images
            self._places = msgspec.structs.replace(self._places, image_fs=images, container_fs=containers)
            await self._find_layout()

    async def _find_layout(self) -> None:
        """Which of the filesystems are the same; the last answer stays while one of them hangs."""
        try:
            if not (self._hindered and PRESSURE.left_behind):
                self._layout = await PRESSURE.run(layout_of, self._places)
                return
        except WorkHangs as error:
            self._tell(_HANGS, error)
        except RuntimeError as error:
            self._tell(_NO_THREAD, error)
        self._places_due = trio.current_time() + ASK_AGAIN

    def _complain(self) -> None:
        now = trio.current_time()
        if self._complained_at is None or now - self._complained_at >= COMPLAINT_PERIOD:
            self._complained_at = now
            text = "invalid capacity 0 on image filesystem"
            self._events.record_node("Warning", "InvalidDiskCapacity", text)


def _mount_point(filesystems: Sequence[cri.FilesystemUsage]) -> str:
    return filesystems[0].fs_id.mountpoint if filesystems else ""
