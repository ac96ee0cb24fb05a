"""Carries out one step on a volume: attaching and expanding here, the rest by what kind of volume it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from trio_kubelet.podinfo.doors import ObjectRecorderDoor
from trio_kubelet.storage.block_devices import BlockDevices
from trio_kubelet.storage.doors import Attaching, BlockMapping, Mounting
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.expansion import Expansions
from trio_kubelet.storage.filesystems import Filesystems
from trio_kubelet.storage.progress import StepProgress, failed
from trio_kubelet.storage.specs import FC, ISCSI
from trio_kubelet.storage.steps import Operation, OperationKind, ReportedVolumes
from trio_kubelet.storage.world import Actual, Desired, WantedVolume

FAILED_ATTACH: Final = "FailedAttachVolume"
ATTACHED: Final = "SuccessfulAttachVolume"
_FOR_PODS: Final = (OperationKind.ATTACH, OperationKind.MOUNT, OperationKind.MAP, OperationKind.EXPAND)
_ATTACHED_BY_WAITING: Final = (ISCSI, FC)


class Operations:
    """Runs steps; one at a time for each volume, which the caller sees to."""

    def __init__(
        self,
        *,
        root_dir: str,
        desired: Desired,
        actual: Actual,
        mounting: Mapping[str, Mounting],
        mapping: Mapping[str, BlockMapping],
        attaching: Mapping[str, Attaching],
        expansions: Expansions,
        events: ObjectRecorderDoor,
        node: Callable[[], ReportedVolumes],
    ) -> None:
        self._desired = desired
        self._actual = actual
        self._attaching = attaching
        self._expansions = expansions
        self._events = events
        self._progress = progress = StepProgress(
            actual=actual, expansions=expansions, events=events, node=node
        )
        self._filesystems = Filesystems(
            root_dir=root_dir, desired=desired, actual=actual, mounting=mounting, progress=progress
        )
        self._devices = BlockDevices(
            root_dir=root_dir,
            desired=desired,
            actual=actual,
            mapping=mapping,
            progress=progress,
            events=events,
        )

    async def run(self, step: Operation) -> None:
        """One step. Raises StepError."""
        name, uid = step.name, step.uid
        if step.kind in _FOR_PODS:
            wanted = self._desired.find(uid, name)
            if wanted is None:  # given up meanwhile
                return
            match step.kind:
                case OperationKind.ATTACH:
                    await self._attach(wanted)
                case OperationKind.MOUNT:
                    await self._filesystems.mount(wanted)
                case OperationKind.MAP:
                    await self._devices.map(wanted)
                case _:
                    await self._expand(wanted)
            return
        if name not in self._actual:
            return
        match step.kind:
            case OperationKind.UNMOUNT:
                await self._filesystems.unmount(name, uid)
            case OperationKind.UNMAP:
                await self._devices.unmap(name, uid)
            case OperationKind.UNMOUNT_DEVICE:
                await self._filesystems.unmount_device(name)
            case OperationKind.UNMAP_DEVICE:
                await self._devices.unmap_device(name)
            case OperationKind.DETACH:
                await self._detach(name)
            case _:
                await self._leave(name)

    async def _leave(self, name: str) -> None:
        """The last of a volume; of one that waiting has attached something may be there, mounted or not."""
        spec = self._actual[name].spec
        if spec.plugin in _ATTACHED_BY_WAITING:
            plugin = self._attaching[spec.plugin]
            await self._progress.step("UnmountDevice failed", spec, "", lambda: plugin.detach(spec))
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self._actual[name]
        self._expansions.forget(name)

    # Attaching, where no controller does it

    async def _attach(self, wanted: WantedVolume) -> None:
        spec, name, what = wanted.spec, wanted.spec.unique_name, "AttachVolume.Attach failed"
        plugin = self._attaching.get(spec.plugin)
        if plugin is None:  # kubelet: `csiAttacher.Attach`
            raise failed(what, spec, "attaching volumes from the kubelet is not supported", FAILED_ATTACH)
        self._actual[name] = msgspec.structs.replace(self._progress.begin(spec), attached=False)
        try:
            await plugin.attach(spec)
        except OperationError as error:
            if error.ending is not Ending.UNCERTAIN:
                del self._actual[name]
            raise failed(what, spec, str(error), FAILED_ATTACH) from error
        self._actual[name] = msgspec.structs.replace(self._actual[name], attached=True)
        message = f'AttachVolume.Attach succeeded for volume "{spec.name}" '
        self._events.record(wanted.pod, "Normal", ATTACHED, message)

    async def _detach(self, name: str) -> None:
        """The last of a volume; what no plugin attaches here was never attached from here."""
        spec = self._actual[name].spec
        if (plugin := self._attaching.get(spec.plugin)) is not None:
            await self._progress.step("DetachVolume.Detach failed", spec, "", lambda: plugin.detach(spec))
        self._forget(name)

    async def _expand(self, wanted: WantedVolume) -> None:
        spec = wanted.spec
        try:
            done = await self._expansions.while_used(spec, wanted.pod)
        except OperationError as error:
            text = "NodeExpandVolume.NodeExpandVolume failed"
            raise failed(text, spec, str(error), "VolumeResizeFailed") from error
        if done:
            self._progress.sized(spec)
        else:  # only another claim could say something else
            volume = self._actual[spec.unique_name]
            self._actual[spec.unique_name] = msgspec.structs.replace(volume, not_yet=True)
