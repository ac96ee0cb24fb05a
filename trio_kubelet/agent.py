"""The composition root: opens the doors of a real node and starts every long-lived task.

The nursery tree, from the outside in (what a task's failure means stands behind it):

    run                       asyncio loop of grpclib, behind `cri`       ends the agent
    ├─ NodeAgent.run          the node-local agent                        ends the agent
    │  ├─ RuntimeHealth       asks the runtime for its state
    │  ├─ GenericPLEG         relist, looks at pods, delivery of events
    │  ├─ EventedPLEG         the runtime's event stream                  reopened for ever
    │  ├─ ProbeManager        one scheduler, a short task per probe
    │  ├─ log rotation                                                    started again
    │  └─ PodsRoom            pod workers, cleaner, sync loop
    ├─ PodConfig              merges what the sources want                ends the agent
    ├─ file source                                                        started again
    └─ healthz, read-only     servers on the node                         started again
"""

from __future__ import annotations

import os

import msgspec
import trio

from trio_kubelet.clock import SystemClock
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.load import ConfigError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.metrics import CallMetrics
from trio_kubelet.events import EventRecorder
from trio_kubelet.log import get_logger
from trio_kubelet.metrics import AgentMetrics
from trio_kubelet.node.addresses import default_node_name, find_host_ips, parse_node_ips
from trio_kubelet.node.cgroup_fs import CgroupTree, find_hierarchies
from trio_kubelet.node.cgroups import PodCgroups, cgroup_settings
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.node.machine import MachineFacts, node_context, read_machine
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.node.userns import UserNamespaceRanges
from trio_kubelet.node_agent import AgentDoors, AgentSettings, NodeAgent
from trio_kubelet.pods import apparmor
from trio_kubelet.pods.allocation import AllocationStore
from trio_kubelet.pods.doors import CgroupError
from trio_kubelet.pods.fit import NodeFacts, default_labels
from trio_kubelet.pods.node_admitter import NodeAdmitter
from trio_kubelet.pods.sysctls import SysctlAllowlist, safe_sysctls
from trio_kubelet.pods.workers import WorkerPeriods
from trio_kubelet.runtime.configs.builder import ConfigBuilder
from trio_kubelet.runtime.configs.context import NodeContext
from trio_kubelet.runtime.manager import GCPolicy, RuntimeSettings
from trio_kubelet.server.http import Handler, serve
from trio_kubelet.server.local import health_page, metrics_page, pods_page, routes
from trio_kubelet.sources.file import FileSource
from trio_kubelet.sources.podconfig import PodConfig
from trio_kubelet.sources.types import FILE_SOURCE
from trio_kubelet.supervise import keep_running
from trio_kubelet.volumes.manager import VolumeManager

log = get_logger(__name__)


async def run(flags: KubeletFlags, config: KubeletConfiguration) -> None:
    """Runs the node agent until it is cancelled; pods are left running.

    Raises ConfigError or OSError when it cannot start.
    """
    metrics, clock = AgentMetrics(), SystemClock()
    set_oom_score(config.oom_score_adj)
    if config.fail_swap_on and await trio.to_thread.run_sync(swap_is_on):
        raise ConfigError(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        )
    facts = await trio.to_thread.run_sync(read_machine, flags.root_dir)
    node = await trio.to_thread.run_sync(look_at_node, flags, config, facts)
    await trio.to_thread.run_sync(make_directories, flags, config)
    cgroups = PodCgroups(CgroupTree(find_hierarchies()), lambda: node, cgroup_settings(config, facts))
    allocations = AllocationStore(flags.root_dir)
    await trio.to_thread.run_sync(allocations.load)
    try:
        await cgroups.start()
    except CgroupError as exc:
        raise ConfigError(f"failed to start ContainerManager: {exc}") from exc
    recorder = EventRecorder(clock)
    async with (
        open_cri(
            config.container_runtime_endpoint,
            config.image_service_endpoint,
            request_timeout=config.runtime_request_timeout,
            on_call=CallMetrics(metrics),
            direct_lists=True,
        ) as services,
        trio.open_nursery() as nursery,
    ):
        health = RuntimeHealth(services.runtime)

        def current() -> NodeContext:
            return msgspec.structs.replace(node, handlers=health.handlers)

        pod_config = PodConfig(recorder=recorder, clock=clock)
        agent = NodeAgent(
            AgentDoors(
                runtime=services.runtime,
                images=services.images,
                health=health,
                configs=ConfigBuilder(
                    current,
                    config.resolv_conf,
                    UserNamespaceRanges(flags.root_dir, lambda: health.handlers),
                    events=recorder,
                ),
                volumes=VolumeManager(current, clock=clock),
                cgroups=cgroups,
                directories=PodDirectories(flags.root_dir),
                sources=pod_config,
                admitter=node_admitter(node, config, allocations),
                recorder=recorder,
                clock=clock,
                metrics=metrics,
            ),
            agent_settings(flags, config),
        )
        await nursery.start(allocations.run)
        await nursery.start(agent.run, pod_config.updates())
        start_sources(nursery, pod_config, node.node_name, config)
        start_servers(nursery, agent, config)
        log.info("Started kubelet", node=node.node_name, version=KUBELET_VERSION)


