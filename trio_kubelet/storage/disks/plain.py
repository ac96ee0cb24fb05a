"""Volumes that are mounted for each pod on its own: NFS, and paths of the node behind a claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from trio_kubelet.api import v1
from trio_kubelet.common.log import get_logger
from trio_kubelet.storage.disks.format import joined, mount_with_tool
from trio_kubelet.storage.disks.local import unmount_dir
from trio_kubelet.storage.errors import OperationError
from trio_kubelet.storage.names import all_pods, escape, pod_volume, unique_pod_name
from trio_kubelet.storage.specs import NFS, Spec
from trio_kubelet.storage.threads import in_thread
from trio_kubelet.storage.world import PodMount
from trio_kubelet.volumes.errors import VolumeError
from trio_kubelet.volumes.files import entries, make_dirs
from trio_kubelet.volumes.linux import mount_at, unmount
from trio_kubelet.volumes.local import check_host_path
from trio_kubelet.volumes.plan import HostPath

log = get_logger(__name__)

UNMOUNT_SECONDS: Final = 60.0
"""Seconds that a server may keep a directory from being unmounted (kubelet: `unMountTimeout`)."""


class _ForEachPod:
    """The steps that such volumes do not have."""

    def device_path(self, spec: Spec) -> str:
        return ""

    def relabels(self, spec: Spec, uid: str) -> bool:
        return False  # the files are not the pod's own

    async def requires_remount(self, spec: Spec) -> bool:
        return False

    async def wait_for_attach(self, spec: Spec) -> None:
        """They are not attached."""

    async def mount_device(self, spec: Spec, pod: v1.Pod) -> None:
        """Nothing is mounted for the node."""

    async def unmount_device(self, spec: Spec) -> None:
        """Nothing was."""


class NFSVolumes(_ForEachPod):
    """Implements `doors.Mounting` with mount(8), whose helper for NFS has to be installed."""

    def __init__(self, *, root_dir: str) -> None:
        self._root_dir = root_dir

    def path(self, spec: Spec, uid: str) -> str:
        return pod_volume(self._root_dir, uid, NFS, spec.name)

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        source, target = spec.source, self.path(spec, pod.metadata.uid)
        assert isinstance(source, v1.NFSVolumeSource)
        await in_thread(spec.unique_name, make_dirs, target)
        if await in_thread(spec.unique_name, mount_at, target) is not None:
            return
        server = f"[{source.server}]" if ":" in source.server else source.server
        options = joined(spec.options, ["ro"] if spec.read_only else [])
        try:
            await mount_with_tool(f"{server}:{source.path}", target, "nfs", options)
        except OperationError as error:
            if error.finished and not keep:
                await in_thread(spec.unique_name, unmount_dir, target)
            raise

    async def tear_down(self, mount: PodMount) -> None:
        name, path = mount.spec.unique_name, self.path(mount.spec, mount.uid)
        with trio.move_on_after(UNMOUNT_SECONDS):
            await in_thread(name, unmount_dir, path)
            return
        log.warning("Its server is away: a volume is unmounted by force", path=path)
        await in_thread(f"{name} by force", _unmount_by_force, path)  # what hangs has the volume's own place
        await in_thread(name, unmount_dir, path)

    def read_back(self, root_dir: str, table: frozenset[str]) -> Iterable[tuple[Spec, str]]:
        """Volumes that are, or were about to be, mounted (see `reconstruct.OTHERS`)."""
        for uid in entries(all_pods(root_dir)):
            for name in entries(f"{all_pods(root_dir)}/{uid}/volumes/{escape(NFS)}"):
                source = v1.NFSVolumeSource()
                named = unique_pod_name(NFS, uid, name)
                yield Spec(unique_name=named, name=name, plugin=NFS, source=source), uid


class HostPathVolumes(_ForEachPod):
    """Implements `doors.Mounting` for paths of the node behind a claim: nothing is mounted."""

    def path(self, spec: Spec, uid: str) -> str:
        assert isinstance(spec.source, v1.HostPathVolumeSource)
        return spec.source.path

    async def set_up(self, spec: Spec, pod: v1.Pod, *, keep: bool) -> None:
        source = spec.source
        assert isinstance(source, v1.HostPathVolumeSource)
        try:
            await in_thread(
                spec.unique_name, check_host_path, HostPath(spec.name, source.path, source.type or "")
            )
        except VolumeError as error:
            raise OperationError(str(error)) from error

    async def tear_down(self, mount: PodMount) -> None:
        """What the path shows stays."""


def _unmount_by_force(path: str) -> None:
    if mount_at(path) is not None:
        unmount(path, force=True)
