"""CSI volumes as filesystems: staged once for the node, published to each pod."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.mountinfo import mount_holding, selinux_enabled
from trio_kubelet.storage import data_file
from trio_kubelet.storage.csi import messages, node_calls
from trio_kubelet.storage.csi.context import PREFIX, CSIContext, attach_required, gives_to_group
from trio_kubelet.storage.csi.registration import CSIDrivers
from trio_kubelet.storage.errors import Ending, OperationError
from trio_kubelet.storage.names import csi_global_mount, csi_pod_mount
from trio_kubelet.storage.ownership import VolumeOwnership
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.files import make_dirs
from trio_kubelet.volumes.linux import mount_at
from trio_kubelet.volumes.local import fs_group_of

log = get_logger(__name__)

_FAILED: Final = f"{PREFIX}mounter.SetUpAt failed to"
_ABILITY: Final = f"{_FAILED} determine if the node service has VOLUME_MOUNT_GROUP capability: "
_ABILITY_OF_STAGED: Final = f"{_FAILED} check for STAGE_UNSTAGE_VOLUME capability: "


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
        self._labelled: set[str] = set()  # mounts of filesystems whose files have labels
        self._unlabelled: set[str] = set()  # drivers of which it was said that labels are not set

    def path(self, spec: Spec, uid: str) -> str:
        return csi_pod_mount(self._root_dir, uid, spec.name)

    def device_path(self, spec: Spec) -> str:
        return csi_global_mount(self._root_dir, spec.driver, spec.handle)

    def relabels(self, spec: Spec, uid: str) -> bool:
        return self.path(spec, uid) in self._labelled

    async def requires_remount(self, spec: Spec) -> bool:
        driver = await self._context.driver(spec.driver)
        return driver is not None and bool(driver.spec.requires_republish)

    async def wait_for_attach(self, spec: Spec) -> None:
        await wait_for_attach(self._context, spec)

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        driver = self._drivers.get(spec.driver, "attacher.MountDevice failed to create newCsiDriverClient")
        target = self.device_path(spec)
        if messages.STAGE not in await driver.abilities():
            await in_thread(spec.unique_name, make_dirs, target)
            return
        data = {data_file.HANDLE: spec.handle, data_file.DRIVER: spec.driver}
        await node_calls.stage(
            self._context,
            driver,
            spec,
            pod,
            target,
            prepare=partial(in_thread, spec.unique_name, _prepare, target, os.path.dirname(target), data),
            undo=partial(in_thread, spec.unique_name, _remove, target),
        )

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        driver = self._drivers.get(spec.driver, "mounter.SetUpAt failed to get CSI client")
        await self._context.check_lifecycle(spec)
        await self._tell_labels(spec, pod)
        abilities = await driver.abilities(_ABILITY_OF_STAGED if not spec.ephemeral else _ABILITY)
        policy = await self._context.group_policy(spec)
        target, group = self.path(spec, pod.metadata.uid), fs_group_of(pod)
        parent = os.path.dirname(target)

        async def undo() -> None:
            if not keep:
                await in_thread(spec.unique_name, _remove, target)

        await node_calls.publish(
            self._context,
            driver,
            spec,
            pod,
            target,
            staging=self.device_path(spec) if messages.STAGE in abilities and not spec.ephemeral else "",
            prepare=partial(in_thread, spec.unique_name, _prepare, parent, parent, self._data(spec)),
            undo=undo,
        )
        with _afterwards("error checking for SELinux support"):
            if await in_thread(spec.unique_name, _has_labels, target):
                self._labelled.add(target)
        to_driver = messages.MOUNT_GROUP in abilities
        if not to_driver and gives_to_group(spec, messages.fs_type(spec), group, policy):
            with _afterwards(f"applyFSGroup failed for vol {spec.handle}"):
                await self._owner.give(spec, target, pod, read_only=False)

    async def tear_down(self, mount: PodMount) -> None:
        spec, target = mount.spec, self.path(mount.spec, mount.uid)
        driver = self._drivers.get(spec.driver, "Unmounter.TearDownAt failed to get CSI client")
        await node_calls.unpublish(driver, spec, target, "Unmounter.TearDownAt")
        await in_thread(spec.unique_name, _remove, target)
        self._labelled.discard(target)

    async def unmount_device(self, spec: Spec) -> None:
        target = self.device_path(spec)
        driver = self._drivers.get(spec.driver, "attacher.UnmountDevice failed to create newCsiDriverClient")
        if messages.STAGE in await driver.abilities():
            await node_calls.unstage(driver, spec, target, "attacher.UnmountDevice")
        await in_thread(spec.unique_name, _remove, target)

    async def _tell_labels(self, spec: Spec, pod: v1.Pod) -> None:
        """A driver that could mount with a pod's SELinux label is not asked to: once a driver it is said."""
        context, found = pod.spec.security_context, await self._context.driver(spec.driver)
        wanted = context is not None and context.se_linux_options is not None
        if wanted and found is not None and found.spec.se_linux_mount and spec.driver not in self._unlabelled:
            self._unlabelled.add(spec.driver)
            log.info(
                "Volumes are mounted without SELinux labels; seLinuxMount has no effect", driver=spec.driver
            )

    def _data(self, spec: Spec) -> Mapping[str, str]:
        lifecycle = "Ephemeral" if spec.ephemeral else "Persistent"
        return {**self._context.volume_data(spec), data_file.LIFECYCLE: lifecycle}


@contextmanager
def _afterwards(failed: str) -> Iterator[None]:
    """The volume has been published: it is to be taken back, whatever fails now."""
    try:
        yield
    except OperationError as error:
        raise OperationError(f"{failed}: {error}", Ending.UNCERTAIN) from error


def _prepare(directory: str, data_dir: str, data: Mapping[str, str]) -> None:
    """The directory is there, and the data file says whose it is."""
    make_dirs(directory)
    data_file.save(data_dir, data)


def _has_labels(target: str) -> bool:
    """Whether what is there has SELinux labels of its own. It may be no more than a directory."""
    found = mount_holding(os.path.realpath(target)) if selinux_enabled() else None
    return found is not None and "seclabel" in found.options.split(",")


def _remove(target: str) -> None:
    data_file.remove_mount_dir(target, mount_at(target) is not None)