def agent_settings(flags: KubeletFlags, config: KubeletConfiguration) -> AgentSettings:
    """What of flags and configuration concerns the node-local agent. Raises ConfigError."""
    try:
        runtime = RuntimeSettings.from_config(config)
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    return AgentSettings(
        runtime=msgspec.structs.replace(runtime, container_logs_dir=container_logs_dir(config)),
        gc=GCPolicy(
            min_age=flags.minimum_container_ttl_duration,
            max_per_pod_container=flags.maximum_dead_containers_per_container,
            max_containers=flags.maximum_dead_containers,
        ),
        workers=WorkerPeriods(resync=config.sync_frequency),
        # The kubelet ships its evented PLEG switched off because it lost events; this one does not.
        use_events=config.feature_gates.get("EventedPLEG", True),
    )


def node_admitter(
    node: NodeContext, config: KubeletConfiguration, allocations: AllocationStore
) -> NodeAdmitter:
    """Who decides which pods this node takes. Raises ConfigError."""
    facts = NodeFacts(
        name=node.node_name,
        labels=default_labels(node.node_name, os.uname().machine),
        allocatable=node.allocatable,
        apparmor=apparmor.is_enabled(),
    )
    try:
        sysctls = SysctlAllowlist([*safe_sysctls(os.uname().release), *config.allowed_unsafe_sysctls])
    except ValueError as exc:
        raise ConfigError(f"allowedUnsafeSysctls: {exc}") from exc
    return NodeAdmitter(lambda: facts, sysctls, allocations)


def container_logs_dir(config: KubeletConfiguration) -> str:
    """Where log collectors find a link per container.

    The kubelet's fixed place for its usual log directory; an agent whose pod logs are elsewhere leaves the
    host's alone and puts the links beside them.
    """
    parent, name = os.path.split(config.pod_logs_dir.rstrip("/"))
    return os.path.join(parent, "containers" if name == "pods" else f"{name}-containers")


def look_at_node(flags: KubeletFlags, config: KubeletConfiguration, facts: MachineFacts) -> NodeContext:
    """What configs need to know of this node. Raises ConfigError. Blocking."""
    try:
        name = default_node_name(flags.hostname_override)
        node_ips = parse_node_ips(flags.node_ip)
        return node_context(
            facts,
            config,
            resolve_gates(config.feature_gates),
            node_name=name,
            root_dir=os.path.abspath(flags.root_dir),
            host_ips=find_host_ips(name, node_ips),
            node_ips=node_ips,
        )
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc


def make_directories(flags: KubeletFlags, config: KubeletConfiguration) -> None:
    """The directories a kubelet has, with its modes. Raises OSError. Blocking."""
    for name, mode in (
        ("", 0o750),
        ("pods", 0o750),
        ("plugins", 0o750),
        ("plugins_registry", 0o750),
        ("pod-resources", 0o750),
    ):
        os.makedirs(os.path.join(flags.root_dir, name), mode, exist_ok=True)
    for path in (config.pod_logs_dir, container_logs_dir(config)):
        os.makedirs(path, 0o755, exist_ok=True)


def swap_is_on() -> bool:
    """Whether the machine has swap space in use. Blocking."""
    try:
        with open("/proc/swaps", encoding="utf-8") as file:
            return len(file.read().splitlines()) > 1
    except OSError:
        return False


def set_oom_score(score: int) -> None:
    """Asks the kernel to spare this process; without the right to, it goes on with a warning."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write(str(score))
    except OSError as exc:
        log.warning("Cannot set the agent's own oom_score_adj", oomScoreAdj=score, err=exc)


def start_sources(
    nursery: trio.Nursery, pod_config: PodConfig, node_name: str, config: KubeletConfiguration
) -> None:
    """Starts what brings pods, each under its own supervision, and what merges them."""
    if config.static_pod_path:
        channel = pod_config.channel(FILE_SOURCE)
        source = FileSource(config.static_pod_path, node_name, config.file_check_frequency, channel)
        nursery.start_soon(keep_running, "file source", source.run)
    nursery.start_soon(pod_config.run)


def start_servers(nursery: trio.Nursery, agent: NodeAgent, config: KubeletConfiguration) -> None:
    """Starts the ports that ask nobody who they are."""
    if config.healthz_port:
        handler = routes(health_page({"ping": lambda: None}))
        nursery.start_soon(serve_on, "healthz", config.healthz_bind_address, config.healthz_port, handler)
    if config.read_only_port:
        handler = routes(
            {
                **health_page(agent.health_checks()),
                "/pods": pods_page(agent.room.pods_with_status),
                "/pods/": pods_page(agent.room.pods_with_status),
                "/metrics": metrics_page(agent.metrics.registry),
                "/metrics/probes": metrics_page(agent.probe_metrics.registry),
            }
        )
        nursery.start_soon(serve_on, "read-only", config.address, config.read_only_port, handler)


async def serve_on(name: str, host: str, port: int, handler: Handler) -> None:
    """Serves a port; tries again while it cannot be had."""

    async def once() -> None:
        await serve(await trio.open_tcp_listeners(port, host=host), handler)

    await keep_running(f"{name} server", once)
