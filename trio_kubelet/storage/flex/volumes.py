"""FlexVolumes as pods have them: attached and mounted for the node where the driver does that, mounted for a
pod. What a driver does not support is done here as far as the kubelet does it.

Layout: `plugins/kubernetes.io/flexvolume/DRIVER/mounts/NAME` for the node, and for a pod
`pods/UID/volumes/vendor~driver/NAME`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.podinfo.doors import ObjectError
from trio_kubelet.storage.disks.format import format_and_mount, resize_filesystem
from trio_kubelet.storage.disks.local import unmount_dir
from trio_kubelet.storage.doors import StorageObjectsDoor
from trio_kubelet.storage.errors import Ending, NotSupported, OperationError
from trio_kubelet.storage.flex.drivers import ATTACH_DEADLINE, FlexDrivers
from trio_kubelet.storage.flex.messages import options_of, pod_options, secret_of, source_of
from trio_kubelet.storage.names import all_pods, plugin_dir, pod_volume, unique_name, unique_pod_name
from trio_kubelet.storage.ownership import VolumeOwnership
from trio_kubelet.storage.specs import FLEX, Spec
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import entries, make_dirs
from trio_kubelet.volumes.linux import MS_BIND, mount, mount_at

_OWN: Final = "kubernetes.io~"
_DEEPEST: Final = 4


class FlexVolumes:
    """Implements `doors.Mounting`, `doors.Attaching` and `doors.Expanding`.

    `node` is what the Node's status says: where a controller attaches, the devices.
    """

    def __init__(
        self,
        *,
        root_dir: str,
        node_name: str,
        drivers: FlexDrivers,
        objects: StorageObjectsDoor | None,
        owner: VolumeOwnership,
        node: Callable[[], ReportedVolumes],
    ) -> None:
        self._root_dir = root_dir
        self._node_name = node_name
        self._drivers = drivers
        self._objects = objects
        self._owner = owner
        self._node = node
        self._devices: dict[str, str] = {}  # of volumes that were attached here, or have come, by unique name

    async def known(self, spec: Spec, uid: str) -> Spec:
        """The volume as its driver has it: one that can be attached is the same for all pods. Raises
        VolumeError.
        """
        driver = await self._drivers.find(spec.driver)
        if driver is None:
            raise VolumeError(
                f'failed to get Plugin from volumeSpec for volume "{spec.name}" err=no volume plugin matched'
            )
        can = driver.capabilities
        if not can.attach:
            named = unique_pod_name(spec.driver, uid, spec.name)
            return msgspec.structs.replace(spec, unique_name=named, measured=can.supportsmetrics)
        try:
            with contextlib.suppress(NotSupported):
                await driver.call("getvolumename", options_of(spec))  # its answer counts for nothing
        except OperationError as error:
            raise VolumeError(
                f'failed to GetUniqueVolumeNameFromSpec for volumeSpec "{spec.name}" using volume plugin '
                f'"{spec.driver}" err=failed to GetVolumeName from volumePlugin for volumeSpec '
                f'"{spec.name}" err={error}'
            ) from error
        named = unique_name(spec.driver, spec.name)
        return msgspec.structs.replace(
            spec, unique_name=named, device=True, attachable=True, measured=can.supportsmetrics
        )

    def path(self, spec: Spec, uid: str) -> str:
        return pod_volume(self._root_dir, uid, spec.driver, spec.name)

    def device_path(self, spec: Spec) -> str:
        return self._global_mount(spec) if spec.device else ""

    def relabels(self, spec: Spec, uid: str) -> bool:
        driver = self._drivers.known(spec.driver)
        return driver is not None and driver.capabilities.selinuxrelabel

    async def requires_remount(self, spec: Spec) -> bool:
        return False

    async def attach(self, spec: Spec) -> None:
        driver = await self._drivers.get(spec.driver)
        device = ""
        with contextlib.suppress(NotSupported):
            device = (await driver.call("attach", options_of(spec), self._node_name)).device
        self._devices[spec.unique_name] = device

    async def detach(self, spec: Spec) -> None:
        driver = await self._drivers.get(spec.driver)
        with contextlib.suppress(NotSupported):
            await driver.call("detach", spec.name, self._node_name)
        self._devices.pop(spec.unique_name, None)

    async def wait_for_attach(self, spec: Spec) -> None:
        driver, name = await self._drivers.get(spec.driver), spec.unique_name
        node = self._node()
        if not node.controller and name not in self._devices:  # it was attached before a restart
            await self.attach(spec)
        device = node.attached.get(name, "") if node.controller else self._devices[name]
        with contextlib.suppress(NotSupported):
            answer = await driver.call("waitforattach", device, options_of(spec), deadline=ATTACH_DEADLINE)
            device = answer.device
        self._devices[name] = device

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        driver, target = await self._drivers.get(spec.driver), self._global_mount(spec)
        await in_thread(spec.unique_name, make_dirs, target)
        if await in_thread(spec.unique_name, mount_at, target) is not None:
            return
        device = self._devices.get(spec.unique_name, "")
        try:
            await driver.call("mountdevice", target, device, options_of(spec))
        except NotSupported:
            if device:
                options = ["ro" if spec.read_only else "rw"]
                await format_and_mount(device, target, source_of(spec).fs_type, options)

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        driver, target = await self._drivers.get(spec.driver), self.path(spec, pod.metadata.uid)
        await in_thread(spec.unique_name, make_dirs, target)
        if await in_thread(spec.unique_name, mount_at, target) is not None:
            return
        try:
            told = pod_options(pod, await self._secret(spec, pod.metadata.namespace))
            try:
                await driver.call("mount", target, options_of(spec, told))
            except NotSupported:
                await in_thread(spec.unique_name, _bind, self._global_mount(spec), target)
        except OperationError as error:
            if error.ending is not Ending.UNCERTAIN and not keep:
                with contextlib.suppress(OperationError):
                    await in_thread(spec.unique_name, _remove, target)
            raise
        if driver.capabilities.fsgroup and not spec.read_only:
            with contextlib.suppress(OperationError):  # as it may be no filesystem that knows groups
                await self._owner.give(spec, target, pod, read_only=False)

    async def tear_down(self, mount: PodMount) -> None:
        spec = mount.spec
        await self._take_down(spec, self.path(spec, mount.uid), "unmount", always=True)

    async def unmount_device(self, spec: Spec) -> None:
        await self._take_down(spec, self._global_mount(spec), "unmountdevice", always=False)
        device = self._devices.get(spec.unique_name, "")
        if device != "" and await in_thread(spec.unique_name, _is_open, device):
            text = "the device is in use when it was no longer expected to be in use"
            raise OperationError(text, Ending.UNCERTAIN)

    async def expand(self, spec: Spec, uid: str, size: int) -> None:
        driver, device = await self._drivers.get(spec.driver), self._devices.get(spec.unique_name, "")
        if not driver.capabilities.requiresfsresize:
            return
        target = self.path(spec, uid)
        try:
            sizes = str(size), str(spec.claim_size)
            await driver.call("expandfs", options_of(spec), device, target, *sizes)
        except NotSupported:
            await resize_filesystem(device, target)

    def read_back(self, root_dir: str, table: frozenset[str]) -> Iterable[tuple[Spec, str]]:
        """Volumes that are, or were about to be, mounted (see `reconstruct.OTHERS`)."""
        devices = set()
        for driver, name in _staged(plugin_dir(root_dir, FLEX), ""):
            devices.add((driver, name))
            yield _found(driver, name, ""), ""
        for uid in entries(all_pods(root_dir)):
            volumes = f"{all_pods(root_dir)}/{uid}/volumes"
            for escaped in entries(volumes):
                if escaped.startswith(_OWN):
                    continue
                driver = escaped.replace("~", "/")
                for name in entries(f"{volumes}/{escaped}"):
                    yield _found(driver, name, "" if (driver, name) in devices else uid), uid

    async def _take_down(self, spec: Spec, path: str, command: str, *, always: bool) -> None:
        """Lets the driver unmount a directory, and removes it. `always`: the driver is asked though nothing
        is mounted there.
        """
        name = spec.unique_name
        if not await in_thread(name, os.path.lexists, path):
            return
        if always or await in_thread(name, mount_at, path) is not None:
            driver = await self._drivers.get(spec.driver)
            try:
                await driver.call(command, path)
            except NotSupported:
                await in_thread(name, unmount_dir, path)
            except OperationError as error:
                raise OperationError(str(error), Ending.UNCERTAIN) from error
        await in_thread(name, _remove, path)

    async def _secret(self, spec: Spec, namespace: str) -> dict[str, bytes]:
        """The keys of the volume's secret, which has to be of the driver's type. Raises OperationError."""
        where, name = secret_of(spec, namespace)
        if not where or not name:
            return {}
        if self._objects is None:
            raise OperationError("cannot get kube client", Ending.TRANSIENT)
        try:
            found = await self._objects.secret(where, name)
            error = f'secrets "{name}" not found' if found is None else ""
        except ObjectError as exc:
            found, error = None, str(exc)
        if found is not None and found.type != spec.driver:
            found, error = None, f"cannot get secret of type {spec.driver}"
        if found is None:
            raise OperationError(f"couldn't get secret {where}/{name} err: {error}", Ending.TRANSIENT)
        return dict(found.data or {})

    def _global_mount(self, spec: Spec) -> str:
        return f"{plugin_dir(self._root_dir, FLEX)}/{spec.driver}/mounts/{spec.name}"


def _bind(source: str, target: str) -> None:
    mount(source, target, flags=MS_BIND)


def _is_open(device: str) -> bool:
    """Whether a disk is in use, by a mount elsewhere say. Raises OSError."""
    try:
        if not stat.S_ISBLK(os.stat(device).st_mode):
            return False
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return True
    return False


def _remove(path: str) -> None:
    """A driver may have removed it itself."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def _staged(directory: str, driver: str, depth: int = 0) -> Iterable[tuple[str, str]]:
    """Drivers with the volumes they have mounted for the node, or may have: a driver's name has slashes."""
    for name in entries(directory):
        if name == "mounts" and driver:
            for volume in entries(f"{directory}/mounts"):
                yield driver, volume
        elif depth < _DEEPEST:
            yield from _staged(f"{directory}/{name}", f"{driver}/{name}" if driver else name, depth + 1)


def _found(driver: str, name: str, uid: str) -> Spec:
    """A volume that was found: of one pod, or with "" one that is the same for all."""
    device = not uid
    return Spec(
        unique_name=unique_pod_name(driver, uid, name) if uid else unique_name(driver, name),
        name=name,
        plugin=FLEX,
        source=v1.FlexVolumeSource(driver=driver),
        driver=driver,
        device=device,
        attachable=device,
    )
