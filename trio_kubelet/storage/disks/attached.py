"""Disks that come to the node over a network: attached, mounted once for the node, bound for each pod."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.common.mountinfo import mounts
from trio_kubelet.storage.disks.format import format_and_mount, joined
from trio_kubelet.storage.disks.local import bind_for_pod, unmount_dir, unmount_whole
from trio_kubelet.storage.doors import Disks
from trio_kubelet.storage.names import all_pods, block_root, escape, plugin_dir, pod_devices, pod_volume
from trio_kubelet.storage.ownership import VolumeOwnership
from trio_kubelet.storage.specs import Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.files import entries, make_dirs, remove_tree
from trio_kubelet.volumes.linux import mount_at, real_path


class AttachedDisks:
    """Implements `doors.Mounting`, `doors.BlockMapping` and `doors.Attaching` for one kind of disks."""

    def __init__(self, *, root_dir: str, owner: VolumeOwnership, disks: Disks) -> None:
        self._root_dir = root_dir
        self._owner = owner
        self._disks = disks
        self._devices: dict[str, str] = {}  # of attached volumes, by unique name

    def path(self, spec: Spec, uid: str) -> str:
        return pod_volume(self._root_dir, uid, self._disks.plugin, spec.name)

    def device_path(self, spec: Spec) -> str:
        return self._global_mount(spec)

    def global_map(self, spec: Spec) -> str:
        return f"{block_root(self._root_dir, self._disks.plugin)}/{self._disks.directory(spec)}"

    def relabels(self, spec: Spec, uid: str) -> bool:
        return True

    async def requires_remount(self, spec: Spec) -> bool:
        return False

    async def attach(self, spec: Spec) -> None:
        """Without a controller, too, waiting is what attaches it."""

    async def detach(self, spec: Spec) -> None:
        """It was, when it was unmounted from the node, unless it was never mounted."""
        if spec.unique_name in self._devices:
            await self._give_up(spec, self._directory(spec))

    async def wait_for_attach(self, spec: Spec) -> None:
        """Attaches it: what the kubelet calls waiting is what does it, for these."""
        self._devices[spec.unique_name] = await self._disks.attach(spec, self._directory(spec))

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        target = self._global_mount(spec)
        await in_thread(spec.unique_name, make_dirs, target)
        if await in_thread(spec.unique_name, mount_at, target) is None:
            options = joined(spec.options, ["ro"] if spec.read_only else [])
            device = self._devices[spec.unique_name]
            await format_and_mount(device, target, self._disks.fs_type(spec), options)

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        target = self.path(spec, pod.metadata.uid)
        again = await in_thread(spec.unique_name, bind_for_pod, self._global_mount(spec), target, spec)
        if not spec.read_only:
            await self._owner.give(spec, target, pod, read_only=False, again=again)

    async def tear_down(self, mount: PodMount) -> None:
        await in_thread(mount.spec.unique_name, unmount_dir, self.path(mount.spec, mount.uid))

    async def unmount_device(self, spec: Spec) -> None:
        target = self._global_mount(spec)
        await in_thread(spec.unique_name, unmount_whole, target)  # it may hide what detaching needs
        await self._give_up(spec, target)

    async def set_up_device(self, spec: Spec, pod: v1.Pod) -> None:
        """It is attached, that is all."""

    async def map_pod_device(self, spec: Spec, pod: v1.Pod) -> str:
        return self._devices[spec.unique_name]

    async def unmap_pod_device(self, mount: PodMount) -> None:
        """Nothing was made besides what all devices have."""

    async def tear_down_device(self, spec: Spec) -> None:
        await self._give_up(spec, self.global_map(spec))

    def read_back(self, root_dir: str, table: frozenset[str]) -> Iterable[tuple[Spec, str]]:
        """Volumes that are, or were about to be, attached (see `reconstruct.OTHERS`)."""
        plugin = self._disks.plugin
        at = {mount.path: mount.device for mount in mounts()}
        by_device: dict[str, Spec] = {}
        for path, spec in self._disks.read_back(plugin_dir(root_dir, plugin), False):
            yield spec, ""
            if device := at.get(real_path(path)):
                by_device[device] = spec
        for uid in entries(all_pods(root_dir)):
            volumes = f"{all_pods(root_dir)}/{uid}/volumes/{escape(plugin)}"
            for name in entries(volumes):
                found = by_device.get(at.get(real_path(f"{volumes}/{name}"), ""))
                if found is not None:
                    yield msgspec.structs.replace(found, name=name), uid
        for path, spec in self._disks.read_back(block_root(root_dir, plugin), True):
            yield spec, ""
            for uid in entries(path):
                if not uid.endswith(".json"):
                    name = _linked_name(pod_devices(root_dir, uid, plugin), f"{path}/{uid}")
                    yield msgspec.structs.replace(spec, name=name or spec.name), uid

    def _global_mount(self, spec: Spec) -> str:
        return f"{plugin_dir(self._root_dir, self._disks.plugin)}/{self._disks.directory(spec)}"

    def _directory(self, spec: Spec) -> str:
        return self.global_map(spec) if spec.block else self._global_mount(spec)

    async def _give_up(self, spec: Spec, directory: str) -> None:
        if await in_thread(spec.unique_name, os.path.lexists, directory):
            await self._disks.detach(spec, directory)
            await in_thread(spec.unique_name, remove_tree, directory)
        self._devices.pop(spec.unique_name, None)


def _linked_name(directory: str, bound: str) -> str:
    """What a pod calls a bound device, "" if it has no link to it."""
    for name in entries(directory):
        with contextlib.suppress(OSError):
            if os.stat(f"{directory}/{name}").st_rdev == os.stat(bound).st_rdev != 0:
                return name
    return ""
