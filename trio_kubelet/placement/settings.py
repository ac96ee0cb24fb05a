"""What of the configuration concerns placement: policies and their options on this machine. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.placement.allocator import NO_POLICY, POD_SCOPE, TopologyPolicy
from trio_kubelet.placement.cpu_policy import CPUPolicy, reserved_cpus
from trio_kubelet.placement.cpusets import parse_cpus
from trio_kubelet.placement.merging import BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE, NUMANodes
from trio_kubelet.placement.pod_level import PodLevel
from trio_kubelet.placement.taking import CPUPolicyOptions, NotEnoughCPUs
from trio_kubelet.placement.topology import Topology, socket_of
from trio_kubelet.podinfo.amounts import UNIT, amount

STATIC: Final = "static"
MAX_NUMA_NODES: Final = 8

_CPU_OPTIONS: Final = {
    "full-pcpus-only": "",
    "strict-cpu-reservation": "",
    "prefer-align-cpus-by-uncorecache": "",
    "distribute-cpus-across-numa": "Beta",
    "align-by-socket": "Alpha",
    "distribute-cpus-across-cores": "Alpha",
}
"""The options of the policy `static`, and the level whose gate they need."""
_EXCLUSIVE: Final = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)


def cpu_policy(config: KubeletConfiguration, gates: FeatureGates, topology: Topology) -> CPUPolicy | None:
    """The CPU manager's policy; None for `none`. Raises ConfigurationError."""
    chosen = config.cpu_manager_policy or NO_POLICY
    if chosen == NO_POLICY:
        if config.cpu_manager_policy_options:
            raise ConfigurationError("new none policy error: None policy: received unsupported options")
        return None
    if chosen != STATIC:
        raise ConfigurationError(f'unknown policy: "{chosen}"')
    options = _cpu_options(config, gates, topology)
    kept = sum(amount(each.get("cpu", "")) for each in (config.kube_reserved, config.system_reserved))
    named = parse_cpus(config.reserved_system_cpus)
    count = len(named) if named else math.ceil(kept / UNIT)
    if count == 0:
        raise ConfigurationError(
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu "
            "to be greater than zero"
        )
    try:
        reserved = reserved_cpus(topology, count, named, options)
    except NotEnoughCPUs as exc:
        raise ConfigurationError(f"new static policy error: {exc}") from exc
    return CPUPolicy(topology, reserved, options, pod_level(config, gates))


def pod_level(config: KubeletConfiguration, gates: FeatureGates) -> PodLevel:
    """How pods that ask for resources as a whole are served."""
    if not gates.enabled("PodLevelResourceManagers"):
        return PodLevel.SHARED
    aligned = config.topology_manager_policy not in ("", NO_POLICY)
    return (
        PodLevel.BY_POD if aligned and config.topology_manager_scope == POD_SCOPE else PodLevel.BY_CONTAINER
    )


def _cpu_options(config: KubeletConfiguration, gates: FeatureGates, topology: Topology) -> CPUPolicyOptions:
    values: dict[str, bool] = {}
    for name, text in config.cpu_manager_policy_options.items():
        level = _CPU_OPTIONS.get(name)
        if level is None:
            raise ConfigurationError(f'new static policy error: unknown CPU Manager Policy option: "{name}"')
        if level and not gates.enabled(f"CPUManagerPolicy{level}Options"):
            raise ConfigurationError(
                f"new static policy error: CPU Manager Policy {level}-level Options not enabled, "
                f'but option "{name}" provided'
            )
        values[name] = _bool(name, text)
    for one, other in _EXCLUSIVE:
        if values.get(one) and values.get(other):
            raise ConfigurationError(
                f"new static policy error: static policy options {one} and {other} "
                "can not be used at the same time"
            )
    if values.get("align-by-socket"):
        if config.topology_manager_policy == SINGLE_NUMA_NODE:
            raise ConfigurationError(
                f"new static policy error: Topolgy manager {SINGLE_NUMA_NODE} policy is incompatible with "
                "CPUManager align-by-socket policy option"
            )
        if len(topology.groups(topology.all(), socket_of)) > len(topology.numa_nodes()):
            raise ConfigurationError(
                "new static policy error: Align by socket is not compatible with hardware where number of "
                "sockets are more than number of NUMA"
            )
    return msgspec.convert({name.replace("-", "_"): on for name, on in values.items()}, CPUPolicyOptions)


def topology_policy(config: KubeletConfiguration, gates: FeatureGates, topology: Topology) -> TopologyPolicy:
    """The topology manager's policy. Raises ConfigurationError."""
    name = config.topology_manager_policy or NO_POLICY
    if name == NO_POLICY:
        return TopologyPolicy(pod_level=pod_level(config, gates))
    if name not in (BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE):
        raise ConfigurationError(f'unknown policy: "{name}"')
    scope = config.topology_manager_scope or "container"
    if scope not in ("container", POD_SCOPE):
        raise ConfigurationError(f'unknown scope: "{scope}"')
    closest, most = _topology_options(config.topology_manager_policy_options)
    nodes = sorted({*topology.numa_nodes(), *topology.distances})  # those without CPUs too
    if len(nodes) > most:
        raise ConfigurationError(f"unsupported on machines with more than {most} NUMA Nodes")
    machine = NUMANodes(nodes, topology.distances, closest)
    return TopologyPolicy(name, scope, machine, pod_level(config, gates))


def _topology_options(options: Mapping[str, str]) -> tuple[bool, int]:
    """Whether near nodes are preferred, and how many there may be."""
    closest, most = False, MAX_NUMA_NODES
    for name, text in options.items():
        if name == "prefer-closest-numa-nodes":
            closest = _bool(name, text)
        elif name == "max-allowable-numa-nodes":
            if not text.isdecimal():
                raise ConfigurationError(f'unable to convert policy option to integer "{name}": {text}')
            most = int(text)
            if most < MAX_NUMA_NODES:
                raise ConfigurationError(
                    f'the minimum value of "{name}" should not be less than {MAX_NUMA_NODES}'
                )
        else:
            raise ConfigurationError(f'unknown Topology Manager Policy option: "{name}"')
    return closest, most


def _bool(name: str, text: str) -> bool:
    """As Go's `strconv.ParseBool`."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ConfigurationError(
        f'bad value for option "{name}": strconv.ParseBool: parsing "{text}": invalid syntax'
    )
