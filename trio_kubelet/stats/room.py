"""The stats of a real node put together: readers, collectors, the meter of volumes, the pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

import trio
from prometheus_client import CollectorRegistry

from trio_kubelet.api import v1
from trio_kubelet.common.clock import Clock
from trio_kubelet.config.types import KubeletConfiguration, cgroup_path
from trio_kubelet.cri.services import ImageService, RuntimeService
from trio_kubelet.machine.cgroup_reader import cgroup_reader
from trio_kubelet.machine.facts import MachineFacts
from trio_kubelet.machine.system import SystemFacts
from trio_kubelet.native.pure_figures import read_file
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.stats.cadvisor_metrics import MachineLabels
from trio_kubelet.stats.cgroup_details import DetailsCollector
from trio_kubelet.stats.collector import StatsCollector, StatsSettings
from trio_kubelet.stats.pages import StatsPages
from trio_kubelet.stats.volumes import ClaimStats, OthersUse, VolumeMeter, nobodys


class StatsRoom:
    """What the node's stats consist of; `run` has to be running for the runtime to be asked, `meter.run` for
    volumes to be measured.
    """

    def __init__(
        self,
        runtime: RuntimeService,
        images: ImageService,
        hierarchies: Mapping[str, str],
        clock: Clock,
        settings: StatsSettings,
        machine: MachineLabels,
        meter: VolumeMeter,
    ) -> None:
        cgroups = cgroup_reader(hierarchies, clock)
        self.meter = meter
        self.collector = StatsCollector(
            runtime=runtime, images=images, cgroups=cgroups, clock=clock, volumes=meter.of, settings=settings
        )
        pressure = "" in hierarchies and os.path.exists(f"{hierarchies['']}/cpu.pressure")
        self.details = DetailsCollector(
            usage=self.collector,
            runtime=runtime,
            images=images,
            cgroups=cgroups,
            clock=clock,
            settings=settings,
        )
        self.pages = StatsPages(
            self.collector, self.details, machine, pressure, hidden=settings.hidden_metrics
        )

    async def run(self) -> None:
        """Asks the runtime for what readers want, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.collector.run)
            nursery.start_soon(self.details.run)


def stats_settings(
    node: NodeContext, config: KubeletConfiguration, facts: MachineFacts, runtime_cgroups: str = ""
) -> StatsSettings:
    """Settings of a configuration; `runtime_cgroups` is the flag of that name."""
    return StatsSettings(
        node_name=node.node_name,
        root_dir=node.root_dir,
        pod_logs_dir=node.pod_logs_dir,
        names=CgroupNames(node.cgroup_root, node.cgroup_driver, node.cgroups_per_qos),
        memory_capacity=facts.memory,
        swap_capacity=facts.swap,
        kubelet_cgroup=cgroup_path(config.kubelet_cgroups),
        runtime_cgroup=runtime_cgroups,
        system_cgroup=cgroup_path(config.system_cgroups),
        hidden_metrics=bool(config.show_hidden_metrics_for_version),
    )


def machine_labels(facts: MachineFacts, system: SystemFacts) -> MachineLabels:
    """What `/metrics/cadvisor` says of the machine. Blocking."""
    cores, sockets = topology(read_file("/proc/cpuinfo") or b"")
    return MachineLabels(
        cores=facts.cpus,
        physical_cores=cores or facts.cpus,
        sockets=sockets or 1,
        memory=facts.memory,
        swap=facts.swap,
        machine_id=system.machine_id,
        system_uuid=system.system_uuid,
        boot_id=system.boot_id,
        kernel=system.kernel,
        os_image=system.os_image,
    )


def topology(cpuinfo: bytes) -> tuple[int, int]:
    """Physical cores and sockets in a `/proc/cpuinfo`; 0 where it does not tell. Pure."""
    cores: set[tuple[str, str]] = set()
    socket = ""
    for line in cpuinfo.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "physical id":
            socket = value.strip()
        elif name.strip() == "core id":
            cores.add((socket, value.strip()))
    return len(cores), len({socket for socket, _ in cores})


def volume_meter(
    pods: Callable[[], Iterable[v1.Pod]],
    node: NodeContext,
    config: KubeletConfiguration,
    clock: Clock,
    registry: CollectorRegistry,
    others: OthersUse = nobodys,
) -> VolumeMeter:
    """The meter with the configured `volumeStatsAggPeriod`."""
    period, quotas = config.volume_stats_agg_period, node.features.quota_monitoring
    meter = VolumeMeter(pods, node.root_dir, clock, period, registry, others, quotas=quotas)
    registry.register(ClaimStats(meter))
    return meter
