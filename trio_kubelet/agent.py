"""The composition root: opens the doors of a real node and starts every long-lived task.

The nursery tree, from the outside in (what a task's failure means stands behind it):

    run                       asyncio loops of grpclib, traces            ends the agent
    ├─ SystemdDriver          with its D-Bus, for the systemd cgroups     ends the agent
    ├─ NodeAgent.run          the node-local agent                        ends the agent
    │  ├─ RuntimeHealth       asks the runtime for its state
    │  ├─ GenericPLEG         relist, looks at pods, delivery of events
    │  ├─ ProbeManager        one scheduler, a short task per probe
    │  ├─ log rotation                                                    started again
    │  └─ PodsRoom            pod workers, cleaner, sync loop
    ├─ EventedPLEG            the runtime's event stream                  reopened for ever
    ├─ DeviceManager          writes down who has which devices           ends the agent
    ├─ CPUManager             keeps containers on their CPUs (static)     ends the agent
    ├─ DraManager, Drivers    claims and their drivers                    ends the agent
    ├─ DevicePlugins          where device plugins register               started again
    ├─ PluginManager          sockets in plugins_registry                 started again
    ├─ StorageRoom            volumes of claims and drivers               ends the agent
    ├─ AllocationStore        writes down what pods were granted          ends the agent
    ├─ PodConfig              merges what the sources want                ends the agent
    ├─ file, URL              sources on the node                         started again
    ├─ volume meter           sizes of volumes                            started again
    ├─ UtilChains             chains of iptables                          started again
    ├─ ResolvConfCheck        tells of limits of resolv.conf              started again
    ├─ EvictionManager        observes the node, evicts pods              started again
    ├─ ImageGarbage           removes images that nothing uses            started again
    ├─ OOMWatcher             tells of the kernel's OOM killer            ends without harm
    ├─ NodeShutdown           ends pods before the machine goes down      started again
    ├─ Cluster.start          with an API server: Node, statuses, mirrors,
    │                         objects, events, the pods bound here        each started again
    ├─ certificates           of client and server, with an API server    started again
    ├─ ServiceManager         systemd's watchdog and status line          started again
    └─ servers                node server, read-only port, healthz,
                              pod resources, local socket                 started again
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec
import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.admission import node_admitter, node_shutdown, pressure_monitor
from trio_kubelet.alone import Alone
from trio_kubelet.base import Base, start_base
from trio_kubelet.cgroups.choice import runtime_cgroup_driver
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.common.interpreter import keep_for_good, share_with_threads
from trio_kubelet.common.lanes import NODE_FILES
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.service import ServiceManager
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import uses_runtime_events
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.caller import CallMetrics
from trio_kubelet.cri.connect import CRIServices, open_cri
from trio_kubelet.cri.doors import ImageService
from trio_kubelet.dra.api import ClusterClaims
from trio_kubelet.eviction.monitor import PressureMonitor
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.host import container_logs_dir, prepare, with_driver
from trio_kubelet.net.dial import Names
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.node.events import record_all, start_events, told_as_event
from trio_kubelet.node.lock_file import locked
from trio_kubelet.node.oom_watcher import OOMWatcher
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.node.userns import UserNamespaceRanges
from trio_kubelet.node_agent import AgentSettings, NodeAgent
from trio_kubelet.nodeshutdown.manager import NodeShutdown
from trio_kubelet.plugged import Plugged, placement
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.podinfo.updates import API_SOURCE
from trio_kubelet.pods.manager import PodManager
from trio_kubelet.pods.workers import WorkerPeriods
from trio_kubelet.runtime.configs.builder import ConfigBuilder
from trio_kubelet.runtime.image_access import AccessMetrics, ImageAccess
from trio_kubelet.runtime.pod_runtime import GCPolicy, RuntimeSettings
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

if TYPE_CHECKING:  # imported when a node has an API server
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
    async with locked(flags.lock_file, exit_on_contention=flags.exit_on_lock_contention):
        await run_agent(flags, config, service)


async def run_agent(flags: KubeletFlags, config: KubeletConfiguration, service: ServiceManager) -> None:
    """The agent itself, the only one of its lock file."""
    share_with_threads()
    trio.socket.set_custom_hostname_resolver(Names())
    registry = CollectorRegistry(auto_describe=False)
    with told_as_event(flags.hostname_override):
        found = await prepare(flags, config)
    clock = SystemClock()
    async with (
        open_traces(config.tracing, found.node.node_name, clock) as traces,
        open_cri(
            config.container_runtime_endpoint,
            config.image_service_endpoint,
            request_timeout=config.runtime_request_timeout,
            on_call=traces.calls(CallMetrics(registry)),
            direct=True,
        ) as services,
        open_asyncio_loop() as loop,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        driver = await runtime_cgroup_driver(services.runtime, config.cgroup_driver, registry)
        with told_as_event(flags.hostname_override):
            base = await start_base(flags, config, with_driver(found, driver), registry, clock, nursery)
        machine, recorder = base.machine, base.recorder
        health = RuntimeHealth(services.runtime)
        pressure = pressure_monitor(machine, flags, config, services.images, recorder, clock)
        shutdown = node_shutdown(base, config)
        pod_config = PodConfig(recorder=recorder, clock=clock)
        membership: Membership | None = None
        if flags.kubeconfig and not config.run_once:
            from trio_kubelet.membership import open_membership

            membership = await stack.enter_async_context(open_membership(base, flags, config))
        client = membership.client if membership else None
        plugged = Plugged(
            base=base,
            config=config,
            placement=await placement(flags, config, base),
            root_dir=flags.root_dir,
            runtime=services.runtime,
            loop=loop,
            sources=pod_config,
            objects=ClusterClaims(client, machine.node.node_name) if client else None,
        )
        pods, cluster = PodManager(), None
        if membership is not None:
            cluster = membership.cluster(
                flags,
                config,
                services,
                pods=pods,
                health=health,
                pressure=pressure,
                devices=plugged.devices.counts,
                errors=shutdown.errors,
            )
        side = cluster or Alone(flags.root_dir, base)
        calls = stack.enter_context(GrpcCalls(loop))
        storage = storage_room(base, flags, calls, side)
        ooms = OOMWatcher(recorder)
        await nursery.start(ooms.run)  # before the first look: it knows why containers ended
        agent = node_agent(
            base,
            flags,
            config,
            services,
            health,
            pressure,
            shutdown,
            side,
            pods,
            pod_config,
            storage,
            plugged,
            ooms,
            traces,
        )
        plugged.attach(agent)
        await nursery.start(base.allocations.run)
        await nursery.start(storage.run)
        if config.run_once:
            start_sources(nursery, pod_config, machine.node.node_name, flags, config)
            keep_for_good()
            await agent.run_once(pod_config.updates())
            nursery.cancel_scope.cancel()
            return
        record_all(recorder, start_events(config, base.told, cgroup_v2=machine.node.cgroup_v2))
        if membership is not None and cluster is not None:
            nursery.start_soon(keep_running, "client certificate", membership.certificate.run)
            for news in (plugged.counts_changed, shutdown.changed):
                news.listen(cluster.node.reporter.wake)
            cluster.start(nursery, agent, storage.volumes, pod_config.channel(API_SOURCE))
        else:
            log.info("No API server defined - no node status update will be sent")
        await plugged.start(nursery)
        # Before the sync loop runs: to it a source that is not registered is one that is not configured.
        start_sources(nursery, pod_config, machine.node.node_name, flags, config)
        await nursery.start(agent.run, pod_config.updates())
        http_metrics = HTTPMetrics(registry)
        await health_port(nursery, config, http_metrics)
        # In a thread, for the first pods start meanwhile.
        await NODE_FILES.run(import_module, "trio_kubelet.afterwards")
        from trio_kubelet.afterwards import start_afterwards

        await start_afterwards(
            nursery,
            base=base,
            flags=flags,
            config=config,
            services=services,
            agent=agent,
            pressure=pressure,
            shutdown=shutdown,
            storage=storage,
            plugged=plugged,
            loop=loop,
            membership=membership,
            cluster=cluster,
            metrics=http_metrics,
            service=service,
        )
        await trio.sleep(SETTLED)
        keep_for_good()


def node_agent(
    base: Base,
    flags: KubeletFlags,
    config: KubeletConfiguration,
    services: CRIServices,
    health: RuntimeHealth,
    pressure: PressureMonitor,
    shutdown: NodeShutdown,
    cluster: Cluster | Alone,
    pods: PodManager,
    sources: PodConfig,
    storage: StorageRoom,
    plugged: Plugged,
    ooms: OOMWatcher,
    traces: Traces,
) -> NodeAgent:
    """The node-local agent over the doors of a real node. Raises ConfigurationError."""
    node, recorder = base.machine.node, base.recorder

    def current() -> NodeContext:
        return msgspec.structs.replace(
            node,
            handlers=health.handlers,
            host_ips=cluster.host_ips(node.host_ips),
            allocatable=base.profile.allocatable,
        )

    return NodeAgent(
        pods=pods,
        runtime=services.runtime,
        images=services.images,
        health=health,
        configs=ConfigBuilder(
            current,
            config.resolv_conf,
            UserNamespaceRanges(flags.root_dir, lambda: health.handlers, base.user_ids),
            events=recorder,
            objects=cluster.objects,
            services=cluster.services,
            runtime_classes=cluster.runtime_classes,
            persistent=storage.volumes,
            givers=plugged,
        ),
        volumes=VolumeManager(
            current,
            objects=cluster.objects,
            clock=base.clock,
            events=recorder,
            metrics=storage.metrics,
            persistent=storage.volumes,
        ),
        cgroups=base.cgroups,
        pod_limits=base.cgroups,
        directories=PodDirectories(flags.root_dir),
        sources=sources,
        admitter=node_admitter(base, flags, config, health, pressure, shutdown, cluster, plugged),
        recorder=recorder,
        clock=base.clock,
        registry=base.registry,
        host_ips=cluster.host_ips,
        mirrors=cluster.mirrors,
        pull_secrets=cluster.pull_secrets,
        image_access=image_access(base, flags, config, services.images),
        oom_killed=ooms.ended,
        claims=plugged,
        allocating=plugged.allocating,
        given_health=plugged.given_health,
        device_plugins=plugged.device_plugins.healthy,
        traced=traces.syncer,
        settings=agent_settings(base, flags, config),
    )


def storage_room(base: Base, flags: KubeletFlags, calls: GrpcCalls, cluster: Cluster | Alone) -> StorageRoom:
    """The volumes that are not the agent's own."""
    return StorageRoom(
        root_dir=flags.root_dir,
        node_name=base.machine.node.node_name,
        objects=cluster.storage_objects,
        calls=calls,
        node=cluster.node_volumes,
        writer=cluster.csi_info,
        events=base.recorder,
        clock=base.clock,
        registry=base.registry,
        metrics=VolumeMetrics(base.registry),
        health=base.gates.enabled("CSIVolumeHealth"),
    )


