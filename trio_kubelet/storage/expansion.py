"""Makes volumes larger on this node when their claims say so, and writes into the claims what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.podinfo.doors import ObjectError, ObjectRecorderDoor
from trio_kubelet.storage import resizing
from trio_kubelet.storage.doors import Expanding, StorageObjectsDoor
from trio_kubelet.storage.errors import Ending, ExpansionRefused, NotSupported, OperationError
from trio_kubelet.storage.resizing import Plan, ResizeVerdict
from trio_kubelet.storage.specs import Spec

log = get_logger(__name__)

FAILED: Final = "FileSystemResizeFailed"
SUCCESSFUL: Final = "FileSystemResizeSuccessful"


class Expansions:
    """Implements what the module says; `plugins` by the names of their volumes' plugins."""

    def __init__(
        self,
        *,
        objects: StorageObjectsDoor | None,
        plugins: Mapping[str, Expanding],
        events: ObjectRecorderDoor,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._plugins = plugins
        self._events = events
        self._clock = clock
        self._final: set[str] = set()  # volumes whose last attempt surely failed
        self._in_use: dict[str, int] = {}  # sizes to which a volume cannot be expanded while it is used

    async def on_mount(self, spec: Spec, pod: v1.Pod) -> bool:
        """A volume was mounted: if it grew meanwhile, it is expanded before the pod has it; whether nothing
        is left to do. Raises OperationError.
        """
        if spec.claim is None or spec.plugin not in self._plugins or spec.claim_size >= spec.capacity:
            return True
        return await self._expand(spec, pod, mounting=True)

    async def while_used(self, spec: Spec, pod: v1.Pod) -> bool:
        """Expands a mounted volume; whether nothing is left to do. Raises OperationError."""
        if spec.claim is None or spec.plugin not in self._plugins:
            return True
        if self._in_use.get(spec.unique_name) == spec.capacity:
            return True
        return await self._expand(spec, pod)

    def forget(self, name: str) -> None:
        """Nothing is mounted of the volume any more; another time everything is tried anew."""
        self._final.discard(name)
        self._in_use.pop(name, None)

    async def _expand(self, spec: Spec, pod: v1.Pod, *, mounting: bool = False) -> bool:
        objects = self._objects
        assert objects is not None, "a claim was read"
        claim, found = await self._claim(objects, spec), await self._volume(objects, spec)
        plan = resizing.plan(claim, (found.spec.capacity or {}).get(resizing.STORAGE, ""))
        # A claim that shows its new size may owe that to another node; a volume that is mounted now has it.
        if plan.verdict is ResizeVerdict.DONE or (mounting and plan.legacy and plan.told):
            return True
        if spec.read_only:
            what = "requested read-only file system"
            message = f'MountVolume.NodeExpandVolume failed for volume "{spec.name}" {what}'
            self._tell(pod, claim, "Warning", FAILED, message)
            return True
        if plan.verdict is ResizeVerdict.NOT_YET:
            return False
        if not plan.legacy and not plan.told:
            claim = await self._write(claim, resizing.in_progress(claim))
        try:
            await self._plugins[spec.plugin].expand(spec, pod.metadata.uid, plan.size)
        except OperationError as error:
            return await self._not_expanded(spec, claim, plan, error)
        self._final.discard(spec.unique_name)
        node = pod.spec.node_name
        message = f'MountVolume.NodeExpandVolume succeeded for volume "{spec.name}" {node}'
        self._tell(pod, claim, "Normal", SUCCESSFUL, message)
        if not plan.told:
            what = "update PVC status failed : " if plan.legacy else "update pvc status failed: "
            text = f"mountVolume.NodeExpandVolume {what}"
            await self._write(claim, resizing.finished(claim, plan.quantity), text)
        return True

    def _tell(self, pod: v1.Pod, claim: v1.PersistentVolumeClaim, type: str, reason: str, text: str) -> None:
        """An event about the pod, and one about its claim."""
        meta = claim.metadata
        about = v1.ObjectReference(
            kind="PersistentVolumeClaim",
            api_version="v1",
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
        self._events.record(pod, type, reason, text)
        self._events.record_object(about, type, reason, text)

    async def _not_expanded(
        self, spec: Spec, claim: v1.PersistentVolumeClaim, plan: Plan, error: OperationError
    ) -> bool:
        """What a failed attempt means; raises the error if it is to be tried again."""
        if isinstance(error, NotSupported) and (plan.legacy or plan.told):
            return True
        if not plan.legacy and error.finished:
            again = spec.unique_name in self._final and resizing.changed_since(claim, plan.size)
            self._final.add(spec.unique_name)
            infeasible = (isinstance(error, ExpansionRefused) and error.infeasible) or again
            now = rfc3339(self._clock.now_ns())
            try:
                await self._write(claim, resizing.failed(claim, str(error), now, infeasible=infeasible))
            except OperationError as unwritten:
                log.error("Failed to write down that an expansion failed", volume=spec.name, err=unwritten)
        if isinstance(error, ExpansionRefused) and not error.infeasible:
            log.error("Volume cannot be expanded while it is used", volume=spec.name, err=error)
            self._in_use[spec.unique_name] = spec.capacity
            return False
        raise error

    async def _claim(self, objects: StorageObjectsDoor, spec: Spec) -> v1.PersistentVolumeClaim:
        ref = spec.claim
        assert ref is not None
        try:
            claim = await objects.claim(ref.namespace, ref.name)
            error = f'persistentvolumeclaims "{ref.name}" not found'
        except ObjectError as exc:
            claim, error = None, str(exc)
        if claim is None:
            text = f"mountVolume.NodeExpandVolume get PVC failed : {error}"
            raise OperationError(text, Ending.TRANSIENT)
        return claim

    async def _volume(self, objects: StorageObjectsDoor, spec: Spec) -> v1.PersistentVolume:
        try:
            found, error = await objects.volume(spec.name), f'persistentvolumes "{spec.name}" not found'
        except ObjectError as exc:
            found, error = None, str(exc)
        if found is None:
            raise OperationError(f"mountVolume.NodeExpandVolume get PV failed : {error}", Ending.TRANSIENT)
        return found

    async def _write(
        self, claim: v1.PersistentVolumeClaim, patch: resizing.Patch, what: str = ""
    ) -> v1.PersistentVolumeClaim:
        """Raises OperationError, whose text begins with `what`."""
        try:
            assert self._objects is not None
            return await self._objects.patch_claim_status(claim, patch)
        except ObjectError as error:
            text = f'{what}patchPVCStatus failed to patch PVC "{claim.metadata.name}": {error}'
            raise OperationError(text, Ending.TRANSIENT) from error
