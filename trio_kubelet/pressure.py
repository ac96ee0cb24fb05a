"""A node under pressure or about to go down: who ends pods and frees space then, put together."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import trio

from trio_kubelet.base import Base
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.cri.errors import CRIError
from trio_kubelet.eviction.alarm import KernelAlarm, UsageThreshold, usage_thresholds
from trio_kubelet.eviction.manager import EvictionManager, EvictionSettings
from trio_kubelet.eviction.metrics import EvictionMetrics
from trio_kubelet.eviction.monitor import PressureMonitor
from trio_kubelet.images.manager import ImageGarbage, ImageGCError
from trio_kubelet.images.selection import ImagePolicy
from trio_kubelet.machine.cgroup_reader import cgroup_reader
from trio_kubelet.node_agent import NodeAgent
from trio_kubelet.nodeshutdown.plan import periods_of
from trio_kubelet.nodeshutdown.state import NodeShutdown
from trio_kubelet.nodeshutdown.times import ShutdownTimes
from trio_kubelet.pods.cleaner import Cleaner
from trio_kubelet.stats.pods import PodFigures
from trio_kubelet.stats.room import StatsRoom, machine_labels, stats_settings, volume_meter
from trio_kubelet.stats.volumes import OthersUse

log = get_logger(__name__)


def kernel_alarm(base: Base, monitor: PressureMonitor) -> KernelAlarm:
    """Who hears the kernel say that memory runs short."""
    hierarchies, places = base.machine.hierarchies, monitor.settings.places
    cgroups = cgroup_reader(hierarchies, base.clock)
    memory, unified = hierarchies.get("memory"), hierarchies.get("")

    def thresholds() -> list[UsageThreshold]:
        if memory is None or not base.config.kernel_memcg_notification:
            return []
        return usage_thresholds(monitor.settings.thresholds, places, cgroups, memory)

    events = None
    if unified is not None:
        events = os.path.join(unified, places.pods_cgroup.lstrip("/"), "memory.events")
    return KernelAlarm(events_file=events, thresholds=thresholds)


def stats_room(base: Base, agent: NodeAgent, volumes: OthersUse) -> StatsRoom:
    """What pods and node use; `volumes` knows those that are not the agent's own."""
    machine, config, clock = base.machine, base.config, base.clock
    return StatsRoom(
        base.services.runtime,
        base.services.images,
        machine.hierarchies,
        clock,
        stats_settings(machine.node, config, machine.facts, base.flags.runtime_cgroups),
        machine_labels(machine.facts, machine.system),
        volume_meter(agent.room.pods.pods, machine.node, config, clock, agent.registry, volumes),
    )


def start_pressure(
    nursery: trio.Nursery,
    base: Base,
    agent: NodeAgent,
    monitor: PressureMonitor,
    stats: StatsRoom,
    span: Callable[[str], AbstractContextManager[object]],
) -> None:
    """Starts evictions and the collection of images, which happens within `span`s."""
    config, services = base.config, base.services
    policy = ImagePolicy(
        high=config.image_gc_high_threshold_percent,
        low=config.image_gc_low_threshold_percent,
        min_age=config.image_minimum_gc_age,
        max_age=config.image_maximum_gc_age,
    )
    images = ImageGarbage(
        policy,
        runtime=services.runtime,
        images=services.images,
        filesystem=monitor.image_filesystem,
        pods=agent.room.pods.pods,
        events=base.recorder,
        registry=base.registry,
        span=span,
    )
    alarm = kernel_alarm(base, monitor)
    manager = EvictionManager(
        EvictionSettings(
            max_grace=config.eviction_max_pod_grace_period,
            limits=config.local_storage_capacity_isolation,
            cpus=base.machine.facts.cpus,
        ),
        monitor=monitor,
        pods=agent.room.victims,
        stats=PodFigures(stats.collector, stats.meter, base.clock),
        reclaim=Reclaimer(agent.room.cleaner, images),
        events=base.recorder,
        metrics=EvictionMetrics(base.registry),
        clock=base.clock,
        alarm=alarm.wait,
    )

    async def evict() -> None:
        with alarm:
            await manager.run()

    nursery.start_soon(keep_running, "image garbage collection", images.run)
    nursery.start_soon(keep_running, "eviction manager", evict)


async def start_shutdown(nursery: trio.Nursery, base: Base, agent: NodeAgent, shutdown: NodeShutdown) -> None:
    """Follows logind, where the node's shutdown is to be waited for."""
    by_priority = base.gates.enabled("GracefulNodeShutdownBasedOnPodPriority")
    times = ShutdownTimes(base.flags.root_dir, base.clock, base.registry) if by_priority else None
    wanted = base.gates.enabled("GracefulNodeShutdown")
    periods = periods_of(base.config, by_priority=by_priority) if wanted else ()
    if not periods:
        return
    from trio_kubelet.dbus.bus import SYSTEM_BUS, MessageBus
    from trio_kubelet.nodeshutdown.manager import ShutdownManager

    bus = MessageBus(SYSTEM_BUS)
    await nursery.start(bus.run)
    manager = ShutdownManager(
        periods, bus=bus, node=shutdown, pods=agent.room.victims, times=times, events=base.recorder
    )
    nursery.start_soon(keep_running, "node shutdown", manager.run)


class Reclaimer:
    """Frees what no pod needs; what fails is told in the log, and the next observation shows it."""

    def __init__(self, cleaner: Cleaner, images: ImageGarbage) -> None:
        self._cleaner = cleaner
        self._images = images

    async def dead_containers(self) -> None:
        """Removes every container that does not run of pods that are over."""
        await self._cleaner.delete_unused_containers()

    async def unused_images(self) -> None:
        """Removes every image that nothing uses."""
        try:
            await self._images.delete_unused()
        except (CRIError, ImageGCError, trio.TooSlowError) as error:
            log.info(
                "Eviction manager: unexpected error when attempting to reduce resource pressure",
                resourceName="ephemeral-storage",
                err=error,
            )
