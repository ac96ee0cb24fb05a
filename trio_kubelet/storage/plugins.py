"""The plugins of volumes, each imported and made with its first volume: a node has those of one or two."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trio_kubelet.podinfo.doors import ObjectRecorderDoor
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.csi.registration import CSIDrivers
from trio_kubelet.storage.doors import (
    Attaching,
    BlockMapping,
    Expanding,
    Mounting,
    ReadsBack,
    StorageObjectsDoor,
)
from trio_kubelet.storage.names import all_pods, escape, plugin_dir
from trio_kubelet.storage.ownership import VolumeOwnership
from trio_kubelet.storage.reconstruct import OTHERS
from trio_kubelet.storage.specs import CSI, FC, FLEX, HOST_PATH, ISCSI, LOCAL, NFS, Spec
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.volumes.files import entries
from trio_kubelet.volumes.metrics import VolumeMetrics

if TYPE_CHECKING:
    from trio_kubelet.storage.disks.attached import AttachedDisks
    from trio_kubelet.storage.disks.local import LocalVolumes
    from trio_kubelet.storage.disks.plain import NFSVolumes
    from trio_kubelet.storage.flex.volumes import FlexVolumes

T = TypeVar("T")

_OWN: Final = "kubernetes.io~"
"""How directories of volumes begin that are no FlexVolumes."""


class OnDemand(Mapping[str, T]):
    """Plugins by name, each made when it is first looked up. Whether there is one can be asked without."""

    def __init__(self, makers: Mapping[str, Callable[[], T]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> T:
        return self._makers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class Plugins:
    """By what they do: `mounting`, `mapping` block devices, `attaching`, `expanding`. Without an API server
    there are no `objects` and no `context`, and without that no CSI volumes.
    """

    def __init__(
        self,
        *,
        root_dir: str,
        node_name: str,
        objects: StorageObjectsDoor | None,
        context: CSIContext | None,
        drivers: CSIDrivers,
        node: Callable[[], ReportedVolumes],
        events: ObjectRecorderDoor,
        volume_plugin_dir: str,
        metrics: VolumeMetrics,
    ) -> None:
        self._root_dir = root_dir
        self._node_name = node_name
        self._objects = objects
        self._node = node
        self._events = events
        self._volume_plugin_dir = volume_plugin_dir
        self._owner = VolumeOwnership(events, metrics.giving)
        local, self._flex = cache(self._make_local), cache(self._make_flex)
        iscsi, fc = cache(self._make_iscsi), cache(self._make_fc)
        mounting: dict[str, Callable[[], Mounting]] = {
            LOCAL: local,
            NFS: cache(self._make_nfs),
            HOST_PATH: cache(self._make_host_path),
            FLEX: self._flex,
            ISCSI: iscsi,
            FC: fc,
        }
        mapping: dict[str, Callable[[], BlockMapping]] = {LOCAL: local, ISCSI: iscsi, FC: fc}
        attaching: dict[str, Callable[[], Attaching]] = {FLEX: self._flex, ISCSI: iscsi, FC: fc}
        expanding: dict[str, Callable[[], Expanding]] = {LOCAL: local, FLEX: self._flex}
        if context is not None:
            csi: Mapping[str, Any] = {"root_dir": root_dir, "drivers": drivers, "context": context}
            mounting[CSI] = cache(partial(self._make_csi_mounts, csi))
            mapping[CSI] = cache(partial(_make_csi_blocks, csi))
            expanding[CSI] = cache(partial(_make_csi_expansion, csi))
        self.mounting, self.mapping = OnDemand(mounting), OnDemand(mapping)
        self.attaching, self.expanding = OnDemand(attaching), OnDemand(expanding)

    async def known_flex(self, spec: Spec, uid: str) -> Spec:
        """A FlexVolume as its driver has it. Raises VolumeError."""
        return await self._flex().known(spec, uid)

    def leftovers(self) -> list[OTHERS]:
        """Of the plugins besides CSI of which there may be something on the disk, what reads it back.
        Blocking; raises OSError.
        """
        found = self._on_disk()
        # Plugins of their own: those that are at work belong to the event loop.
        reading: dict[str, Callable[[], ReadsBack]] = {
            LOCAL: self._make_local,
            NFS: self._make_nfs,
            FLEX: self._make_flex,
            ISCSI: self._make_iscsi,
            FC: self._make_fc,
        }
        return [make().read_back for name, make in reading.items() if name in found]

    def _on_disk(self) -> set[str]:
        """Plugins that have a directory of their own, or one below a pod's."""
        found = {name for name in self.mounting if os.path.isdir(plugin_dir(self._root_dir, name))}
        pods = all_pods(self._root_dir)
        names = {name for uid in entries(pods) for name in entries(f"{pods}/{uid}/volumes")}
        found.update(name for name in self.mounting if escape(name) in names)
        if not all(name.startswith(_OWN) for name in names):
            found.add(FLEX)
        return found

    def _make_csi_mounts(self, csi: Mapping[str, Any]) -> Mounting:
        from trio_kubelet.storage.csi.mounts import CSIMounts

        return CSIMounts(**csi, owner=self._owner)

    def _make_local(self) -> LocalVolumes:
        from trio_kubelet.storage.disks.local import LocalVolumes

        return LocalVolumes(root_dir=self._root_dir, owner=self._owner, events=self._events)

    def _make_nfs(self) -> NFSVolumes:
        from trio_kubelet.storage.disks.plain import NFSVolumes

        return NFSVolumes(root_dir=self._root_dir)

    def _make_host_path(self) -> Mounting:
        from trio_kubelet.storage.disks.plain import HostPathVolumes

        return HostPathVolumes()

    def _make_flex(self) -> FlexVolumes:
        from trio_kubelet.storage.flex.drivers import FlexDrivers
        from trio_kubelet.storage.flex.volumes import FlexVolumes

        return FlexVolumes(
            root_dir=self._root_dir,
            node_name=self._node_name,
            drivers=FlexDrivers(self._volume_plugin_dir),
            objects=self._objects,
            owner=self._owner,
            node=self._node,
        )

    def _make_iscsi(self) -> AttachedDisks:
        from trio_kubelet.storage.disks.attached import AttachedDisks
        from trio_kubelet.storage.disks.format import run_tool
        from trio_kubelet.storage.disks.iscsi import ISCSIDisks
        from trio_kubelet.storage.disks.scsi import SCSI

        disks = ISCSIDisks(objects=self._objects, tool=run_tool, scsi=SCSI())
        return AttachedDisks(root_dir=self._root_dir, owner=self._owner, disks=disks)

    def _make_fc(self) -> AttachedDisks:
        from trio_kubelet.storage.disks.attached import AttachedDisks
        from trio_kubelet.storage.disks.fc import FCDisks
        from trio_kubelet.storage.disks.format import run_tool
        from trio_kubelet.storage.disks.scsi import SCSI

        disks = FCDisks(tool=run_tool, scsi=SCSI())
        return AttachedDisks(root_dir=self._root_dir, owner=self._owner, disks=disks)


def _make_csi_blocks(csi: Mapping[str, Any]) -> BlockMapping:
    from trio_kubelet.storage.csi.blocks import CSIBlocks

    return CSIBlocks(**csi)


def _make_csi_expansion(csi: Mapping[str, Any]) -> Expanding:
    from trio_kubelet.storage.csi.expansion import CSIExpansion

    return CSIExpansion(**csi)
