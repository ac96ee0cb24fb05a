"""Puts the storage room together: one place where drivers, plugins, operations and the manager are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.podinfo.doors import ObjectRecorderDoor
from trio_kubelet.storage.csi.blocks import CSIBlocks
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.csi.driver import CSIDrivers
from trio_kubelet.storage.csi.expansion import CSIExpansion
from trio_kubelet.storage.csi.limits import AttachLimits
from trio_kubelet.storage.csi.mounts import CSIMounts
from trio_kubelet.storage.csi.registration import CSIPlugins
from trio_kubelet.storage.disks.attached import AttachedDisks
from trio_kubelet.storage.disks.fc import FCDisks
from trio_kubelet.storage.disks.format import run_tool
from trio_kubelet.storage.disks.iscsi import ISCSIDisks
from trio_kubelet.storage.disks.local import LocalVolumes
from trio_kubelet.storage.disks.plain import HostPathVolumes, NFSVolumes
from trio_kubelet.storage.disks.scsi import SCSI
from trio_kubelet.storage.doors import (
    Attaching,
    BlockMapping,
    Disks,
    DriverCalls,
    Expanding,
    Mounting,
    NodeInfoWriter,
    StorageObjectsDoor,
)
from trio_kubelet.storage.expansion import Expansions
from trio_kubelet.storage.flex.drivers import FlexDrivers
from trio_kubelet.storage.flex.volumes import FlexVolumes
from trio_kubelet.storage.manager import PersistentVolumes
from trio_kubelet.storage.metrics import CSIMetrics, ReadBackMetrics
from trio_kubelet.storage.operations import Operations
from trio_kubelet.storage.owner import VolumeOwnership
from trio_kubelet.storage.reconstruct import read_back
from trio_kubelet.storage.resolver import Resolver
from trio_kubelet.storage.specs import CSI, FLEX, HOST_PATH, LOCAL, NFS
from trio_kubelet.storage.steps import ReportedVolumes
from trio_kubelet.storage.usage import VolumeUsage
from trio_kubelet.storage.world import Actual, Desired
from trio_kubelet.volumes.metrics import VolumeMetrics


class StorageRoom:
    """The room's objects: `volumes` for pods, their `usage`, registered `drivers`, `csi_plugins`."""

    def __init__(
        self,
        *,
        root_dir: str,
        node_name: str,
        objects: StorageObjectsDoor | None,
        calls: DriverCalls,
        node: Callable[[], ReportedVolumes],
        writer: NodeInfoWriter | None,
        events: ObjectRecorderDoor,
        clock: Clock,
        registry: CollectorRegistry,
        metrics: VolumeMetrics,
        volume_plugin_dir: str,
        health: bool = False,
    ) -> None:
        """`objects` and `writer` are None on a node without an API server, which has no claims. `health`:
        drivers are asked how their volumes are. `volume_plugin_dir` has FlexVolume drivers.
        """
        desired, actual = Desired(), Actual()
        owner = VolumeOwnership(events)
        self.drivers = CSIDrivers()
        self.metrics = metrics
        self.csi_plugins = CSIPlugins(
            drivers=self.drivers, calls=calls, writer=writer, called=CSIMetrics(registry).called
        )
        self._limits: AttachLimits | None = None
        mounting: dict[str, Mounting] = {}
        mapping: dict[str, BlockMapping] = {}
        attaching: dict[str, Attaching] = {}
        expanding: dict[str, Expanding] = {}
        if objects is not None:
            context = CSIContext(node_name, objects)
            csi: Mapping[str, Any] = {"root_dir": root_dir, "drivers": self.drivers, "context": context}
            mounting[CSI] = CSIMounts(**csi, owner=owner)
            mapping[CSI] = CSIBlocks(**csi)
            expanding[CSI] = CSIExpansion(**csi)
            if writer is not None:
                self._limits = AttachLimits(context=context, drivers=self.drivers, writer=writer)
        local, nfs = (
            LocalVolumes(root_dir=root_dir, owner=owner, events=events),
            NFSVolumes(root_dir=root_dir),
        )
        flex = FlexVolumes(
            root_dir=root_dir,
            node_name=node_name,
            drivers=FlexDrivers(volume_plugin_dir),
            objects=objects,
            owner=owner,
            node=node,
        )
        mounting |= {LOCAL: local, NFS: nfs, HOST_PATH: HostPathVolumes(), FLEX: flex}
        mapping[LOCAL], attaching[FLEX] = local, flex
        expanding |= {LOCAL: local, FLEX: flex}
        read_back_metrics, scsi = ReadBackMetrics(registry), SCSI()
        others = [local.read_back, nfs.read_back, flex.read_back]
        kinds: tuple[Disks, ...] = (
            ISCSIDisks(objects=objects, tool=run_tool, scsi=scsi),
            FCDisks(tool=run_tool, scsi=scsi),
        )
        for disks in kinds:
            attached = AttachedDisks(root_dir=root_dir, owner=owner, disks=disks)
            mounting[disks.plugin] = mapping[disks.plugin] = attaching[disks.plugin] = attached
            others.append(attached.read_back)
        expansions = Expansions(objects=objects, plugins=expanding, events=events, clock=clock)
        self.usage = VolumeUsage(
            desired=desired,
            actual=actual,
            mounting=mounting,
            mapping=mapping,
            drivers=self.drivers,
            clock=clock,
            events=events,
            health=health,
        )
        self.volumes = PersistentVolumes(
            root_dir=root_dir,
            resolver=Resolver(objects, flex.known),
            mounting=mounting,
            operations=Operations(
                root_dir=root_dir,
                desired=desired,
                actual=actual,
                mounting=mounting,
                mapping=mapping,
                attaching=attaching,
                expansions=expansions,
                events=events,
                node=node,
            ),
            desired=desired,
            actual=actual,
            node=node,
            read_back=lambda: read_back(root_dir, read_back_metrics, others),
            events=events,
            metrics=metrics,
            limits=self._limits,
        )
        self.drivers.changed.listen(self.volumes.driver_changed)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.volumes.run)
            if self._limits is not None:
                nursery.start_soon(keep_running, "attach limits", self._limits.run)
            task_status.started()