def image_access(
    base: Base, flags: KubeletFlags, config: KubeletConfiguration, images: ImageService
) -> ImageAccess | None:
    """Who says which pods may use images that are there; None: the gate is off."""
    if not base.gates.enabled("KubeletEnsureSecretPulledImages"):
        return None
    policy = Policy(
        config.image_pull_credentials_verification_policy, config.preloaded_images_verification_allowlist
    )
    metrics = AccessMetrics(base.registry)
    return ImageAccess(flags.root_dir, images, base.clock, policy, metrics)


def agent_settings(base: Base, flags: KubeletFlags, config: KubeletConfiguration) -> AgentSettings:
    """What of flags and configuration concerns the node-local agent. Raises ConfigurationError."""
    try:
        runtime = RuntimeSettings.from_config(config)
    except ValueError as exc:
        raise ConfigurationError(str(exc)) from exc
    return AgentSettings(
        runtime=msgspec.structs.replace(
            runtime, container_logs_dir=container_logs_dir(config), cpus=base.machine.facts.cpus
        ),
        gc=GCPolicy(
            min_age=flags.minimum_container_ttl_duration,
            max_per_pod_container=flags.maximum_dead_containers_per_container,
            max_containers=flags.maximum_dead_containers,
        ),
        ipv6_first=base.profile.node_ips.ipv6_first,
        stop_signals=base.machine.node.features.container_stop_signals,
        workers=WorkerPeriods(resync=config.sync_frequency),
        use_events=uses_runtime_events(config.feature_gates),
    )
