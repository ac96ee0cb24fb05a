"""CSI volumes as block devices: staged once for the node, published to each pod at a path of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from functools import partial
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.storage import data_file
from trio_kubelet.storage.csi import messages, node_calls
from trio_kubelet.storage.csi.context import PREFIX, CSIContext
from trio_kubelet.storage.csi.mounts import wait_for_attach
from trio_kubelet.storage.csi.registration import CSIDrivers
from trio_kubelet.storage.names import csi_block_dir, csi_block_publish, csi_block_staging
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.files import make_dirs, remove_tree

_ABILITY: Final = f"{PREFIX}blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: "


class CSIBlocks:
    """Implements `doors.BlockMapping`."""

    def __init__(self, *, root_dir: str, drivers: CSIDrivers, context: CSIContext) -> None:
        self._root_dir = root_dir
        self._drivers = drivers
        self._context = context

    def global_map(self, spec: Spec) -> str:
        return f"{csi_block_dir(self._root_dir, spec.name)}/dev"

    async def wait_for_attach(self, spec: Spec) -> None:
        await wait_for_attach(self._context, spec)

    async def set_up_device(self, spec: Spec, pod: v1.Pod) -> None:
        driver = self._drivers.get(spec.driver, "blockMapper.SetUpDevice failed to get CSI client")
        data_dir = f"{csi_block_dir(self._root_dir, spec.name)}/data"
        staging = csi_block_staging(self._root_dir, spec.name)
        await in_thread(spec.unique_name, _save, data_dir, self._context.volume_data(spec))
        if messages.STAGE in await driver.abilities(_ABILITY):
            await node_calls.stage(
                self._context,
                driver,
                spec,
                pod,
                staging,
                prepare=partial(in_thread, spec.unique_name, make_dirs, staging),
                undo=partial(in_thread, spec.unique_name, self._clean, spec),
            )

    async def map_pod_device(self, spec: Spec, pod: v1.Pod) -> str:
        driver = self._drivers.get(spec.driver, "blockMapper.MapPodDevice failed to get CSI client")
        target = csi_block_publish(self._root_dir, spec.name, pod.metadata.uid)

        async def undo() -> None:
            """The directory is that of other pods too."""

        await node_calls.publish(
            self._context,
            driver,
            spec,
            pod,
            target,
            staging=csi_block_staging(self._root_dir, spec.name),
            prepare=partial(in_thread, spec.unique_name, make_dirs, os.path.dirname(target)),
            undo=undo,
        )
        return target

    async def unmap_pod_device(self, mount: PodMount) -> None:
        spec = mount.spec
        driver = self._drivers.get(spec.driver, "blockMapper.UnmapPodDevice failed to get CSI client")
        target = csi_block_publish(self._root_dir, spec.name, mount.uid)
        await node_calls.unpublish(driver, spec, target, "blockMapper.unpublishVolumeForBlock")

    async def tear_down_device(self, spec: Spec) -> None:
        driver = self._drivers.get(spec.driver, "blockMapper.TearDownDevice failed to get CSI client")
        staging = csi_block_staging(self._root_dir, spec.name)
        if messages.STAGE in await driver.abilities() and await in_thread(
            spec.unique_name, os.path.lexists, staging
        ):
            await node_calls.unstage(driver, spec, staging, "blockMapper.unstageVolumeForBlock")
        await in_thread(spec.unique_name, self._clean, spec)

    def _clean(self, spec: Spec) -> None:
        """Removes what nobody uses any more; refused while anything is mounted there."""
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(os.path.dirname(csi_block_publish(self._root_dir, spec.name, "")))
        remove_tree(csi_block_staging(self._root_dir, spec.name))
        remove_tree(csi_block_dir(self._root_dir, spec.name))


def _save(directory: str, data: Mapping[str, str]) -> None:
    make_dirs(directory)
    data_file.save(directory, data)
