"""CSI volumes as block devices: staged once for the node, published to each pod at a path of its own."""

from __future__ import annotations

import contextlib
import os

from trio_kubelet.api import v1
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.storage import data_file
from trio_kubelet.storage.csi import messages
from trio_kubelet.storage.csi.context import PREFIX, CSIContext
from trio_kubelet.storage.csi.driver import CSIDrivers, ending_of
from trio_kubelet.storage.csi.mounts import wait_for_attach
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.names import csi_block_dir, csi_block_publish, csi_block_staging
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.files import make_dirs, remove_tree


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
        abilities = await driver.abilities()
        publish = await self._context.publish_context(spec)
        data_dir = f"{csi_block_dir(self._root_dir, spec.name)}/data"
        await in_thread(spec.unique_name, make_dirs, data_dir)
        data = {
            data_file.SPEC_NAME: spec.name,
            data_file.HANDLE: spec.handle,
            data_file.DRIVER: spec.driver,
            data_file.NODE: self._context.node_name,
            data_file.ATTACHMENT: self._context.attachment_name(spec),
        }
        await in_thread(spec.unique_name, data_file.save, data_dir, data)
        if messages.STAGE not in abilities:
            return
        secrets = await self._context.secret(messages.stage_secret(spec), "NodeStageSecretRef")
        staging = csi_block_staging(self._root_dir, spec.name)
        await in_thread(spec.unique_name, make_dirs, staging)
        request = csi.NodeStageVolumeRequest(
            volume_id=spec.handle,
            publish_context=publish,
            staging_target_path=staging,
            volume_capability=messages.capability(spec, abilities),
            secrets=secrets,
            volume_context=messages.attributes(spec),
        )
        try:
            await driver.call("NodeStageVolume", request, csi.NodeStageVolumeResponse)
        except GrpcError as error:
            ending = ending_of(error.code)
            if ending is Ending.FINISHED:
                await in_thread(spec.unique_name, self._clean, spec)
            raise OperationError(str(error), ending) from error

    async def map_pod_device(self, spec: Spec, pod: v1.Pod) -> str:
        driver = self._drivers.get(spec.driver, "blockMapper.MapPodDevice failed to get CSI client")
        abilities = await driver.abilities()
        target = csi_block_publish(self._root_dir, spec.name, pod.metadata.uid)
        publish = await self._context.publish_context(spec)
        secrets = await self._context.secret(messages.publish_secret(spec, pod), "NodePublishSecretRef")
        shown, hidden = await self._context.of_pod(spec, pod)
        await in_thread(spec.unique_name, make_dirs, os.path.dirname(target))
        request = csi.NodePublishVolumeRequest(
            volume_id=spec.handle,
            publish_context=publish,
            staging_target_path=csi_block_staging(self._root_dir, spec.name),
            target_path=target,
            volume_capability=messages.capability(spec, abilities),
            readonly=spec.read_only,
            secrets={**secrets, **hidden},
            volume_context={**messages.attributes(spec), **shown},
        )
        try:
            await driver.call("NodePublishVolume", request, csi.NodePublishVolumeResponse)
        except GrpcError as error:
            raise OperationError(str(error), ending_of(error.code)) from error
        return target

    async def unmap_pod_device(self, mount: PodMount) -> None:
        spec = mount.spec
        driver = self._drivers.get(spec.driver, "blockMapper.UnmapPodDevice failed to get CSI client")
        target = csi_block_publish(self._root_dir, spec.name, mount.uid)
        request = csi.NodeUnpublishVolumeRequest(volume_id=spec.handle, target_path=target)
        try:
            await driver.call("NodeUnpublishVolume", request, csi.NodeUnpublishVolumeResponse)
        except GrpcError as error:
            text = f"{PREFIX}blockMapper.unpublishVolumeForBlock failed: {error}"
            raise OperationError(text, Ending.UNCERTAIN) from error

    async def tear_down_device(self, spec: Spec) -> None:
        driver = self._drivers.get(spec.driver, "blockMapper.TearDownDevice failed to get CSI client")
        staging = csi_block_staging(self._root_dir, spec.name)
        if messages.STAGE in await driver.abilities() and await in_thread(
            spec.unique_name, os.path.lexists, staging
        ):
            request = csi.NodeUnstageVolumeRequest(volume_id=spec.handle, staging_target_path=staging)
            try:
                await driver.call("NodeUnstageVolume", request, csi.NodeUnstageVolumeResponse)
            except GrpcError as error:
                text = f"{PREFIX}blockMapper.unstageVolumeForBlock failed: {error}"
                raise OperationError(text, Ending.UNCERTAIN) from error
        await in_thread(spec.unique_name, self._clean, spec)

    def _clean(self, spec: Spec) -> None:
        """Removes what nobody uses any more; refused while anything is mounted there."""
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(os.path.dirname(csi_block_publish(self._root_dir, spec.name, "")))
        remove_tree(csi_block_staging(self._root_dir, spec.name))
        remove_tree(csi_block_dir(self._root_dir, spec.name))
