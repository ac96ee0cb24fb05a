"""What becomes of a volume while a step is carried out on it: noted in the actual state, and told.

Before a plugin is asked for anything that may leave something behind, the state says UNCERTAIN; only what was
seen to succeed, or surely failed, says otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.selectors import matches_terms
from trio_kubelet.podinfo.doors import ObjectRecorderDoor
from trio_kubelet.storage.errors import Ending, FilesystemMismatch, NotBegun, OperationError, StepError
from trio_kubelet.storage.expansion import Expansions
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.storage.world import (
    Actual,
    MountState,
    PodMount,
    Volume,
    WantedVolume,
    device_failed,
    mount_failed,
    with_device,
    with_mount,
    without_mount,
)

FAILED_MOUNT: Final = "FailedMount"
FAILED_MAP: Final = "FailedMapVolume"
MISMATCH: Final = "FailedMountOnFilesystemMismatch"
SHARED: Final = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"


class StepProgress:
    """Notes and tells it. One step at a time for each volume, which the caller sees to."""

    def __init__(
        self,
        *,
        actual: Actual,
        expansions: Expansions,
        events: ObjectRecorderDoor,
        node: Callable[[], ReportedVolumes],
    ) -> None:
        self._actual = actual
        self._expansions = expansions
        self._events = events
        self._node = node

    def check_node(self, what: str, spec: Spec) -> None:
        """That the volume can be had on this node, whoever has brought its pod here. Raises StepError."""
        if spec.nodes is not None and not matches_terms(spec.nodes, self._node().labels):
            text = f"{what}.NodeAffinity check failed"
            raise failed(text, spec, "no matching NodeSelectorTerms", FAILED_MOUNT)

    def begin(self, spec: Spec) -> Volume:
        """The volume's entry; a first one, or one that was read back, takes over what is known now."""
        before = self._actual.get(spec.unique_name)
        if before is None:
            volume = Volume(spec=spec, size=spec.claim_size)
        else:
            volume = msgspec.structs.replace(before, spec=spec, size=before.size or spec.claim_size)
        self._actual[spec.unique_name] = volume
        return volume

    async def step(self, what: str, spec: Spec, reason: str, work: Callable[[], Awaitable[object]]) -> None:
        """Awaits `work`. Raises StepError: `what`, with the `reason` of the event, "" for none."""
        try:
            await work()
        except OperationError as error:
            raise failed(step_of(what, error), spec, str(error), reason) from error

    async def device(self, what: str, spec: Spec, reason: str, work: Callable[[], Awaitable[None]]) -> None:
        """The same for `work` that mounts for the node."""
        name = spec.unique_name
        before = self._actual[name].device
        with_device(self._actual, name, MountState.UNCERTAIN)
        try:
            await work()
        except OperationError as error:
            if error.ending is Ending.TRANSIENT:
                self._actual[name] = msgspec.structs.replace(self._actual[name], device=before)
            else:
                device_failed(self._actual, name, finished=error.finished)
            self._check_mismatch(spec, error)
            raise failed(step_of(what, error), spec, str(error), reason) from error
        with_device(self._actual, name, MountState.MOUNTED)

    def _check_mismatch(self, spec: Spec, error: OperationError) -> None:
        """That a disk has another filesystem than it should is told of its persistent volume."""
        if spec.persistent and isinstance(error, FilesystemMismatch):
            about = v1.ObjectReference(
                kind="PersistentVolume", api_version="v1", name=spec.name, uid=spec.uid
            )
            message = f'MountVolume failed for volume "{spec.name}" {error}'
            self._events.record_object(about, "Warning", MISMATCH, message)

    def mount_undone(self, name: str, uid: str, before: PodMount | None, error: OperationError) -> None:
        """What a failed attempt to mount for a pod leaves."""
        if error.ending is Ending.TRANSIENT and before is None:
            without_mount(self._actual, name, uid)
        else:
            mount_failed(self._actual, name, uid, finished=error.finished)

    async def mounted(self, wanted: WantedVolume, what: str, reason: str) -> None:
        """The volume is there for the pod, and counts as that once it is as large as it should be."""
        spec, uid = wanted.spec, wanted.pod.metadata.uid
        try:
            expanded = await self._expansions.on_mount(spec, wanted.pod)
        except OperationError as error:
            raise failed(what, spec, str(error), reason) from error
        mount = PodMount(uid=uid, spec=spec, outer=wanted.outer, state=MountState.MOUNTED)
        with_mount(self._actual, spec.unique_name, mount)
        if expanded:
            self.sized(spec)

    def unmounted(self, name: str, uid: str) -> None:
        """The next pod may come before the volume is gone: what was refused while used is tried anew."""
        without_mount(self._actual, name, uid)
        if not self._actual[name].mounts:
            self._expansions.forget(name)

    def sized(self, spec: Spec) -> None:
        """The volume is as large as it should be."""
        volume = self._actual[spec.unique_name]
        size = max(volume.size, spec.capacity)
        self._actual[spec.unique_name] = msgspec.structs.replace(volume, size=size)


def mount_of(wanted: WantedVolume, before: PodMount | None) -> PodMount:
    """The pod's mount while it is being made."""
    found = before is not None and before.found
    return PodMount(
        uid=wanted.pod.metadata.uid,
        spec=wanted.spec,
        outer=wanted.outer,
        state=MountState.UNCERTAIN,
        found=found,
    )


def step_of(what: str, error: OperationError) -> str:
    """The step to name for an error that came in `what`."""
    if not isinstance(error, NotBegun):
        return what
    operation = what.partition(".")[0]
    maker = "NewBlockVolumeMapper" if operation == "MapVolume" else "NewMounter"
    return f"{operation}.{maker} initialization failed"


def failed(what: str, spec: Spec, why: str, reason: str = "") -> StepError:
    """The kubelet's words for a step on a volume that failed; `reason` as for `StepProgress.step`."""
    return StepError(f'{what} for volume "{spec.name}" : {why}', reason)
