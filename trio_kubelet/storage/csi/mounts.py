"""CSI volumes as filesystems: staged once for the node, published to each pod."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trio_kubelet.api import v1
from trio_kubelet.grpc.errors import GrpcError
from trio_kubelet.storage import data_file
from trio_kubelet.storage.csi import messages
from trio_kubelet.storage.csi.context import PREFIX, CSIContext, attach_required, gives_to_group
from trio_kubelet.storage.csi.driver import CSIDrivers, ending_of
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.names import csi_global_mount, csi_pod_mount
from trio_kubelet.storage.owner import VolumeOwnership
from trio_kubelet.storage.proto import csi_pb2 as csi
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.files import make_dirs
from trio_kubelet.volumes.linux import mount_at


async def wait_for_attach(context: CSIContext, spec: Spec) -> None:
    """That the attacher says the volume is attached here. Raises OperationError with the attacher's error."""
    if spec.ephemeral or not attach_required(await context.driver(spec.driver)):
        return
    name = context.attachment_name(spec)
    try:
        found = await context.attachment(spec)
    except OperationError as error:
        text = f"volume {spec.handle} has GET error for volume attachment {name}: {error}"
        raise OperationError(text, Ending.TRANSIENT) from error
    if found is None:
        text = (
            f"volume {spec.handle} has GET error for volume attachment {name}: "
            f'volumeattachments.storage.k8s.io "{name}" not found'
        )
        raise OperationError(text, Ending.TRANSIENT)
    if found.metadata.deletion_timestamp:
        raise OperationError("volume attachment is being deleted", Ending.TRANSIENT)
    if found.status.attached:
        return
    if found.status.attach_error is not None:
        raise OperationError(found.status.attach_error.message, Ending.TRANSIENT)
    raise OperationError(
        f"volume {spec.handle} is not attached for volume attachment {name}", Ending.TRANSIENT
    )


