"""The composition root: opens the doors of a real node, makes everything in the order of what needs what, and
starts every long-lived task. Which there are, and what becomes of one that fails, is the nursery tree of
docs/architecture.md.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.admission import node_admitter, pressure_monitor
from trio_kubelet.base import Base, start_base
from trio_kubelet.cgroups.drivers import runtime_cgroup_driver
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.common.interpreter import keep_for_good, share_with_threads
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.service import ServiceManager
from trio_kubelet.common.start_bundle import leave_bundle
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import uses_list_streams, uses_runtime_events
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.caller import CallMetrics
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.grpc.loop import AsyncioLoop, open_asyncio_loop
from trio_kubelet.host import check_tls, prepare, with_driver
from trio_kubelet.net.names import Names
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.node.events import PODS_LIMITED, record_all, start_events, told_as_event
from trio_kubelet.node.lock_file import locked
from trio_kubelet.node.oom_watcher import OOMWatcher
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.node.userns import UserNamespaceRanges
from trio_kubelet.node_agent import AgentSettings, NodeAgent
from trio_kubelet.nodeshutdown.state import NodeShutdown
from trio_kubelet.plugged import Placement, Plugged, placement
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.updates import API_SOURCE
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.work import WorkerPeriods
from trio_kubelet.runtime.configs.builder import ConfigBuilder
from trio_kubelet.runtime.doors import GCPolicy
from trio_kubelet.runtime.image_access import AccessMetrics, ImageAccess
from trio_kubelet.runtime.pod_runtime import RuntimeSettings
from trio_kubelet.runtime.pull_records import Policy
from trio_kubelet.server.health_port import health_port
from trio_kubelet.server.http.metrics import HTTPMetrics
from trio_kubelet.sources.podconfig import PodConfig
from trio_kubelet.sources.start import start_sources
from trio_kubelet.storage.calls import GrpcCalls
from trio_kubelet.storage.room import StorageRoom
from trio_kubelet.tracing import Traces, open_traces
from trio_kubelet.volumes.manager import VolumeManager
from trio_kubelet.volumes.metrics import VolumeMetrics

if TYPE_CHECKING:  # imported where a node has an API server, or has none
    from trio_kubelet.alone import Alone
    from trio_kubelet.cluster import Cluster
    from trio_kubelet.membership import Membership

log = get_logger(__name__)

SETTLED: Final = 1.0
"""Seconds after its start from which on what the agent has made is taken to stay."""


async def run(flags: KubeletFlags, config: KubeletConfiguration, service: ServiceManager) -> None:
    """Runs the node agent until it is cancelled; pods are left running.

    With `runOnce` it starts the pods of one update and returns. With a lock file it waits for its turn, and
    may end for the next. Raises ConfigurationError or OSError when it cannot start, RunOnceError for pods
    that did not start.
    """
    check_tls(config)
    async with locked(flags.lock_file, exit_on_contention=flags.exit_on_lock_contention):
        await run_agent(flags, config, service)


async def run_agent(flags: KubeletFlags, config: KubeletConfiguration, service: ServiceManager) -> None:
    """The agent itself, the only one of its lock file."""
    share_with_threads()
    trio.socket.set_custom_hostname_resolver(Names())
    registry, clock = CollectorRegistry(auto_describe=False), SystemClock()
    with told_as_event(flags.hostname_override):
        found = await prepare(flags, config)
    async with (
        open_traces(config.tracing, found.node.node_name, clock) as traces,
        open_cri(
            config.container_runtime_endpoint,
            config.image_service_endpoint,
            request_timeout=config.runtime_request_timeout,
            on_call=CallMetrics(registry),
            use_streaming=uses_list_streams(config.feature_gates),
            direct=True,
            begin_span=traces.runtime_call,
        ) as services,
        open_asyncio_loop() as loop,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        driver = await runtime_cgroup_driver(services.runtime, config.cgroup_driver, registry)
        machine = with_driver(found, driver)
        with told_as_event(flags.hostname_override):
            base = await start_base(flags, config, services, machine, registry, clock, nursery)
        if config.pod_cidr:
            from trio_kubelet.node.pod_cidr import tell_pod_cidr

            await tell_pod_cidr(services.runtime, config.pod_cidr)
        membership: Membership | None = None
        if flags.kubeconfig and not config.run_once:
            from trio_kubelet.membership import open_membership

            membership = await stack.enter_async_context(open_membership(base, traces.api_request))
        node = RealNode(
            base,
            membership=membership,
            placement=await placement(base),
            calls=stack.enter_context(GrpcCalls(loop)),
            loop=loop,
            traces=traces,
        )
        await node.start_stores(nursery)
        if config.run_once:
            await node.run_once(nursery)
            nursery.cancel_scope.cancel()
            return
        async with trio.open_nursery() as beside:
            if membership is not None:
                beside.start_soon(membership.read_kubeconfig)
            await node.start(nursery)
        http_metrics = HTTPMetrics(registry)
        await health_port(nursery, config, http_metrics)
        await node.join(nursery)
        # In a thread, for the first pods start meanwhile.
        await NODE_FILES.run(import_module, "trio_kubelet.afterwards")
        from trio_kubelet.afterwards import start_afterwards

        await start_afterwards(nursery, node, http_metrics, service)
        await trio.sleep(SETTLED)
        leave_bundle()
        keep_for_good()


class RealNode:
    """What a real node is made of, made in the order of what needs what. Raises ConfigurationError."""

    def __init__(
        self,
        base: Base,
        *,
        membership: Membership | None,  # None: no API server
        placement: Placement,
        calls: GrpcCalls,
        loop: AsyncioLoop,
        traces: Traces,
    ) -> None:
        self.base, self.membership, self.loop, self.traces = base, membership, loop, traces
        self.health = RuntimeHealth(base.services.runtime)
        self.pressure = pressure_monitor(base)
        self.shutdown = NodeShutdown()
        self.sources = PodConfig(recorder=base.recorder, clock=base.clock)
        self.plugged = Plugged(
            base=base,
            placement=placement,
            loop=loop,
            sources=self.sources,
            objects=membership.claims if membership else None,
        )
        self.pods = PodManager()
        self.cluster: Cluster | None = None
        self._side: Cluster | Alone
        if membership is not None:
            self._side = self.cluster = membership.cluster(
                pods=self.pods,
                health=self.health,
                pressure=self.pressure,
                devices=self.plugged.devices.counts,
                errors=self.shutdown.errors,
            )
        else:
            from trio_kubelet.alone import Alone

            self._side = Alone(base)
        self.storage = self._storage(calls)
        self._ooms = OOMWatcher(base.recorder)
        self.agent = self._agent()
        self.plugged.attach(self.agent)

    async def start_stores(self, nursery: trio.Nursery) -> None:
        """Starts what has to be there before the first pod is looked at."""
        await nursery.start(self._ooms.run)  # it knows why containers ended
        await nursery.start(self.base.allocations.run)
        await nursery.start(self.storage.run)

    async def run_once(self, nursery: trio.Nursery) -> None:
        """Starts the pods of the sources' first update (`runOnce`). Raises RunOnceError."""
        self._start_sources(nursery)
        keep_for_good()
        await self.agent.run_once(self.sources.updates())

    async def start(self, nursery: trio.Nursery) -> None:
        """Starts the node-local agent and what it gets its pods from, but for the API server (`join`)."""
        base, cluster = self.base, self.cluster
        machine = base.machine
        events = start_events(
            base.config,
            base.told,
            cgroup_v2=machine.node.cgroup_v2,
            swaps_tmpfs=machine.swaps_tmpfs,
            unlimited=base.cgroups.unlimited,
        )
        record_all(base.recorder, events)
        base.cgroups.limited.listen(partial(record_all, base.recorder, [PODS_LIMITED]))
        if cluster is not None:
            for news in (self.plugged.counts_changed, self.shutdown.changed):
                news.listen(cluster.node.reporter.wake)
        else:
            log.info("No API server defined - no node status update will be sent")
        await self.plugged.start(nursery)
        # Before the sync loop runs: to it a source that is not registered is one that is not configured.
        if cluster is not None:
            self.sources.channel(API_SOURCE)
        self._start_sources(nursery)
        await nursery.start(self.agent.run, self.sources.updates())

    async def join(self, nursery: trio.Nursery) -> None:
        """Has the node join its cluster, if it is to be in one. Raises ConfigurationError, OSError."""
        membership, cluster = self.membership, self.cluster
        if membership is None or cluster is None:
            return
        await membership.join()
        nursery.start_soon(keep_running, "client certificate", membership.keep_certificate)
        cluster.start(nursery, self.agent, self.storage.volumes, self.sources.channel(API_SOURCE))

    def _start_sources(self, nursery: trio.Nursery) -> None:
        base = self.base
        start_sources(nursery, self.sources, base.machine.node.node_name, base.flags, base.config)

    def _storage(self, calls: GrpcCalls) -> StorageRoom:
        """The volumes that are not the agent's own."""
        base, side = self.base, self._side
        return StorageRoom(
            root_dir=base.flags.root_dir,
            node_name=base.machine.node.node_name,
            objects=side.storage_objects,
            calls=calls,
            node=side.node_volumes,
            writer=side.csi_info,
            events=base.recorder,
            clock=base.clock,
            registry=base.registry,
            metrics=VolumeMetrics(base.registry),
            volume_plugin_dir=base.config.volume_plugin_dir,
            health=base.gates.enabled("CSIVolumeHealth"),
            sync_frequency=base.config.sync_frequency,
        )

    def _agent(self) -> NodeAgent:
        """The node-local agent over the doors of this node."""
        base, side, plugged, services = self.base, self._side, self.plugged, self.base.services
        node, health, root_dir = base.machine.node, self.health, base.flags.root_dir

        def current() -> NodeContext:
            return msgspec.structs.replace(
                node,
                handlers=health.handlers,
                host_ips=side.host_ips(node.host_ips),
                allocatable=base.profile.allocatable,
                pinned=base.pinned.containers,
            )

        return NodeAgent(
            pods=self.pods,
            runtime=services.runtime,
            images=services.images,
            health=health,
            configs=ConfigBuilder(
                current,
                base.config.resolv_conf,
                UserNamespaceRanges(root_dir, lambda: health.handlers, base.user_ids),
                events=base.recorder,
                objects=side.objects,
                services=side.services,
                runtime_classes=side.runtime_classes,
                persistent=self.storage.volumes,
                givers=plugged,
            ),
            volumes=VolumeManager(
                current,
                objects=side.objects,
                clock=base.clock,
                events=base.recorder,
                metrics=self.storage.metrics,
                persistent=self.storage.volumes,
            ),
            cgroups=base.cgroups,
            pod_limits=base.cgroups,
            directories=PodDirectories(root_dir),
            sources=self.sources,
            admitter=node_admitter(base, health, self.pressure, self.shutdown, side, plugged),
            recorder=base.recorder,
            clock=base.clock,
            registry=base.registry,
            cluster=side,
            image_access=image_access(base),
            oom_killed=self._ooms.ended,
            plugged=plugged,
            allocating=plugged.allocating,
            traces=self.traces,
            settings=agent_settings(base),
        )


