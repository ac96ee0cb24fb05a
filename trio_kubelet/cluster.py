"""The agent as a node of a cluster: everything that exists only with an API server, joined.

    Cluster.start
    ├─ ClusterNode          Node object, lease, CSINode
    ├─ APIEventRecorder     writes events
    ├─ StatusWriter         writes statuses, takes finished pods off the server
    ├─ MirrorPods           pictures of the static pods
    ├─ PodObjects           config maps and secrets that pods refer to, tokens, trust bundles, certificates
    ├─ Services, FollowedRuntimeClasses, FollowedCSIDrivers
    └─ APISource            the pods that are bound to this node

Each is started again when it fails: whatever the API server does, pods keep running. All of it needs only
doors, so that a simulation can put its own API server behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.listeners import Listeners
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.devices.values import Counts
from trio_kubelet.kube.client import KubeClient, PatientDoor
from trio_kubelet.kube.doors import APIDoor, APILanes
from trio_kubelet.kube.fetched_objects import DEFAULT_TTL
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.kube.objects import PodObjects, object_reader
from trio_kubelet.kube.pull_secrets import NodeLogins, PullSecrets
from trio_kubelet.kube.recorder import APIEventRecorder
from trio_kubelet.kube.recovery import Recovery
from trio_kubelet.kube.runtime_classes import FollowedRuntimeClasses
from trio_kubelet.kube.services import Services
from trio_kubelet.kube.storage_objects import FollowedCSIDrivers, StorageObjects
from trio_kubelet.kube.tokens import TokenStore
from trio_kubelet.node.cluster_node import ClusterNode
from trio_kubelet.node.csi_info import CSINodeInfo
from trio_kubelet.node.doors import PressureDoor
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.podinfo.recorder import EventRecorder
from trio_kubelet.podinfo.updates import PodUpdate
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.mirrors import MirrorPods
from trio_kubelet.pods.status.writer import StatusWriter
from trio_kubelet.sources.apiserver import APISource
from trio_kubelet.sources.start import pod_rules
from trio_kubelet.storage.manager import PersistentVolumes
from trio_kubelet.storage.steps import ReportedVolumes

if TYPE_CHECKING:  # imported when a node has plugins
    from trio_kubelet.credential_providers.setup import InstalledProviders

TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
WRITE_TIMEOUT = 10.0
"""Seconds for a write of a status or mirror: so soon a silent server is noticed."""


class Cluster:
    """The API server's side of the agent."""

    def __init__(
        self,
        lanes: APILanes,
        *,
        pods: PodManager,
        config: KubeletConfiguration,
        gates: FeatureGates,
        root_dir: str,
        profile: NodeProfile,
        pressure: PressureDoor,
        runtime: RuntimeService,
        images: ImageService,
        health: RuntimeHealth,
        recorder: EventRecorder,
        clock: Clock,
        registry: CollectorRegistry,
        metrics: KubeMetrics,
        booted_ns: int = 0,  # 0: unknown
        providers: InstalledProviders | None = None,
        devices: Callable[[], Counts] = Counts,
        errors: Callable[[], Sequence[str]] = lambda: (),  # why the node is not ready, besides
    ) -> None:
        self._config, self._profile, self._gates = config, profile, gates
        self._recorder, self._clock, self._registry = recorder, clock, registry
        self._lanes = lanes
        self._recovery = Recovery()
        self._client = KubeClient(lanes.api, WRITE_TIMEOUT)
        self._objects_changed: Listeners[[frozenset[str]]] = Listeners()  # UIDs of pods that read them
        self._volumes: PersistentVolumes | None = None
        self.node = ClusterNode(
            door=self._recovery.through(lanes.heartbeat),
            profile=profile,
            config=config,
            root_dir=root_dir,
            runtime=runtime,
            images=images,
            health=health,
            pressure=pressure,
            events=recorder,
            clock=clock,
            registry=registry,
            booted_ns=booted_ns,
            errors=errors,
            volumes_in_use=self._volumes_in_use,
            devices=devices,
        )
        own = self.node.own
        self._events = APIEventRecorder(
            KubeClient(lanes.events), profile.name, clock, metrics, node_uid=lambda: own.uid
        )
        recorder.pod_events.listen(self._events.record_pod)
        recorder.node_events.listen(self._events.record_node)
        recorder.object_events.listen(self._events.record_object)
        self.mirrors = MirrorPods(self._client, profile.name, pods)
        self.csi_info = CSINodeInfo(self._client, own, profile.name)
        own.changed.listen(self.mirrors.node_changed)
        self.objects = self._pod_objects(lanes.api)
        self.csi_drivers = FollowedCSIDrivers(lanes.api)
        self.storage_objects = StorageObjects(
            KubeClient(PatientDoor(lanes.api), WRITE_TIMEOUT), self.csi_drivers, self.objects.tokens
        )
        self.services = Services(lanes.api)
        self.runtime_classes = FollowedRuntimeClasses(lanes.api)
        plugins = None
        if providers is not None:
            from trio_kubelet.kube.tokens import ClusterIdentity

            plugins = providers.keyrings(ClusterIdentity(self._client, self.objects.tokens))
        self.pull_secrets = PullSecrets(self.objects, recorder, NodeLogins(root_dir), plugins).of

    def start(
        self,
        nursery: trio.Nursery,
        agent: NodeAgent,
        volumes: PersistentVolumes,
        pods: trio.MemorySendChannel[PodUpdate],
    ) -> None:
        """Starts everything. The statuses of `agent` go to the API server, the node's pods into `pods`; the
        Node's status tells of `volumes`.
        """
        room, own = agent.room, self.node.own
        self._volumes = volumes
        volumes.in_use_changed.listen(self.node.reporter.wake)
        own.changed.listen(volumes.node_changed)
        self._objects_changed.listen(room.loop.objects_changed)
        statuses = StatusWriter(
            client=KubeClient(self._lanes.statuses, WRITE_TIMEOUT),
            statuses=room.statuses,
            pods=room.pods,
            may_run=room.workers.could_have_running_containers,
            clock=self._clock,
            registry=self._registry,
        )
        starts = agent.starts
        source = APISource(
            self._lanes.api,
            self._profile.name,
            pods,
            observed=starts.seen,
            vanished=starts.gone,
            rules=pod_rules(self._gates),
        )
        for hurry in (
            own.hurry,
            self.services.hurry,
            self.objects.hurry,
            source.hurry,
            statuses.hurry,
            self.mirrors.node_changed,
        ):
            self._recovery.back.listen(hurry)
        for what, task in (
            ("event recorder", self._events.run),
            ("cluster node", self.node.run),
            ("status writer", statuses.run),
            ("mirror pods", self.mirrors.run),
            ("objects of pods", self.objects.run),
            ("services", self.services.run),
            ("runtime classes", self.runtime_classes.run),
            ("CSI drivers", self.csi_drivers.run),
            ("API server source", partial(source.run, own.synced)),
        ):
            nursery.start_soon(keep_running, what, task)

    def node_volumes(self) -> ReportedVolumes:
        """What the Node's status says of volumes."""
        node, controller = self.node.own.node, self._config.enable_controller_attach_detach
        if node is None:
            return ReportedVolumes(controller=controller)
        attached = {each.name: each.device_path for each in node.status.volumes_attached or ()}
        in_use = frozenset(node.status.volumes_in_use or ())
        return ReportedVolumes(in_use, attached, node.metadata.labels or {}, controller=controller)

    def _volumes_in_use(self) -> Sequence[str] | None:
        return self._volumes.in_use() if self._volumes is not None else None

    def host_ips(self, otherwise: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The node's addresses by its Node object, the primary one first; `otherwise` while there is none."""
        return self.node.own.host_ips(otherwise)

    async def look_at_node(self) -> None:
        """Asks the API server anew for what `node_facts` says."""
        await self.node.own.look()

    def node_facts(self, base: NodeFacts) -> NodeFacts:
        """What admission goes by: `base` with what the API server says of the node."""
        return msgspec.structs.replace(
            self.node.own.facts(base), runtime_classes=self.runtime_classes.handlers()
        )

    def _pod_objects(self, door: APIDoor) -> PodObjects:
        """What pods read from the API server, as far as the feature gates allow."""
        changed = self._objects_changed.tell
        strategy = self._config.config_map_and_secret_change_detection_strategy
        certificates = bundles = None
        if self._gates.enabled("PodCertificateRequest"):
            from trio_kubelet.kube.pod_certificates import NodeIdentity, PodCertificates

            own = self.node.own
            node = NodeIdentity(self._profile.name, lambda: own.uid)
            certificates = PodCertificates(
                client=self._client, node=node, events=self._recorder, clock=self._clock, changed=changed
            )
            self._registry.register(certificates)
        if self._gates.enabled("ClusterTrustBundleProjection"):
            from trio_kubelet.kube.trust_bundles import TrustBundles

            bundles = TrustBundles(door, changed)
        return PodObjects(
            object_reader(door, strategy, changed, self._objects_lifetime),
            TokenStore(PatientDoor(door), self._clock, changed),
            bundles,
            certificates,
        )

    def _objects_lifetime(self) -> float:
        """Seconds for which answers about objects are good, as the Node says (strategy `Cache`)."""
        node = self.node.own.node
        text = (node.metadata.annotations or {}).get(TTL_ANNOTATION, "") if node is not None else ""
        return float(text) if text.isascii() and text.isdigit() else DEFAULT_TTL
