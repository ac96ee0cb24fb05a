"""Local persistent volumes: a directory of the node, or a disk that is formatted when it is empty."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import Final, NamedTuple

from trio_kubelet.api import v1
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.mountinfo import mounted_elsewhere
from trio_kubelet.podinfo.doors import PodRecorderDoor
from trio_kubelet.storage.disks.format import DEFAULT_FS, format_and_mount, joined, resize_filesystem
from trio_kubelet.storage.errors import NotBegun, OperationError
from trio_kubelet.storage.names import all_pods, block_root, escape, plugin_dir, pod_volume, unique_name
from trio_kubelet.storage.ownership import VolumeOwnership
from trio_kubelet.storage.specs import LOCAL, Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.files import entries, make_dirs
from trio_kubelet.volumes.linux import MOUNT_FLAGS, MS_BIND, MS_RDONLY, MS_REMOUNT, mount, mount_at, unmount
from trio_kubelet.volumes.local import fs_group_of

_NEITHER: Final = "only directory and block device are supported"


class _There(NamedTuple):
    """Whose a volume's files are, whether another pod has it, and whether this one had it already."""

    group: int
    shared: bool
    again: bool


class LocalVolumes:
    """Implements `doors.Mounting`, `doors.BlockMapping` and `doors.Expanding`."""

    def __init__(self, *, root_dir: str, owner: VolumeOwnership, events: PodRecorderDoor) -> None:
        self._root_dir = root_dir
        self._owner = owner
        self._events = events

    def path(self, spec: Spec, uid: str) -> str:
        return pod_volume(self._root_dir, uid, LOCAL, spec.name)

    def device_path(self, spec: Spec) -> str:
        return self._global_mount(spec)

    def global_map(self, spec: Spec) -> str:
        return f"{block_root(self._root_dir, LOCAL)}/{spec.name}"

    def relabels(self, spec: Spec, uid: str) -> bool:
        return True

    async def requires_remount(self, spec: Spec) -> bool:
        return False

    async def wait_for_attach(self, spec: Spec) -> None:
        """Nothing to wait for: it is part of the node."""

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        source = _source(spec)
        if await in_thread(spec.unique_name, _usable_kind, source.path) == "directory":
            return
        target = self._global_mount(spec)
        await in_thread(spec.unique_name, make_dirs, target)
        if await in_thread(spec.unique_name, mount_at, target) is None:
            options = joined(spec.options, ["ro"] if spec.read_only else [])
            wanted = DEFAULT_FS if source.fs_type is None else source.fs_type
            try:
                await format_and_mount(source.path, target, wanted, options)
            except OperationError as error:
                if error.finished:
                    with contextlib.suppress(OperationError):  # a directory that stays harms nobody
                        await in_thread(spec.unique_name, _drop, target)
                where = f"device {source.path} at {target} (fstype: {wanted})"
                text = f"local: failed to mount {where}, error {error}"
                raise type(error)(text, error.ending) from error

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        target, group = self.path(spec, pod.metadata.uid), fs_group_of(pod)
        there = await in_thread(spec.unique_name, self._bind, spec, target)
        if there.shared and not there.again and group is not None and group != there.group:
            message = (
                f"The requested fsGroup is {group}, but the volume {spec.name} has GID {there.group}. The "
                "volume may not be shareable."
            )
            self._events.record(pod, "Warning", "AlreadyMountedVolume", message)
        if not spec.read_only and not there.shared:  # the first pod says whose it is
            await self._owner.give(spec, target, pod, read_only=False, again=there.again)

    async def tear_down(self, mount: PodMount) -> None:
        await in_thread(mount.spec.unique_name, unmount_dir, self.path(mount.spec, mount.uid))

    async def unmount_device(self, spec: Spec) -> None:
        await in_thread(spec.unique_name, unmount_dir, self._global_mount(spec))

    async def expand(self, spec: Spec, uid: str, size: int) -> None:
        """A disk's filesystem takes all of it; a directory is as large as what it lies on."""
        if spec.block:
            return
        path = _source(spec).path
        kind = await in_thread(spec.unique_name, _kind, path)
        if kind == "device":
            await resize_filesystem(path, self.path(spec, uid))
        elif kind != "directory":
            raise OperationError(_NEITHER)

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

    def _bind(self, spec: Spec, target: str) -> _There:
        """Shows the volume to a pod."""
        source = self._global_mount(spec)
        if mount_at(source) is None:
            source = _source(spec).path
            _usable_kind(source)
        pods = f"{os.path.realpath(all_pods(self._root_dir))}/"
        real = os.path.realpath(target)
        others = [path for path in mounted_elsewhere(os.path.realpath(source)) if path != real]
        group, shared = os.stat(source).st_gid, any(path.startswith(pods) for path in others)
        return _There(group, shared, bind_for_pod(source, target, spec))


def bind_for_pod(source: str, target: str, spec: Spec) -> bool:
    """Shows a pod what is mounted for the node, with those of the volume's options that are about one mount;
    whether it was there already. Raises OSError.
    """
    make_dirs(target)
    again = mount_at(target) is not None
    if not again:
        mount(source, target, flags=MS_BIND)
    flags = MS_RDONLY if spec.read_only else 0
    for option in spec.options:
        flags |= MOUNT_FLAGS.get(option, 0)
    if flags:
        try:
            mount("", target, flags=MS_BIND | MS_REMOUNT | flags)
        except OSError:
            if not again:
                unmount(target)
            raise
    return again


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
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise OSError(f'path "{path}" does not exist') from None
    return "directory" if stat.S_ISDIR(mode) else "device" if stat.S_ISBLK(mode) else "other"


def _usable_kind(path: str) -> str:
    """ "directory" or "device". Raises NotBegun for what can be no volume."""
    try:
        kind = _kind(path)
    except OSError as error:
        raise NotBegun(error_words(error, "stat")) from error
    if kind == "other":
        raise NotBegun(_NEITHER)
    return kind


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
