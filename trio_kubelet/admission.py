"""Who says which pods this node takes, put together: its facts, what it is short of, whether it goes down."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from trio_kubelet.base import Base
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.eviction.monitor import PressureMonitor, PressureSettings
from trio_kubelet.eviction.signals import SignalPlaces, read_signals
from trio_kubelet.eviction.thresholds import thresholds_of
from trio_kubelet.machine.cgroup_reader import cgroup_reader
from trio_kubelet.node.profile import declared_features
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.nodeshutdown.state import NodeShutdown
from trio_kubelet.plugged import Plugged
from trio_kubelet.podinfo.cgroup_names import CgroupNames
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.pods.admission import apparmor
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist, safe_sysctls
from trio_kubelet.pods.resize.rules import ResizeRules
from trio_kubelet.runtime.configs.resources import may_swap

if TYPE_CHECKING:  # imported when a node has an API server, or none
    from trio_kubelet.alone import Alone
    from trio_kubelet.cluster import Cluster


def pressure_monitor(base: Base) -> PressureMonitor:
    """Who tells when the node runs short of something."""
    machine, config, clock = base.machine, base.config, base.clock
    node = machine.node
    names = CgroupNames(node.cgroup_root, node.cgroup_driver, node.cgroups_per_qos)
    settings = PressureSettings(
        places=SignalPlaces(
            memory=machine.facts.memory, root_dir=node.root_dir, pods_cgroup=names.literal(names.node())
        ),
        thresholds=thresholds_of(config, ignore_eviction=base.flags.experimental_allocatable_ignore_eviction),
        transition_period=config.eviction_pressure_transition_period,
    )
    cgroups = cgroup_reader(machine.hierarchies, clock)
    return PressureMonitor(
        settings, base.services.images, lambda places: read_signals(places, cgroups, clock), base.recorder
    )


def node_admitter(
    base: Base,
    health: RuntimeHealth,
    pressure: PressureMonitor,
    shutdown: NodeShutdown,
    cluster: Cluster | Alone,
    plugged: Plugged,
) -> NodeAdmitter:
    """Who decides which pods this node takes. Raises ConfigurationError."""
    profile, config = base.profile, base.config
    configured = NodeFacts(
        name=profile.name,
        labels=profile.labels,
        taints=profile.taints,
        allocatable=profile.allocatable,
        apparmor=apparmor.is_enabled(),
        pod_level_resources=base.gates.enabled("PodLevelResources"),
        comparing_tolerations=base.gates.enabled("TaintTolerationComparisonOperators"),
        extended_claims=base.gates.enabled("DRAExtendedResource"),
    )

    def facts() -> NodeFacts:
        features = health.features
        strict = features is not None and features.supplemental_groups_policy
        host_users = features is not None and features.user_namespaces_host_network
        known = cluster.node_facts(configured)
        devices = {name: str(n) for name, n in plugged.devices.least_allocatable().items()}
        return msgspec.structs.replace(
            known,
            strict_supplemental_groups=strict,
            declared=declared_features(profile, host_users=host_users),
            allocatable={**known.allocatable, **devices},
        )

    try:
        sysctls = SysctlAllowlist([*safe_sysctls(os.uname().release), *config.allowed_unsafe_sysctls])
    except ValueError as exc:
        raise ConfigurationError(f"allowedUnsafeSysctls: {exc}") from exc
    return NodeAdmitter(
        node=facts,
        sysctls=sysctls,
        allocations=base.allocations,
        checks=(shutdown.refusal,),
        pressures=lambda: pressure.conditions,
        resizes=resize_rules(config, base.gates, base.machine.node),
        allocating=plugged.allocating,
        look=cluster.look_at_node,
    )


def resize_rules(config: KubeletConfiguration, gates: FeatureGates, node: NodeContext) -> ResizeRules:
    """The rules of a node that is configured so."""
    own_cpus = gates.enabled("InPlacePodVerticalScalingExclusiveCPUs")
    own_memory = gates.enabled("InPlacePodVerticalScalingExclusiveMemory")
    return ResizeRules(
        pod_level=gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
        static_cpus=config.cpu_manager_policy == "static" and not own_cpus,
        static_memory=config.memory_manager_policy == "Static" and not own_memory,
        may_swap=lambda pod, container: may_swap(pod, container, node),
    )
