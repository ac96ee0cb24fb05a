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
    ├─ file, URL, API server  the sources                                 started again
    └─ healthz, read-only     servers on the node                         started again
"""

from __future__ import annotations

import os

import msgspec
import trio

from trio_kubelet.api import v1
from trio_kubelet.clock import SystemClock
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.load import ConfigError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.metrics import CallMetrics
from trio_kubelet.events import EventRecorder
from trio_kubelet.host import (
    container_logs_dir,
    look_at_node,
    make_directories,
    set_oom_score,
    swap_is_on,
)
from trio_kubelet.log import get_logger
from trio_kubelet.metrics import AgentMetrics
from trio_kubelet.node.cgroup_fs import CgroupTree, find_hierarchies
from trio_kubelet.node.cgroups import PodCgroups, cgroup_settings
from trio_kubelet.node.directories import PodDirectories
from trio_kubelet.node.machine import read_machine
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
from trio_kubelet.server.ports import start_servers
from trio_kubelet.sources.podconfig import PodConfig
from trio_kubelet.sources.start import start_sources
from trio_kubelet.volumes.manager import VolumeManager

log = get_logger(__name__)


async def run(flags: KubeletFlags, config: KubeletConfiguration) -> None:
    """Runs the node agent until it is cancelled; pods are left running.

    With `runOnce` it starts the pods of one update and returns. Raises ConfigError or OSError when it cannot
    start, RunOnceError for pods that did not start.
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
                pod_limits=cgroups,
                directories=PodDirectories(flags.root_dir),
                sources=pod_config,
                admitter=node_admitter(node, flags, config, allocations),
                recorder=recorder,
                clock=clock,
                metrics=metrics,
            ),
            agent_settings(flags, config),
        )
        await nursery.start(allocations.run)
        if config.run_once:
            await start_sources(nursery, pod_config, node.node_name, flags, config, clock, agent.starts)
            await agent.run_once(pod_config.updates())
            nursery.cancel_scope.cancel()
            return
        await nursery.start(agent.run, pod_config.updates())
        await start_sources(nursery, pod_config, node.node_name, flags, config, clock, agent.starts)
        start_servers(nursery, agent, flags, config)
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
    node: NodeContext, flags: KubeletFlags, config: KubeletConfiguration, allocations: AllocationStore
) -> NodeAdmitter:
    """Who decides which pods this node takes. Raises ConfigError."""
    facts = NodeFacts(
        name=node.node_name,
        labels={**default_labels(node.node_name, os.uname().machine), **flags.node_labels},
        taints=[v1.Taint(key=t.key, value=t.value, effect=t.effect) for t in config.register_with_taints],
        allocatable=node.allocatable,
        apparmor=apparmor.is_enabled(),
    )
    try:
        sysctls = SysctlAllowlist([*safe_sysctls(os.uname().release), *config.allowed_unsafe_sysctls])
    except ValueError as exc:
        raise ConfigError(f"allowedUnsafeSysctls: {exc}") from exc
    return NodeAdmitter(lambda: facts, sysctls, allocations)
