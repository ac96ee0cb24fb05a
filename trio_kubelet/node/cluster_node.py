"""The node as a member of a cluster: its Node object, its lease, what it sees of itself. Everything of the
room joined, for the composition root to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.devices.values import Counts
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIDoor
from trio_kubelet.node.csi_node import CSINodeKeeper
from trio_kubelet.node.doors import PressureDoor
from trio_kubelet.node.lease import LeaseSettings, NodeLease
from trio_kubelet.node.look import NodeLook
from trio_kubelet.node.metrics import NodeMetrics
from trio_kubelet.node.own_node import OwnNode
from trio_kubelet.node.pod_cidr import tell_pod_cidr
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.reporter import NodeReporter, heartbeat_timeout, report_times
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.podinfo.doors import NodeRecorderDoor

log = get_logger(__name__)

_FIRST_LOOK = 2.0
_DEVICE_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"


class ClusterNode:
    """The room's objects; `own` is the view of the Node, `reporter.registered` is set once there is one.

    `booted_ns` is when the machine was started, 0 if unknown.
    """

    def __init__(
        self,
        *,
        door: APIDoor,
        profile: NodeProfile,
        config: KubeletConfiguration,
        root_dir: str,
        runtime: RuntimeService,
        images: ImageService,
        health: RuntimeHealth,
        pressure: PressureDoor,
        events: NodeRecorderDoor,
        clock: Clock,
        registry: CollectorRegistry,
        booted_ns: int = 0,
        errors: Callable[[], Sequence[str]] = lambda: (),
        volumes_in_use: Callable[[], Sequence[str] | None] = lambda: (),
        devices: Callable[[], Counts] = Counts,
        look: Callable[..., NodeLook] = NodeLook,
    ) -> None:
        if ignored := profile.node_ips.ignored:
            log.warning("Could not parse some node IP(s), ignoring them", IPs=ignored)
        # The signs of life have a client of their own, whose calls do not outlast their periods.
        client = KubeClient(door, heartbeat_timeout(config))
        self._client = client
        self._pressure = pressure
        self.own = OwnNode(door, profile)
        self._csi = CSINodeKeeper(client, self.own, profile.name)
        self._look = look(
            profile,
            health,
            images,
            clock,
            pressures=lambda: pressure.conditions,
            errors=lambda: (*self._csi.errors(), *errors()),
            volumes_in_use=volumes_in_use,
            devices=devices,
        )
        self.reporter = NodeReporter(
            client=client,
            own=self.own,
            profile=profile,
            look=self._look,
            is_well=self._look.is_well,
            events=events,
            metrics=NodeMetrics(registry, clock, booted_ns),
            pod_cidr=partial(tell_pod_cidr, runtime),
            times=report_times(config),
            reset_extended=not os.path.exists(os.path.join(root_dir, _DEVICE_CHECKPOINT)),
        )
        settings = LeaseSettings(profile.name, config.node_lease_duration_seconds)
        self.lease = NodeLease(client, settings, self._owner_uid, clock)
        self.own.changed.listen(self.reporter.wake)
        self.own.changed.listen(self.lease.owner_changed)
        pressure.changed.listen(self.reporter.wake)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            # A node that was under pressure when its agent was started anew still is.
            with trio.move_on_after(_FIRST_LOOK):
                await self._pressure.look()
            for name, task in (
                ("own node", self.own.run),
                ("images and addresses of the node", self._look.run),
                ("node status", self.reporter.run),
                ("node lease", self.lease.run),
                ("CSINode", self._csi.run),
            ):
                nursery.start_soon(keep_running, name, task)
            task_status.started()

    async def _owner_uid(self) -> str:
        if self.own.uid:
            return self.own.uid
        return (await self._client.get(self.own.path, v1.Node)).metadata.uid
