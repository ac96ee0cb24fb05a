"""Carries out one step on a volume and notes in the actual state what has become of it.

Before a plugin is asked for anything that may leave something behind, the state says UNCERTAIN; only what was
seen to succeed, or surely failed, says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.api.selectors import matches_terms
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.mountinfo import mounted_elsewhere
from trio_kubelet.podinfo.doors import ObjectRecorderDoor
from trio_kubelet.storage import block_map
from trio_kubelet.storage.doors import Attaching, BlockMapping, Mounting
from trio_kubelet.storage.errors import Ending, FilesystemMismatch, NotBegun, OperationError, StepError
from trio_kubelet.storage.expansion import Expansions
from trio_kubelet.storage.names import pod_devices, pod_subpaths
from trio_kubelet.storage.specs import FC, FLEX, HOST_PATH, ISCSI, Spec
from trio_kubelet.storage.steps import Operation, OperationKind, ReportedVolumes
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import (
    Actual,
    Desired,
    MountState,
    PodMount,
    Volume,
    WantedVolume,
    device_failed,
    mount_failed,
    mounted_for_another,
    with_device,
    with_mount,
    without_mount,
)
from trio_kubelet.volumes.files import remove_tree, unmount_all

log = get_logger(__name__)

FAILED_MOUNT: Final = "FailedMount"
FAILED_MAP: Final = "FailedMapVolume"
FAILED_ATTACH: Final = "FailedAttachVolume"
MISMATCH: Final = "FailedMountOnFilesystemMismatch"
ATTACHED: Final = "SuccessfulAttachVolume"
_FOR_PODS: Final = (OperationKind.ATTACH, OperationKind.MOUNT, OperationKind.MAP, OperationKind.EXPAND)
_ATTACHED_BY_WAITING: Final = (ISCSI, FC)
_WITHOUT_OPTIONS: Final = (FLEX, HOST_PATH)
_PLUGINS: Final = "plugins/kubernetes.io/"
_SHARED: Final = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"


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
        self._root_dir = root_dir
        self._desired = desired
        self._actual = actual
        self._mounting = mounting
        self._mapping = mapping
        self._attaching = attaching
        self._expansions = expansions
        self._events = events
        self._node = node

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
                    await self._mount(wanted)
                case OperationKind.MAP:
                    await self._map(wanted)
                case _:
                    await self._expand(wanted)
            return
        if name not in self._actual:
            return
        match step.kind:
            case OperationKind.UNMOUNT:
                await self._unmount(name, uid)
            case OperationKind.UNMAP:
                await self._unmap(name, uid)
            case OperationKind.UNMOUNT_DEVICE:
                await self._unmount_device(name)
            case OperationKind.UNMAP_DEVICE:
                await self._unmap_device(name)
            case OperationKind.DETACH:
                await self._detach(name)
            case _:
                await self._leave(name)

    async def _leave(self, name: str) -> None:
        """The last of a volume; of one that waiting has attached something may be there, mounted or not."""
        spec = self._actual[name].spec
        if spec.plugin in _ATTACHED_BY_WAITING:
            plugin = self._attaching[spec.plugin]
            await self._step("UnmountDevice failed", spec, "", lambda: plugin.detach(spec))
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self._actual[name]
        self._expansions.forget(name)

    # Attaching, where no controller does it

    async def _attach(self, wanted: WantedVolume) -> None:
        spec, name, what = wanted.spec, wanted.spec.unique_name, "AttachVolume.Attach failed"
        plugin = self._attaching.get(spec.plugin)
        if plugin is None:  # kubelet: `csiAttacher.Attach`
            raise _failed(what, spec, "attaching volumes from the kubelet is not supported", FAILED_ATTACH)
        self._actual[name] = msgspec.structs.replace(self._begin(spec), attached=False)
        try:
            await plugin.attach(spec)
        except OperationError as error:
            if error.ending is not Ending.UNCERTAIN:
                del self._actual[name]
            raise _failed(what, spec, str(error), FAILED_ATTACH) from error
        self._actual[name] = msgspec.structs.replace(self._actual[name], attached=True)
        message = f'AttachVolume.Attach succeeded for volume "{spec.name}" '
        self._events.record(wanted.pod, "Normal", ATTACHED, message)

    async def _detach(self, name: str) -> None:
        """The last of a volume; what no plugin attaches here was never attached from here."""
        spec = self._actual[name].spec
        if (plugin := self._attaching.get(spec.plugin)) is not None:
            await self._step("DetachVolume.Detach failed", spec, "", lambda: plugin.detach(spec))
        self._forget(name)

    # Filesystems

    async def _mount(self, wanted: WantedVolume) -> None:
        spec, pod, uid, name = wanted.spec, wanted.pod, wanted.pod.metadata.uid, wanted.spec.unique_name
        plugin = self._mounting.get(spec.plugin)
        if plugin is None:
            raise _failed(
                "MountVolume.FindPluginBySpec failed", spec, "no volume plugin matched", FAILED_MOUNT
            )
        self._check_node("MountVolume", spec)
        if spec.options and spec.plugin in _WITHOUT_OPTIONS:
            text = "mount options are not supported for this volume type"
            raise _failed("MountVolume.MountOptionSupport check failed", spec, text, FAILED_MOUNT)
        if spec.single_pod and mounted_for_another(self._actual, name, uid):
            raise _failed("MountVolume.SetUp failed", spec, _SHARED, FAILED_MOUNT)
        volume = self._begin(spec)
        if spec.attachable:
            await self._step(
                "MountVolume.WaitForAttach failed", spec, FAILED_MOUNT, lambda: plugin.wait_for_attach(spec)
            )
        if spec.device and volume.device.state is not MountState.MOUNTED:
            await self._device(
                "MountVolume.MountDevice failed", spec, FAILED_MOUNT, lambda: plugin.mount_device(spec, pod)
            )
        if self._desired.find(uid, name) is None:  # given up while it was mounted for the node
            return
        before = self._actual[name].mounts.get(uid)
        mounted = before is not None and before.state is MountState.MOUNTED
        keep = mounted or (before is not None and before.found)
        if not mounted:
            with_mount(self._actual, name, _mount_of(wanted, before))
        try:
            await plugin.set_up(spec, pod, keep=keep)
        except OperationError as error:
            if mounted:
                self._remounted(name, uid)
            else:
                self._mount_undone(name, uid, before, error)
            what = _step_of("MountVolume.SetUp failed", error)
            raise _failed(what, spec, str(error), FAILED_MOUNT) from error
        await self._mounted(wanted, "MountVolume.Setup failed while expanding volume", FAILED_MOUNT)

    async def _unmount(self, name: str, uid: str) -> None:
        mount = self._actual[name].mounts[uid]
        spec = mount.spec
        plugin = self._mounting[spec.plugin]
        subpaths = pod_subpaths(self._root_dir, uid, spec.name)
        await self._step(
            "error cleaning subPath mounts", spec, "", lambda: in_thread(name, _clean_subpaths, subpaths)
        )
        with_mount(self._actual, name, msgspec.structs.replace(mount, state=MountState.UNCERTAIN))
        await self._step("UnmountVolume.TearDown failed", spec, "", lambda: plugin.tear_down(mount))
        self._unmounted(name, uid)

    async def _unmount_device(self, name: str) -> None:
        spec = self._actual[name].spec
        plugin = self._mounting[spec.plugin]
        path = plugin.device_path(spec)

        async def check() -> None:
            if left := await in_thread(name, _mounted_elsewhere, path):
                shown = " ".join(left)
                raise OperationError(
                    f'the device mount path "{path}" is still mounted by other references [{shown}]'
                )

        await self._step("GetDeviceMountRefs check failed", spec, "", check)
        with_device(self._actual, name, MountState.UNCERTAIN)
        await self._step("UnmountDevice failed", spec, "", lambda: plugin.unmount_device(spec))
        with_device(self._actual, name, MountState.NOT_MOUNTED)

    # Block devices

    async def _map(self, wanted: WantedVolume) -> None:
        spec, pod, uid, name = wanted.spec, wanted.pod, wanted.pod.metadata.uid, wanted.spec.unique_name
        plugin = self._mapping.get(spec.plugin)
        if plugin is None:
            text = "no volume plugin matched"
            raise _failed("MapVolume.FindMapperPluginBySpec failed", spec, text, FAILED_MAP)
        self._check_node("MapVolume", spec)
        if spec.single_pod and mounted_for_another(self._actual, name, uid):
            raise _failed("MapVolume.SetUpDevice failed", spec, _SHARED, FAILED_MAP)
        volume = self._begin(spec)
        if spec.attachable:
            await self._step(
                "MapVolume.WaitForAttach failed", spec, FAILED_MAP, lambda: plugin.wait_for_attach(spec)
            )
        if volume.device.state is not MountState.MOUNTED:
            await self._device(
                "MapVolume.SetUpDevice failed", spec, FAILED_MAP, lambda: plugin.set_up_device(spec, pod)
            )
        if self._desired.find(uid, name) is None:
            return
        before = self._actual[name].mounts.get(uid)
        with_mount(self._actual, name, _mount_of(wanted, before))
        try:
            device = await plugin.map_pod_device(spec, pod)
        except OperationError as error:
            self._mount_undone(name, uid, before, error)
            raise _failed("MapVolume.MapPodDevice failed", spec, str(error), FAILED_MAP) from error
        pod_map = pod_devices(self._root_dir, uid, spec.plugin)
        global_map = plugin.global_map(spec)
        await self._step(
            "MapVolume.EvalHostSymlinks failed",
            spec,
            FAILED_MAP,
            lambda: in_thread(name, block_map.find_device, device),
        )
        await self._step(
            "MapVolume.MapBlockVolume failed",
            spec,
            FAILED_MAP,
            lambda: in_thread(name, block_map.map_device, device, global_map, pod_map, spec.name, uid),
        )
        for path in (f'globalMapPath "{global_map}"', f'volumeMapPath "{pod_map}"'):
            message = f'MapVolume.MapPodDevice succeeded for volume "{spec.name}" {path}'
            self._events.record(pod, "Normal", "SuccessfulMountVolume", message)
        await self._mounted(wanted, "MapVolume.MarkVolumeAsMounted failed while expanding volume", FAILED_MAP)

    async def _unmap(self, name: str, uid: str) -> None:
        mount = self._actual[name].mounts[uid]
        spec, plugin = mount.spec, self._mapping[mount.spec.plugin]
        with_mount(self._actual, name, msgspec.structs.replace(mount, state=MountState.UNCERTAIN))
        pod_map = pod_devices(self._root_dir, uid, spec.plugin)
        global_map = plugin.global_map(spec)
        await self._step(
            "UnmapVolume.UnmapBlockVolume failed",
            spec,
            "",
            lambda: in_thread(name, block_map.unmap_device, global_map, pod_map, spec.name, uid),
        )
        await self._step(
            "UnmapVolume.UnmapPodDevice failed", spec, "", lambda: plugin.unmap_pod_device(mount)
        )
        self._unmounted(name, uid)

    async def _unmap_device(self, name: str) -> None:
        spec = self._actual[name].spec
        plugin = self._mapping[spec.plugin]
        global_map = plugin.global_map(spec)

        async def check() -> None:
            if left := await in_thread(name, block_map.mapped_pods, global_map):
                shown = " ".join(left)
                raise OperationError(
                    f'the device "{global_map}" is still referenced from other Pods [{shown}]'
                )

        await self._step("UnmapDevice failed", spec, "", check)
        with_device(self._actual, name, MountState.UNCERTAIN)
        await self._step("UnmapDevice.TearDownDevice failed", spec, "", lambda: plugin.tear_down_device(spec))
        with_device(self._actual, name, MountState.NOT_MOUNTED)

    # Sizes

    async def _expand(self, wanted: WantedVolume) -> None:
        spec = wanted.spec
        try:
            done = await self._expansions.while_used(spec, wanted.pod)
        except OperationError as error:
            text = "NodeExpandVolume.NodeExpandVolume failed"
            raise _failed(text, spec, str(error), "VolumeResizeFailed") from error
        if done:
            self._sized(spec)
        else:  # only another claim could say something else
            volume = self._actual[spec.unique_name]
            self._actual[spec.unique_name] = msgspec.structs.replace(volume, not_yet=True)

    async def _mounted(self, wanted: WantedVolume, what: str, reason: str) -> None:
        """The volume is there for the pod, and counts as that once it is as large as it should be."""
        spec, uid = wanted.spec, wanted.pod.metadata.uid
        try:
            expanded = await self._expansions.on_mount(spec, wanted.pod)
        except OperationError as error:
            raise _failed(what, spec, str(error), reason) from error
        mount = PodMount(uid=uid, spec=spec, outer=wanted.outer, state=MountState.MOUNTED)
        with_mount(self._actual, spec.unique_name, mount)
        if expanded:
            self._sized(spec)

    def _unmounted(self, name: str, uid: str) -> None:
        """The next pod may come before the volume is gone: what was refused while used is tried anew."""
        without_mount(self._actual, name, uid)
        if not self._actual[name].mounts:
            self._expansions.forget(name)

    def _sized(self, spec: Spec) -> None:
        volume = self._actual[spec.unique_name]
        size = max(volume.size, spec.capacity)
        self._actual[spec.unique_name] = msgspec.structs.replace(volume, size=size)

    # State

    def _check_node(self, what: str, spec: Spec) -> None:
        """That the volume can be had on this node, whoever has brought its pod here. Raises StepError."""
        if spec.nodes is not None and not matches_terms(spec.nodes, self._node().labels):
            text = f"{what}.NodeAffinity check failed"
            raise _failed(text, spec, "no matching NodeSelectorTerms", FAILED_MOUNT)

    def _begin(self, spec: Spec) -> Volume:
        """The volume's entry; a first one, or one that was read back, takes over what is known now."""
        before = self._actual.get(spec.unique_name)
        if before is None:
            volume = Volume(spec=spec, size=spec.claim_size)
        else:
            volume = msgspec.structs.replace(before, spec=spec, size=before.size or spec.claim_size)
        self._actual[spec.unique_name] = volume
        return volume

    def _mount_undone(self, name: str, uid: str, before: PodMount | None, error: OperationError) -> None:
        """What a failed attempt to mount for a pod leaves."""
        if error.ending is Ending.TRANSIENT and before is None:
            without_mount(self._actual, name, uid)
        else:
            mount_failed(self._actual, name, uid, finished=error.finished)

    def _remounted(self, name: str, uid: str) -> None:
        """The pod's mount is as it was, and is not due again before the next sync."""
        mount = self._actual[name].mounts[uid]
        with_mount(self._actual, name, msgspec.structs.replace(mount, remount=False))

    async def _device(self, what: str, spec: Spec, reason: str, work: Callable[[], Awaitable[None]]) -> None:
        """A step that mounts for the node."""
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
            raise _failed(_step_of(what, error), spec, str(error), reason) from error
        with_device(self._actual, name, MountState.MOUNTED)

    def _check_mismatch(self, spec: Spec, error: OperationError) -> None:
        """That a disk has another filesystem than it should is told of its persistent volume."""
        if spec.persistent and isinstance(error, FilesystemMismatch):
            about = v1.ObjectReference(
                kind="PersistentVolume", api_version="v1", name=spec.name, uid=spec.uid
            )
            message = f'MountVolume failed for volume "{spec.name}" {error}'
            self._events.record_object(about, "Warning", MISMATCH, message)

    async def _step(self, what: str, spec: Spec, reason: str, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except OperationError as error:
            raise _failed(_step_of(what, error), spec, str(error), reason) from error


def _mount_of(wanted: WantedVolume, before: PodMount | None) -> PodMount:
    found = before is not None and before.found
    return PodMount(
        uid=wanted.pod.metadata.uid,
        spec=wanted.spec,
        outer=wanted.outer,
        state=MountState.UNCERTAIN,
        found=found,
    )


def _step_of(what: str, error: OperationError) -> str:
    """The step to name for an error that came in `what`."""
    if not isinstance(error, NotBegun):
        return what
    operation = what.partition(".")[0]
    maker = "NewBlockVolumeMapper" if operation == "MapVolume" else "NewMounter"
    return f"{operation}.{maker} initialization failed"


def _failed(what: str, spec: Spec, why: str, reason: str = "") -> StepError:
    return StepError(f'{what} for volume "{spec.name}" : {why}', reason)


def _mounted_elsewhere(path: str) -> list[str]:
    """Other mounts of what is at a path; the same path below another root is none (`HasMountRefs`)."""
    own = path[path.find(_PLUGINS) :] if _PLUGINS in path else path
    return [other for other in mounted_elsewhere(os.path.realpath(path)) if own not in other]


def _clean_subpaths(directory: str) -> None:
    unmount_all(directory)
    remove_tree(directory)
