"""The endpoints of one agent: its rooms put behind the tables of `node_pages`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from prometheus_client import CollectorRegistry

from trio_kubelet.api.v1 import Node
from trio_kubelet.base import Base
from trio_kubelet.common.clock import BEGAN_NS
from trio_kubelet.common.log import set_verbosity
from trio_kubelet.common.metrics import MetricMaker
from trio_kubelet.config.flag_texts import flag_texts
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.server.http.messages import Handler
from trio_kubelet.server.http.metrics import HealthCounts
from trio_kubelet.server.http.router import Route, Router, WebService
from trio_kubelet.server.logs.container_logs import ContainerLogs
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
    add_build_info,
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


class Endpoints:
    """All that one agent can be asked, over what it shows and acts on."""

    def __init__(
        self,
        *,
        base: Base,
        agent: NodeAgent,
        stats: StatsPages,
        log_watch: LogWatch,
        node: Callable[[], Awaitable[Node]],
        counts: HealthCounts,
        page: Handler | None = None,  # None: the page of the node is switched off
    ) -> None:
        self._agent = agent
        self._flags, self._config, self._gates = base.flags, base.config, base.gates
        self._cgroup_driver = base.machine.node.cgroup_driver
        self._runtime = base.services.runtime
        self._clock = base.clock
        self._events = base.event_log
        self._stats = stats
        self._log_watch = log_watch
        self._node = node
        self._counts = counts
        self._page = page

    def pages(self) -> ServerPages:
        """Everything there is to serve."""
        began_ns = process_start_ns(self._clock.now_ns())
        registry = CollectorRegistry(auto_describe=False)
        health = HealthMetrics(registry, self._counts)
        for small in (registry, self._agent.probe_metrics.registry):
            add_start_time(small, began_ns)
        add_build_info(self._agent.registry)
        self._agent.registry.register(GateMetrics(self._gates, self._config.feature_gates))
        provider = MetricMaker(self._agent.registry).gauge(
            "kubelet_metrics_provider",
            "Where the figures of containers come from: cadvisor or cri.",
            ["provider"],
        )
        from_cri = self._gates.enabled("PodAndContainerStatsFromCRI")
        provider.labels("cri" if from_cri else "cadvisor").set(1)
        return ServerPages(
            read_only=self._read_only(health),
            node=self._node_handlers(),
            checks=self._agent.health_checks(),
        )

    def local(self, pages: ServerPages) -> Router:
        """What the agent's own user may ask for besides the read-only pages: why things are as they are,
        logs, and commands in containers.
        """
        router = Router()
        add_read_only_pages(router, pages.read_only, pages.checks, self._counts)
        router.handle("/debug/story/", story_page(self._agent.room.story.entries))
        router.handle("/debug/events", events_page(self._events))
        router.add(WebService("/containerLogs", [Route("GET", CONTAINER, pages.node.container_logs)]))
        router.add(WebService("/exec", [Route("GET", CONTAINER, pages.node.exec)]))
        router.handle("/debug/node", node_object_page(self._node))
        router.handle("/debug/workers", workers_page(self._agent.room.workers.report))
        if self._page is not None:
            router.handle(ROOT, self._page)
        return router

    def _read_only(self, health: HealthMetrics) -> ReadOnlyHandlers:
        agent = self._agent
        stats = stats_handlers(self._stats)
        metrics = partial(with_start_time, began_ns=BEGAN_NS)
        return ReadOnlyHandlers(
            pods=pod_list(agent.room.pods_with_status),
            stats_summary=stats.summary,
            metrics=metrics(metrics_page(agent.registry, self._stats.log_metrics)),
            metrics_cadvisor=metrics(stats.cadvisor),
            metrics_resource=metrics(stats.resource),
            metrics_probes=metrics(metrics_page(agent.probe_metrics.registry)),
            metrics_slis=metrics(health.page),
        )

    def _node_handlers(self) -> NodeHandlers:
        agent, config, gates, room = self._agent, self._config, self._gates, self._agent.room
        idle = config.streaming_connection_idle_timeout
        streaming = Streaming(
            pods=room.pods,
            runtime=self._runtime,
            idle_seconds=idle,
            translate=gates.enabled("ExtendWebSocketsToKubelet"),
            metrics=StreamingMetrics(agent.registry),
        )
        logs = ContainerLogs(
            pods=room.pods,
            statuses=room.statuses,
            observed=agent.cache,
            runtime=self._runtime,
            watch=self._log_watch,
            clock=self._clock,
            split_streams=gates.enabled("PodLogsQuerySplitStreams"),
            write_seconds=idle,
        )
        checkpoints = Checkpoints(
            pods=room.pods,
            observed=agent.cache,
            checkpoint=self._runtime.checkpoint_container,
            clock=self._clock,
            root_dir=self._flags.root_dir,
            request_timeout=config.runtime_request_timeout,
        )
        queries = bool(config.enable_system_log_query) and gates.enabled("NodeLogQuery")
        return NodeHandlers(
            run=streaming.run,
            exec=streaming.exec,
            attach=streaming.attach,
            port_forward=streaming.port_forward,
            container_logs=logs.get,
            running_pods=pod_list(running_pods(agent.cache.statuses)),
            configz=configz(config, self._flags.cert_dir, self._cgroup_driver),
            system_logs=SystemLogs(queries).get,
            profiling=profiling,
            debug_flags=debug_flags(set_verbosity),
            checkpoint=checkpoints.post if gates.enabled("ContainerCheckpoint") else None,
            flagz=flagz(partial(flag_texts, self._flags, config))
            if gates.enabled("ComponentFlagz")
            else None,
            statusz=(
                partial(statusz, self._clock, KUBELET_VERSION, BEGAN_NS)
                if gates.enabled("ComponentStatusz")
                else None
            ),
            page=self._page,
        )
