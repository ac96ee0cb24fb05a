"""Puts the storage room together: one place where drivers, plugins, operations and the manager are joined."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.podinfo.doors import ObjectRecorderDoor
from trio_kubelet.storage.csi.context import CSIContext
from trio_kubelet.storage.csi.limits import AttachLimits
from trio_kubelet.storage.csi.registration import CSIDrivers, CSIPlugins
from trio_kubelet.storage.doors import (
    DriverCalls,
    NodeInfoWriter,
    StorageObjectsDoor,
)
from trio_kubelet.storage.expansion import Expansions
from trio_kubelet.storage.manager import PersistentVolumes
from trio_kubelet.storage.metrics import CSIMetrics, ReadBackMetrics
from trio_kubelet.storage.operations import Operations
from trio_kubelet.storage.plugins import Plugins
from trio_kubelet.storage.reconstruct import read_back, take_away
from trio_kubelet.storage.resolver import Resolver
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
        sync_frequency: float = math.inf,
    ) -> None:
        """`objects` and `writer` are None on a node without an API server, which has no claims. `health`:
        drivers are asked how their volumes are. `volume_plugin_dir` has FlexVolume drivers. Pods are synced
        each `sync_frequency` seconds at least.
        """
        desired, actual = Desired(), Actual()
        self.drivers = CSIDrivers()
        self.metrics = metrics
        self.csi_plugins = CSIPlugins(
            drivers=self.drivers, calls=calls, writer=writer, called=CSIMetrics(registry).called
        )
        self._limits: AttachLimits | None = None
        context = CSIContext(node_name, objects) if objects is not None else None
        if context is not None and writer is not None:
            self._limits = AttachLimits(context=context, drivers=self.drivers, writer=writer)
        plugins = Plugins(
            root_dir=root_dir,
            node_name=node_name,
            objects=objects,
            context=context,
            drivers=self.drivers,
            node=node,
            events=events,
            volume_plugin_dir=volume_plugin_dir,
            metrics=metrics,
        )
        read_back_metrics = ReadBackMetrics(registry)
        expansions = Expansions(objects=objects, plugins=plugins.expanding, events=events, clock=clock)
        self.usage = VolumeUsage(
            desired=desired,
            actual=actual,
            mounting=plugins.mounting,
            mapping=plugins.mapping,
            drivers=self.drivers,
            clock=clock,
            events=events,
            health=health,
        )
        self.volumes = PersistentVolumes(
            root_dir=root_dir,
            resolver=Resolver(objects, plugins.known_flex),
            mounting=plugins.mounting,
            operations=Operations(
                root_dir=root_dir,
                desired=desired,
                actual=actual,
                mounting=plugins.mounting,
                mapping=plugins.mapping,
                attaching=plugins.attaching,
                expansions=expansions,
                events=events,
                node=node,
            ),
            desired=desired,
            actual=actual,
            node=node,
            read_back=lambda: read_back(root_dir, read_back_metrics, plugins.leftovers()),
            take_away=lambda target: take_away(target, read_back_metrics),
            events=events,
            metrics=metrics,
            limits=self._limits,
            sync_frequency=sync_frequency,
        )
        self.drivers.changed.listen(self.volumes.driver_changed)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.volumes.run)
            if self._limits is not None:
                nursery.start_soon(keep_running, "attach limits", self._limits.run)
            task_status.started()
