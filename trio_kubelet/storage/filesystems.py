"""Steps on volumes that are filesystems: mounted for the node where that is needed, then for each pod."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.common.mountinfo import mounted_elsewhere
from trio_kubelet.storage.doors import Mounting
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import pod_subpaths
from trio_kubelet.storage.progress import FAILED_MOUNT, SHARED, StepProgress, failed, mount_of, step_of
from trio_kubelet.storage.specs import FLEX, HOST_PATH
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import (
    Actual,
    Desired,
    MountState,
    WantedVolume,
    mounted_for_another,
    with_device,
    with_mount,
)
from trio_kubelet.volumes.files import remove_tree, unmount_all

_WITHOUT_OPTIONS: Final = (FLEX, HOST_PATH)
_PLUGINS: Final = "plugins/kubernetes.io/"


class Filesystems:
    """Mounts and unmounts them. Raises StepError."""

    def __init__(
        self,
        *,
        root_dir: str,
        desired: Desired,
        actual: Actual,
        mounting: Mapping[str, Mounting],
        progress: StepProgress,
    ) -> None:
        self._root_dir = root_dir
        self._desired = desired
        self._actual = actual
        self._mounting = mounting
        self._progress = progress

    async def mount(self, wanted: WantedVolume) -> None:
        """The volume is mounted for a pod that still wants it."""
        spec, pod, uid, name = wanted.spec, wanted.pod, wanted.pod.metadata.uid, wanted.spec.unique_name
        plugin = self._mounting.get(spec.plugin)
        if plugin is None:
            raise failed(
                "MountVolume.FindPluginBySpec failed", spec, "no volume plugin matched", FAILED_MOUNT
            )
        self._progress.check_node("MountVolume", spec)
        if spec.options and spec.plugin in _WITHOUT_OPTIONS:
            text = "mount options are not supported for this volume type"
            raise failed("MountVolume.MountOptionSupport check failed", spec, text, FAILED_MOUNT)
        if spec.single_pod and mounted_for_another(self._actual, name, uid):
            raise failed("MountVolume.SetUp failed", spec, SHARED, FAILED_MOUNT)
        volume = self._progress.begin(spec)
        if spec.attachable:
            await self._progress.step(
                "MountVolume.WaitForAttach failed", spec, FAILED_MOUNT, lambda: plugin.wait_for_attach(spec)
            )
        if spec.device and volume.device.state is not MountState.MOUNTED:
            await self._progress.device(
                "MountVolume.MountDevice failed", spec, FAILED_MOUNT, lambda: plugin.mount_device(spec, pod)
            )
        if self._desired.find(uid, name) is None:  # given up while it was mounted for the node
            return
        before = self._actual[name].mounts.get(uid)
        mounted = before is not None and before.state is MountState.MOUNTED
        keep = mounted or (before is not None and before.found)
        if not mounted:
            with_mount(self._actual, name, mount_of(wanted, before))
        try:
            await plugin.set_up(spec, pod, keep=keep)
        except OperationError as error:
            if mounted:
                self._remounted(name, uid)
            else:
                self._progress.mount_undone(name, uid, before, error)
            what = step_of("MountVolume.SetUp failed", error)
            raise failed(what, spec, str(error), FAILED_MOUNT) from error
        await self._progress.mounted(wanted, "MountVolume.Setup failed while expanding volume", FAILED_MOUNT)

    async def unmount(self, name: str, uid: str) -> None:
        """The pod has it no more."""
        mount = self._actual[name].mounts[uid]
        spec = mount.spec
        plugin = self._mounting[spec.plugin]
        subpaths = pod_subpaths(self._root_dir, uid, spec.name)
        await self._progress.step(
            "error cleaning subPath mounts", spec, "", lambda: in_thread(name, _clean_subpaths, subpaths)
        )
        with_mount(self._actual, name, msgspec.structs.replace(mount, state=MountState.UNCERTAIN))
        await self._progress.step("UnmountVolume.TearDown failed", spec, "", lambda: plugin.tear_down(mount))
        self._progress.unmounted(name, uid)

    async def unmount_device(self, name: str) -> None:
        """The node has it no more."""
        spec = self._actual[name].spec
        plugin = self._mounting[spec.plugin]
        path = plugin.device_path(spec)

        async def check() -> None:
            if left := await in_thread(name, _mounted_elsewhere, path):
                shown = " ".join(left)
                raise OperationError(
                    f'the device mount path "{path}" is still mounted by other references [{shown}]'
                )

        await self._progress.step("GetDeviceMountRefs check failed", spec, "", check)
        with_device(self._actual, name, MountState.UNCERTAIN)
        await self._progress.step("UnmountDevice failed", spec, "", lambda: plugin.unmount_device(spec))
        with_device(self._actual, name, MountState.NOT_MOUNTED)

    def _remounted(self, name: str, uid: str) -> None:
        """The pod's mount is as it was, and is not due again before the next sync."""
        mount = self._actual[name].mounts[uid]
        with_mount(self._actual, name, msgspec.structs.replace(mount, remount=False))


def _mounted_elsewhere(path: str) -> list[str]:
    """Other mounts of what is at a path; the same path below another root is none (`HasMountRefs`)."""
    own = path[path.find(_PLUGINS) :] if _PLUGINS in path else path
    return [other for other in mounted_elsewhere(os.path.realpath(path)) if own not in other]


def _clean_subpaths(directory: str) -> None:
    unmount_all(directory)
    remove_tree(directory)
