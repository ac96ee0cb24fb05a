"""What the agent starts once it is alive: runtime events, plugins, evictions, servers. Joins rooms.

Imported only then, in a thread: pods do not wait for it, and neither does who asks whether the agent is
healthy.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from trio_kubelet.common.log import get_logger
from trio_kubelet.common.memory import look_after_memory
from trio_kubelet.common.priority import come_first
from trio_kubelet.common.service import ServiceManager
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.holdings import NodeHoldings
from trio_kubelet.node.iptables import UtilChains
from trio_kubelet.node.look import NodeLook
from trio_kubelet.node.registration import NodeItself
from trio_kubelet.node.resolv_conf import ResolvConfCheck
from trio_kubelet.plugins.manager import PluginManager
from trio_kubelet.plugins.registration import registrations
from trio_kubelet.pressure import start_pressure, start_shutdown, stats_room
from trio_kubelet.server.http.metrics import HTTPMetrics
from trio_kubelet.server.ports import Servers
from trio_kubelet.storage.csi.registration import PLUGIN_TYPE

if TYPE_CHECKING:  # it imports this module
    from trio_kubelet.agent import RealNode

log = get_logger(__name__)


async def start_afterwards(
    nursery: trio.Nursery, node: RealNode, metrics: HTTPMetrics, service: ServiceManager
) -> None:
    """Starts it, around an agent that runs. Raises ConfigurationError."""
    base, config, agent, plugged = node.base, node.base.config, node.agent, node.plugged
    nursery.start_soon(keep_running, "priority", come_first)
    nursery.start_soon(agent.follow_events)
    nursery.start_soon(keep_running, "device plugins", plugged.device_plugins.run)
    plugins = PluginManager(
        directory=f"{base.flags.root_dir}/plugins_registry",
        handlers={PLUGIN_TYPE: node.storage.csi_plugins, **plugged.handlers},
        open_registration=registrations(node.loop),
        registry=base.registry,
    )
    nursery.start_soon(keep_running, "plugins", plugins.run)
    stats = stats_room(base, agent, node.storage.usage.of)
    nursery.start_soon(keep_running, "stats", stats.run)
    nursery.start_soon(keep_running, "volume meter", stats.meter.run)
    if config.make_iptables_util_chains:
        for ipv6 in (False, True):
            nursery.start_soon(keep_running, "iptables chains", UtilChains(ipv6=ipv6).run)
    if config.resolv_conf:
        check = ResolvConfCheck(config.resolv_conf, config.cluster_domain, base.recorder)
        nursery.start_soon(keep_running, "limits of resolv.conf", check.run)
    start_pressure(nursery, base, agent, node.pressure, stats, node.traces.span)
    await start_shutdown(nursery, base, agent, node.shutdown)
    membership, cluster = node.membership, node.cluster
    servers = Servers(
        metrics=metrics,
        stats=stats.pages,
        base=base,
        agent=agent,
        client=membership.client if membership is not None else None,
        holdings=NodeHoldings(plugged),
        node=node_itself(nursery, node),
        around=node.traces.served_request,
    )
    certificate = await servers.start(nursery)
    if base.gates.enabled("PodsAPI"):
        from trio_kubelet.podsapi.service import PodsService, socket_path

        room = agent.room
        dropped = room.metrics.watch_events_dropped
        told = PodsService(pods=room.pods, statuses=room.statuses, dropped=dropped)
        serve_pods = partial(told.run, node.loop, socket_path(base.flags.root_dir))
        nursery.start_soon(keep_running, "pods API", serve_pods)
    if membership and cluster and certificate and config.server_tls_bootstrap:
        rotation = await membership.serving_rotation(certificate, cluster.node.own)
        nursery.start_soon(keep_running, "serving certificate rotation", rotation.run)
    service.ready()
    look_after = partial(service.look_after, agent.health_checks(), agent.status_line)
    nursery.start_soon(keep_running, "watchdog", look_after)
    nursery.start_soon(keep_running, "memory", look_after_memory)
    log.info("Started kubelet", node=base.machine.node.node_name, version=KUBELET_VERSION)


def node_itself(nursery: trio.Nursery, node: RealNode) -> NodeItself:
    """The Node object, for who asks this node."""
    base, cluster = node.base, node.cluster
    look = NodeLook(
        base.profile,
        node.health,
        base.services.images,
        base.clock,
        pressures=lambda: node.pressure.conditions,
        errors=node.shutdown.errors,
        devices=node.plugged.devices.counts,
    )
    nursery.start_soon(keep_running, "images and addresses of the node", look.run)
    if cluster is None:
        return NodeItself(profile=base.profile, look=look)
    own = cluster.node.own
    return NodeItself(profile=base.profile, look=look, registered=lambda: own.node)
