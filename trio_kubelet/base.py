"""What everything else of the agent is made from: its settings, the machine and its runtime, cgroups, what
pods were granted.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio
from prometheus_client import CollectorRegistry, ProcessCollector

from trio_kubelet.cgroups.doors import CgroupDriver
from trio_kubelet.cgroups.drivers import CgroupfsDriver, SystemdDriver
from trio_kubelet.cgroups.files import CgroupTree
from trio_kubelet.cgroups.metrics import CgroupMetrics, MemoryQOSMetrics
from trio_kubelet.cgroups.plan import cgroup_settings
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import NODE_FILES, count_left_behind
from trio_kubelet.common.log import get_logger
from trio_kubelet.common.process_metrics import ProcessExtras
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import FeatureGates, resolve_gates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration, cgroup_path
from trio_kubelet.config.version import KUBELET_VERSION
from trio_kubelet.cri.connect import CRIServices
from trio_kubelet.host import Machine
from trio_kubelet.node.events import echo_to_node
from trio_kubelet.node.profile import NodeProfile, node_profile
from trio_kubelet.node.subids import DEFAULT_IDS_PER_POD, IDRange, every_id, kubelet_ids
from trio_kubelet.node.tunables import TunablesError, in_user_namespace, settle_tunables
from trio_kubelet.podinfo.event_log import EventLog
from trio_kubelet.podinfo.pinned import PinnedCPUs
from trio_kubelet.podinfo.recorder import EventRecorder, log_node_event, log_object_event
from trio_kubelet.pods.doors import CgroupError
from trio_kubelet.pods.resize.allocation import AllocationStore

if TYPE_CHECKING:  # imported when a node has plugins
    from trio_kubelet.credential_providers.setup import InstalledProviders

log = get_logger(__name__)


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """What is there first. Who puts rooms together takes it; rooms get what they need of it."""

    flags: KubeletFlags
    config: KubeletConfiguration
    services: CRIServices
    machine: Machine
    gates: FeatureGates
    profile: NodeProfile
    clock: Clock
    registry: CollectorRegistry  # of the metrics of `/metrics`
    recorder: EventRecorder
    event_log: EventLog  # the last of them, for who asks this node
    cgroups: PodCgroups
    pinned: PinnedCPUs
    user_ids: IDRange = every_id()  # for pods with user namespaces
    told: tuple[str, ...] = ()  # what there is to tell about cgroups reserved for others
    allocations: AllocationStore
    providers: InstalledProviders | None = None  # credential provider plugins


async def start_base(
    flags: KubeletFlags,
    config: KubeletConfiguration,
    services: CRIServices,
    machine: Machine,
    registry: CollectorRegistry,
    clock: Clock,
    nursery: trio.Nursery,
) -> Base:
    """Makes the cgroups of the node, and what the agent knows before it acts.

    Raises ConfigurationError, OSError.
    """
    node, gates = machine.node, resolve_gates(config.feature_gates)
    try:
        profile = node_profile(
            flags,
            config,
            gates,
            name=node.node_name,
            facts=machine.facts,
            system=machine.system,
            version=KUBELET_VERSION,
        )
        user_ids = await kubelet_ids(_ids_per_pod(config), config.max_pods)
    except ValueError as exc:
        raise ConfigurationError(str(exc)) from exc
    recorder = EventRecorder(clock)
    recorder.node_events.listen(log_node_event(node.node_name))
    recorder.object_events.listen(log_object_event)
    event_log = EventLog(node.node_name, clock)
    recorder.pod_events.listen(event_log.record_pod)
    recorder.node_events.listen(event_log.record_node)
    recorder.pod_events.listen(partial(echo_to_node, recorder))
    ProcessCollector(registry=registry)
    registry.register(ProcessExtras())
    count_left_behind(registry)
    providers = None
    if flags.image_credential_provider_config or flags.image_credential_provider_bin_dir:
        from trio_kubelet.credential_providers.setup import installed_providers

        providers = await installed_providers(flags, gates, registry)
    pinned = PinnedCPUs()
    cgroups = await pod_cgroups(config, machine, registry, nursery, pinned)
    pod_level = gates.enabled("InPlacePodLevelResourcesVerticalScaling")
    allocations = AllocationStore(flags.root_dir, pod_level=pod_level)
    await NODE_FILES.run(allocations.load)
    try:
        if flags.set_kernel_tunables:
            await NODE_FILES.run(_settle_tunables, config.protect_kernel_defaults, gates)
        told = await cgroups.start()
    except (TunablesError, CgroupError) as exc:
        raise ConfigurationError(f"failed to start ContainerManager: {exc}") from exc
    start_system_cgroups(config, machine, nursery)
    return Base(
        flags=flags,
        config=config,
        services=services,
        machine=machine,
        gates=gates,
        profile=profile,
        clock=clock,
        registry=registry,
        recorder=recorder,
        event_log=event_log,
        cgroups=cgroups,
        pinned=pinned,
        user_ids=user_ids,
        told=tuple(told),
        allocations=allocations,
        providers=providers,
    )


def start_system_cgroups(config: KubeletConfiguration, machine: Machine, nursery: trio.Nursery) -> None:
    """Has the agent and the processes of the host in the cgroups that are configured for them."""
    agent, system = cgroup_path(config.kubelet_cgroups), cgroup_path(config.system_cgroups)
    if not (agent or system):
        return
    from trio_kubelet.cgroups.system import SystemCgroups

    if agent and not config.kubelet_cgroups.startswith(config.kube_reserved_cgroup):
        log.warning(
            "kubeletCgroups is not within kubeReservedCgroup",
            kubeletCgroups=agent,
            kubeReservedCgroup=config.kube_reserved_cgroup,
        )
    cgroups = SystemCgroups(
        CgroupTree(machine.hierarchies), agent=agent, system=system, oom_score_adj=config.oom_score_adj
    )
    nursery.start_soon(keep_running, "cgroups of the agent and of the system", cgroups.run)


def _settle_tunables(protect: bool, gates: FeatureGates) -> None:
    may_fail = gates.enabled("KubeletInUserNamespace") and in_user_namespace()
    settle_tunables("/proc/sys", protect=protect, may_fail=may_fail)


def _ids_per_pod(config: KubeletConfiguration) -> int:
    asked = config.user_namespaces
    return asked.ids_per_pod if asked is not None and asked.ids_per_pod is not None else DEFAULT_IDS_PER_POD


async def pod_cgroups(
    config: KubeletConfiguration,
    machine: Machine,
    registry: CollectorRegistry,
    nursery: trio.Nursery,
    pinned: PinnedCPUs,
) -> PodCgroups:
    """The cgroups of pods, made by the driver that the runtime uses too."""
    node = machine.node
    tree = CgroupTree(machine.hierarchies)
    driver: CgroupDriver = CgroupfsDriver(tree)
    if node.cgroup_driver == "systemd" and node.cgroups_per_qos:
        from trio_kubelet.dbus.bus import SYSTEM_BUS, SYSTEMD, MessageBus

        buses = (MessageBus(SYSTEM_BUS), MessageBus(SYSTEMD, direct=True))
        for bus in buses:
            await nursery.start(bus.run)
        driver = systemd = SystemdDriver(tree, buses)
        await nursery.start(systemd.run)
    memory_qos = node.features.memory_qos and node.cgroup_v2
    cgroups = PodCgroups(
        tree=tree,
        driver=driver,
        node=lambda: msgspec.structs.replace(node, pinned=pinned.containers),
        settings=cgroup_settings(
            config,
            machine.facts,
            memory_qos=memory_qos,
            qos_reserved=resolve_gates(config.feature_gates).enabled("QOSReserved"),
        ),
        timed=CgroupMetrics(registry, v2=node.cgroup_v2).timed,
        metrics=MemoryQOSMetrics(registry) if memory_qos else None,
    )
    nursery.start_soon(keep_running, "cgroups of the QoS classes", cgroups.run)
    return cgroups
