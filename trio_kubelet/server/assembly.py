"""The endpoints of one agent: its rooms put behind the tables of `node_pages`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from trio_kubelet.api.v1 import Node
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.log import set_verbosity
from trio_kubelet.config.flag_texts import flag_texts
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.cri.client import RuntimeService
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.podinfo.event_log import EventLog
from trio_kubelet.server.http.router import Route, Router, WebService
from trio_kubelet.server.http.serve import Handler
from trio_kubelet.server.logs.container_logs import ContainerLogs, LogDoors
from trio_kubelet.server.logs.system_logs import SystemLogs
from trio_kubelet.server.logs.watch import LogWatch
from trio_kubelet.server.node_server import ServerPages
from trio_kubelet.server.pages.checkpoint import Checkpoints
from trio_kubelet.server.pages.local import (
    events_page,
    metrics_page,
    node_object_page,
    story_page,
    workers_page,
)
from trio_kubelet.server.pages.metrics_pages import (
    GateMetrics,
    add_start_time,
    process_start_ns,
    stats_handlers,
    with_start_time,
)
from trio_kubelet.server.pages.node_page import ROOT
from trio_kubelet.server.pages.node_pages import (
    CONTAINER,
    NodeHandlers,
    ReadOnlyHandlers,
    add_read_only_pages,
)
from trio_kubelet.server.pages.small import (
    HealthMetrics,
    configz,
    debug_flags,
    pod_list,
    profiling,
    running_pods,
)
from trio_kubelet.server.pages.z_pages import flagz, statusz
from trio_kubelet.server.streams.streaming import Streaming, StreamingMetrics
from trio_kubelet.stats.pages import StatsPages


class PageParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoints show and act on."""

    agent: NodeAgent
    config: KubeletConfiguration
    gates: FeatureGates
    runtime: RuntimeService
    stats: StatsPages
    log_watch: LogWatch
    clock: Clock
    flags: KubeletFlags
    events: EventLog
    node: Callable[[], Awaitable[Node]]
    page: Handler | None = None  # None: the page of the node is switched off


def server_pages(parts: PageParts) -> ServerPages:
    """Everything there is to serve."""
    began_ns = process_start_ns(parts.clock.now_ns())
    registry = CollectorRegistry(auto_describe=False)
    health = HealthMetrics(registry)
    for small in (registry, parts.agent.probe_metrics.registry):
        add_start_time(small, began_ns)
    parts.agent.registry.register(GateMetrics(parts.gates, parts.config.feature_gates))
    provider = Gauge(
        "kubelet_metrics_provider",
        "Where the figures of containers come from: cadvisor or cri.",
        ["provider"],
        registry=parts.agent.registry,
    )
    from_cri = parts.gates.enabled("PodAndContainerStatsFromCRI")
    provider.labels("cri" if from_cri else "cadvisor").set(1)
    return ServerPages(
        read_only=_read_only(parts, health, began_ns),
        node=_node(parts, began_ns),
        checks=health.observed(parts.agent.health_checks()),
    )


def local_router(parts: PageParts, pages: ServerPages) -> Router:
    """What the agent's own user may ask for besides the read-only pages: why things are as they are, logs,
    and commands in containers.
    """
    router = Router()
    add_read_only_pages(router, pages.read_only, pages.checks)
    router.handle("/debug/story/", story_page(parts.agent.room.story.entries))
    router.handle("/debug/events", events_page(parts.events))
    router.add(WebService("/containerLogs", [Route("GET", CONTAINER, pages.node.container_logs)]))
    router.add(WebService("/exec", [Route("GET", CONTAINER, pages.node.exec)]))
    router.handle("/debug/node", node_object_page(parts.node))
    router.handle("/debug/workers", workers_page(parts.agent.room.workers.report))
    if parts.page is not None:
        router.handle(ROOT, parts.page)
    return router


def _read_only(parts: PageParts, health: HealthMetrics, began_ns: int) -> ReadOnlyHandlers:
    agent = parts.agent
    stats = stats_handlers(parts.stats)
    metrics = partial(with_start_time, began_ns=began_ns)
    return ReadOnlyHandlers(
        pods=pod_list(agent.room.pods_with_status),
        stats_summary=stats.summary,
        metrics=metrics(metrics_page(agent.registry, parts.stats.log_metrics)),
        metrics_cadvisor=metrics(stats.cadvisor),
        metrics_resource=metrics(stats.resource),
        metrics_probes=metrics(metrics_page(agent.probe_metrics.registry)),
        metrics_slis=metrics(health.page),
    )


def _node(parts: PageParts, began_ns: int) -> NodeHandlers:
    agent, config, gates, room = parts.agent, parts.config, parts.gates, parts.agent.room
    idle = config.streaming_connection_idle_timeout
    streaming = Streaming(
        pods=room.pods,
        runtime=parts.runtime,
        idle_seconds=idle,
        translate=gates.enabled("ExtendWebSocketsToKubelet"),
        metrics=StreamingMetrics(agent.registry),
    )
    logs = ContainerLogs(
        LogDoors(
            pods=room.pods,
            statuses=room.statuses,
            observed=agent.cache,
            runtime=parts.runtime,
            watch=parts.log_watch,
            clock=parts.clock,
            split_streams=gates.enabled("PodLogsQuerySplitStreams"),
            write_seconds=idle,
        )
    )
    checkpoints = Checkpoints(
        room.pods,
        agent.cache,
        parts.runtime,
        parts.clock,
        parts.flags.root_dir,
        config.runtime_request_timeout,
    )
    queries = bool(config.enable_system_log_query) and gates.enabled("NodeLogQuery")
    return NodeHandlers(
        run=streaming.run,
        exec=streaming.exec,
        attach=streaming.attach,
        port_forward=streaming.port_forward,
        container_logs=logs.get,
        running_pods=pod_list(running_pods(agent.cache.statuses)),
        configz=configz(config, parts.flags.cert_dir),
        system_logs=SystemLogs(queries).get,
        profiling=profiling,
        debug_flags=debug_flags(set_verbosity),
        checkpoint=checkpoints.post if gates.enabled("ContainerCheckpoint") else None,
        flagz=flagz(partial(flag_texts, parts.flags, config)) if gates.enabled("ComponentFlagz") else None,
        statusz=(
            partial(statusz, parts.clock, KUBELET_VERSION, began_ns)
            if gates.enabled("ComponentStatusz")
            else None
        ),
        page=parts.page,
    )