class CSIMounts:
    """Implements `doors.Mounting`."""

    def __init__(
        self, *, root_dir: str, drivers: CSIDrivers, context: CSIContext, owner: VolumeOwnership
    ) -> None:
        self._root_dir = root_dir
        self._drivers = drivers
        self._context = context
        self._owner = owner

    def path(self, spec: Spec, uid: str) -> str:
        return csi_pod_mount(self._root_dir, uid, spec.name)

    def stage_path(self, spec: Spec) -> str:
        """Where the driver stages the volume."""
        return csi_global_mount(self._root_dir, spec.driver, spec.handle)

    async def requires_remount(self, spec: Spec) -> bool:
        driver = await self._context.driver(spec.driver)
        return driver is not None and bool(driver.spec.requires_republish)

    async def wait_for_attach(self, spec: Spec) -> None:
        await wait_for_attach(self._context, spec)

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        driver = self._drivers.get(spec.driver, "attacher.MountDevice failed to create newCsiDriverClient")
        abilities = await driver.abilities()
        target = self.stage_path(spec)
        publish = await self._context.publish_context(spec)
        staged = messages.STAGE in abilities
        secrets = {}
        if staged:
            secrets = await self._context.secret(messages.stage_secret(spec), "NodeStageSecretRef")
        if not staged:
            await in_thread(spec.unique_name, make_dirs, target)
            return
        data = {data_file.HANDLE: spec.handle, data_file.DRIVER: spec.driver}
        await in_thread(spec.unique_name, _prepare, target, os.path.dirname(target), data)
        request = csi.NodeStageVolumeRequest(
            volume_id=spec.handle,
            publish_context=publish,
            staging_target_path=target,
            volume_capability=messages.capability(
                spec, abilities, spec.options, _group(pod) if messages.MOUNT_GROUP in abilities else None
            ),
            secrets=secrets,
            volume_context=messages.attributes(spec),
        )
        try:
            await driver.call("NodeStageVolume", request, csi.NodeStageVolumeResponse)
        except GrpcError as error:
            ending = ending_of(error.code)
            if ending is Ending.FINISHED:
                await self._clean(spec.unique_name, target)
            raise OperationError(str(error), ending) from error

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        driver = self._drivers.get(spec.driver, "mounter.SetUpAt failed to get CSI client")
        await self._context.check_lifecycle(spec)
        abilities = await driver.abilities()
        policy = await self._context.group_policy(spec)
        target, group = self.path(spec, pod.metadata.uid), _group(pod)
        publish = await self._context.publish_context(spec)
        secrets = await self._context.secret(messages.publish_secret(spec, pod), "NodePublishSecretRef")
        shown, hidden = await self._context.of_pod(spec, pod)
        parent = os.path.dirname(target)
        await in_thread(spec.unique_name, _prepare, parent, parent, self._data(spec))
        to_driver = messages.MOUNT_GROUP in abilities
        request = csi.NodePublishVolumeRequest(
            volume_id=spec.handle,
            publish_context=publish,
            staging_target_path=self.stage_path(spec)
            if messages.STAGE in abilities and not spec.ephemeral
            else "",
            target_path=target,
            volume_capability=messages.capability(
                spec, abilities, spec.options, group if to_driver else None
            ),
            readonly=spec.read_only,
            secrets={**secrets, **hidden},
            volume_context={**messages.attributes(spec), **shown},
        )
        try:
            await driver.call("NodePublishVolume", request, csi.NodePublishVolumeResponse)
        except GrpcError as error:
            ending = ending_of(error.code)
            if ending is Ending.FINISHED and not keep:
                await self._clean(spec.unique_name, target)
            raise OperationError(str(error), ending) from error
        if not to_driver and gives_to_group(spec, messages.fs_type(spec), group, policy):
            try:
                await self._owner.give(spec.unique_name, target, pod, read_only=False)
            except OperationError as error:
                text = f"applyFSGroup failed for vol {spec.handle}: {error}"
                raise OperationError(text, Ending.UNCERTAIN) from error

    async def tear_down(self, mount: PodMount) -> None:
        spec, target = mount.spec, self.path(mount.spec, mount.uid)
        driver = self._drivers.get(spec.driver, "Unmounter.TearDownAt failed to get CSI client")
        request = csi.NodeUnpublishVolumeRequest(volume_id=spec.handle, target_path=target)
        try:
            await driver.call("NodeUnpublishVolume", request, csi.NodeUnpublishVolumeResponse)
        except GrpcError as error:
            text = f"{PREFIX}Unmounter.TearDownAt failed: {error}"
            raise OperationError(text, Ending.UNCERTAIN) from error
        await self._clean(spec.unique_name, target)

    async def unmount_device(self, spec: Spec) -> None:
        target = self.stage_path(spec)
        driver = self._drivers.get(spec.driver, "attacher.UnmountDevice failed to create newCsiDriverClient")
        if messages.STAGE in await driver.abilities():
            request = csi.NodeUnstageVolumeRequest(volume_id=spec.handle, staging_target_path=target)
            try:
                await driver.call("NodeUnstageVolume", request, csi.NodeUnstageVolumeResponse)
            except GrpcError as error:
                text = f"{PREFIX}attacher.UnmountDevice failed: {error}"
                raise OperationError(text, Ending.UNCERTAIN) from error
        await self._clean(spec.unique_name, target)

    async def _clean(self, volume: str, target: str) -> None:
        await in_thread(volume, _remove, target)

    def _data(self, spec: Spec) -> Mapping[str, str]:
        return {
            data_file.SPEC_NAME: spec.name,
            data_file.HANDLE: spec.handle,
            data_file.DRIVER: spec.driver,
            data_file.NODE: self._context.node_name,
            data_file.LIFECYCLE: "Ephemeral" if spec.ephemeral else "Persistent",
            data_file.ATTACHMENT: self._context.attachment_name(spec),
        }


def _group(pod: v1.Pod) -> int | None:
    return pod.spec.security_context.fs_group if pod.spec.security_context is not None else None


def _prepare(directory: str, data_dir: str, data: Mapping[str, str]) -> None:
    """The directory is there, and the data file says whose it is."""
    make_dirs(directory)
    data_file.save(data_dir, data)


def _remove(target: str) -> None:
    data_file.remove_mount_dir(target, mount_at(target) is not None)
