"""Local persistent volumes: a directory of the node, or a disk that is formatted when it is empty."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from trio_kubelet.api import v1
from trio_kubelet.storage.disks.format import format_and_mount
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import all_pods, block_root, escape, plugin_dir, pod_volume, unique_name
from trio_kubelet.storage.owner import VolumeOwnership
from trio_kubelet.storage.specs import LOCAL, Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.files import entries, make_dirs
from trio_kubelet.volumes.linux import MS_BIND, MS_RDONLY, MS_REMOUNT, mount, mount_at, unmount


class LocalVolumes:
    """Implements `doors.Mounting` and `doors.BlockMapping`."""

    def __init__(self, *, root_dir: str, owner: VolumeOwnership) -> None:
        self._root_dir = root_dir
        self._owner = owner

    def path(self, spec: Spec, uid: str) -> str:
        return pod_volume(self._root_dir, uid, LOCAL, spec.name)

    def global_map(self, spec: Spec) -> str:
        return f"{block_root(self._root_dir, LOCAL)}/{spec.name}"

    async def requires_remount(self, spec: Spec) -> bool:
        return False

    async def wait_for_attach(self, spec: Spec) -> None:
        """Nothing to wait for: it is part of the node."""

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        source = _source(spec)
        kind = await in_thread(spec.unique_name, _kind, source.path)
        if kind == "directory":
            return
        if kind != "device":
            raise OperationError(
                f"local: mounting volume {source.path} failed, only directory and block device are supported"
            )
        target = self._global_mount(spec)
        await in_thread(spec.unique_name, make_dirs, target)
        if await in_thread(spec.unique_name, mount_at, target) is None:
            options = [*spec.options, *(["ro"] if spec.read_only else [])]
            await format_and_mount(source.path, target, source.fs_type or "", options)

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        target = self.path(spec, pod.metadata.uid)
        await in_thread(spec.unique_name, self._bind, spec, target)
        if not spec.read_only:
            await self._owner.give(spec.unique_name, target, pod, read_only=False)

    async def tear_down(self, mount: PodMount) -> None:
        await in_thread(mount.spec.unique_name, unmount_dir, self.path(mount.spec, mount.uid))

    async def unmount_device(self, spec: Spec) -> None:
        await in_thread(spec.unique_name, unmount_dir, self._global_mount(spec))

    async def set_up_device(self, spec: Spec, pod: v1.Pod) -> None:
        """The device is there, or it is not."""

    async def map_pod_device(self, spec: Spec, pod: v1.Pod) -> str:
        path = _source(spec).path
        if await in_thread(spec.unique_name, _kind, path) != "device":
            raise OperationError(f"{path} is no block device")
        return path

    async def unmap_pod_device(self, mount: PodMount) -> None:
        """Nothing was made besides what all devices have."""

    async def tear_down_device(self, spec: Spec) -> None:
        await in_thread(spec.unique_name, _drop, self.global_map(spec))

    def read_back(self, root_dir: str, table: frozenset[str]) -> Iterable[tuple[Spec, str]]:
        """Volumes that are mounted (see `reconstruct.OTHERS`)."""
        mounts = f"{plugin_dir(root_dir, LOCAL)}/mounts"
        for name in entries(mounts):
            yield _found(name), ""
        for uid in entries(all_pods(root_dir)):
            for name in entries(f"{all_pods(root_dir)}/{uid}/volumes/{escape(LOCAL)}"):
                yield _found(name), uid
        for name in entries(block_root(root_dir, LOCAL)):
            spec = _found(name, block=True)
            yield spec, ""
            for uid in entries(f"{block_root(root_dir, LOCAL)}/{name}"):
                yield spec, uid

    def _global_mount(self, spec: Spec) -> str:
        return f"{plugin_dir(self._root_dir, LOCAL)}/mounts/{spec.name}"

    def _bind(self, spec: Spec, target: str) -> None:
        shared = self._global_mount(spec)
        bind_for_pod(shared if mount_at(shared) is not None else _source(spec).path, target, spec.read_only)


def bind_for_pod(source: str, target: str, read_only: bool) -> None:
    """Shows a pod what is mounted for the node. Raises OSError."""
    make_dirs(target)
    if mount_at(target) is None:
        mount(source, target, flags=MS_BIND)
    if read_only:
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def unmount_whole(path: str) -> None:
    """Unmounts what is mounted at a directory, however often. Raises OSError."""
    while mount_at(path) is not None:
        unmount(path)


def unmount_dir(path: str) -> None:
    """Unmounts what is mounted at a directory, however often, and removes it. Raises OSError."""
    unmount_whole(path)
    _drop(path)


def _drop(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def _kind(path: str) -> str:
    mode = os.stat(path).st_mode
    return "directory" if stat.S_ISDIR(mode) else "device" if stat.S_ISBLK(mode) else "other"


def _source(spec: Spec) -> v1.LocalVolumeSource:
    assert isinstance(spec.source, v1.LocalVolumeSource)
    return spec.source


def _found(name: str, *, block: bool = False) -> Spec:
    return Spec(
        unique_name=unique_name(LOCAL, name),
        name=name,
        plugin=LOCAL,
        source=v1.LocalVolumeSource(),
        handle=name,
        block=block,
        device=True,
        persistent=True,
    )
