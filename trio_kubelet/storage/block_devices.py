"""Steps on volumes that pods have as devices: one device for the node, mapped for each pod."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trio_kubelet.podinfo.doors import ObjectRecorderDoor
from trio_kubelet.storage import block_map
from trio_kubelet.storage.doors import BlockMapping
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import pod_devices
from trio_kubelet.storage.progress import FAILED_MAP, SHARED, StepProgress, failed, mount_of
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


class BlockDevices:
    """Maps and unmaps them. Raises StepError."""

    def __init__(
        self,
        *,
        root_dir: str,
        desired: Desired,
        actual: Actual,
        mapping: Mapping[str, BlockMapping],
        progress: StepProgress,
        events: ObjectRecorderDoor,
    ) -> None:
        self._root_dir = root_dir
        self._desired = desired
        self._actual = actual
        self._mapping = mapping
        self._progress = progress
        self._events = events

    async def map(self, wanted: WantedVolume) -> None:
        """The volume is mapped for a pod that still wants it."""
        spec, pod, uid, name = wanted.spec, wanted.pod, wanted.pod.metadata.uid, wanted.spec.unique_name
        plugin = self._mapping.get(spec.plugin)
        if plugin is None:
            text = "no volume plugin matched"
            raise failed("MapVolume.FindMapperPluginBySpec failed", spec, text, FAILED_MAP)
        self._progress.check_node("MapVolume", spec)
        if spec.single_pod and mounted_for_another(self._actual, name, uid):
            raise failed("MapVolume.SetUpDevice failed", spec, SHARED, FAILED_MAP)
        volume = self._progress.begin(spec)
        if spec.attachable:
            await self._progress.step(
                "MapVolume.WaitForAttach failed", spec, FAILED_MAP, lambda: plugin.wait_for_attach(spec)
            )
        if volume.device.state is not MountState.MOUNTED:
            await self._progress.device(
                "MapVolume.SetUpDevice failed", spec, FAILED_MAP, lambda: plugin.set_up_device(spec, pod)
            )
        if self._desired.find(uid, name) is None:
            return
        before = self._actual[name].mounts.get(uid)
        with_mount(self._actual, name, mount_of(wanted, before))
        try:
            device = await plugin.map_pod_device(spec, pod)
        except OperationError as error:
            self._progress.mount_undone(name, uid, before, error)
            raise failed("MapVolume.MapPodDevice failed", spec, str(error), FAILED_MAP) from error
        pod_map = pod_devices(self._root_dir, uid, spec.plugin)
        global_map = plugin.global_map(spec)
        await self._progress.step(
            "MapVolume.EvalHostSymlinks failed",
            spec,
            FAILED_MAP,
            lambda: in_thread(name, block_map.find_device, device),
        )
        await self._progress.step(
            "MapVolume.MapBlockVolume failed",
            spec,
            FAILED_MAP,
            lambda: in_thread(name, block_map.map_device, device, global_map, pod_map, spec.name, uid),
        )
        for path in (f'globalMapPath "{global_map}"', f'volumeMapPath "{pod_map}"'):
            message = f'MapVolume.MapPodDevice succeeded for volume "{spec.name}" {path}'
            self._events.record(pod, "Normal", "SuccessfulMountVolume", message)
        await self._progress.mounted(
            wanted, "MapVolume.MarkVolumeAsMounted failed while expanding volume", FAILED_MAP
        )

    async def unmap(self, name: str, uid: str) -> None:
        """The pod has it no more."""
        mount = self._actual[name].mounts[uid]
        spec, plugin = mount.spec, self._mapping[mount.spec.plugin]
        with_mount(self._actual, name, msgspec.structs.replace(mount, state=MountState.UNCERTAIN))
        pod_map = pod_devices(self._root_dir, uid, spec.plugin)
        global_map = plugin.global_map(spec)
        await self._progress.step(
            "UnmapVolume.UnmapBlockVolume failed",
            spec,
            "",
            lambda: in_thread(name, block_map.unmap_device, global_map, pod_map, spec.name, uid),
        )
        await self._progress.step(
            "UnmapVolume.UnmapPodDevice failed", spec, "", lambda: plugin.unmap_pod_device(mount)
        )
        self._progress.unmounted(name, uid)

    async def unmap_device(self, name: str) -> None:
        """The node has it no more."""
        spec = self._actual[name].spec
        plugin = self._mapping[spec.plugin]
        global_map = plugin.global_map(spec)

        async def check() -> None:
            if left := await in_thread(name, block_map.mapped_pods, global_map):
                shown = " ".join(left)
                raise OperationError(
                    f'the device "{global_map}" is still referenced from other Pods [{shown}]'
                )

        await self._progress.step("UnmapDevice failed", spec, "", check)
        with_device(self._actual, name, MountState.UNCERTAIN)
        await self._progress.step(
            "UnmapDevice.TearDownDevice failed", spec, "", lambda: plugin.tear_down_device(spec)
        )
        with_device(self._actual, name, MountState.NOT_MOUNTED)