def image_access(base: Base) -> ImageAccess | None:
    """Who says which pods may use images that are there; None: the gate is off."""
    if not base.gates.enabled("KubeletEnsureSecretPulledImages"):
        return None
    config = base.config
    policy = Policy(
        config.image_pull_credentials_verification_policy, config.preloaded_images_verification_allowlist
    )
    metrics = AccessMetrics(base.registry)
    return ImageAccess(base.flags.root_dir, base.services.images, base.clock, policy, metrics)


def agent_settings(base: Base) -> AgentSettings:
    """What of flags and configuration concerns the node-local agent. Raises ConfigurationError."""
    flags, config = base.flags, base.config
    try:
        runtime = RuntimeSettings.from_config(config)
    except ValueError as exc:
        raise ConfigurationError(str(exc)) from exc
    return AgentSettings(
        runtime=msgspec.structs.replace(
            runtime, container_logs_dir=flags.container_logs_dir, cpus=base.machine.facts.cpus
        ),
        gc=GCPolicy(
            min_age=flags.minimum_container_ttl_duration,
            max_per_pod_container=flags.maximum_dead_containers_per_container,
            max_containers=flags.maximum_dead_containers,
        ),
        ipv6_first=base.profile.node_ips.ipv6_first,
        stop_signals=base.machine.node.features.container_stop_signals,
        forgets_readiness=base.gates.enabled("ChangeContainerStatusOnKubeletRestart"),
        ready_to_start=base.gates.enabled("PodReadyToStartContainersCondition"),
        pod_resources=base.gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
        workers=WorkerPeriods(resync=config.sync_frequency),
        use_events=uses_runtime_events(config.feature_gates),
    )
