"""What of the configuration concerns topology, and both managers, on this machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from trio_kubelet.common.go_words import parse_integer
from trio_kubelet.common.log import go_quote
from trio_kubelet.config import flag_values
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.placement.allocator import NO_POLICY, POD_SCOPE, TopologyPolicy
from trio_kubelet.placement.merging import BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE, NUMANodes
from trio_kubelet.placement.pod_level import PodLevel

if TYPE_CHECKING:  # imported with a policy
    from trio_kubelet.placement.topology import Topology

MAX_NUMA_NODES: Final = 8


def pod_level(config: KubeletConfiguration, gates: FeatureGates) -> PodLevel:
    """How pods that ask for resources as a whole are served."""
    if not gates.enabled("PodLevelResourceManagers"):
        return PodLevel.SHARED
    aligned = config.topology_manager_policy not in ("", NO_POLICY)
    return (
        PodLevel.BY_POD if aligned and config.topology_manager_scope == POD_SCOPE else PodLevel.BY_CONTAINER
    )


def topology_policy(
    config: KubeletConfiguration, gates: FeatureGates, topology: Topology | None
) -> TopologyPolicy:
    """The topology manager's policy; `none` needs no `topology`. Raises ConfigurationError."""
    name = config.topology_manager_policy or NO_POLICY
    if name == NO_POLICY:
        return TopologyPolicy(pod_level=pod_level(config, gates))
    if name not in (BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE):
        raise ConfigurationError(f'unknown policy: "{name}"')
    scope = config.topology_manager_scope or "container"
    if scope not in ("container", POD_SCOPE):
        raise ConfigurationError(f'unknown scope: "{scope}"')
    assert topology is not None
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
            closest = parse_bool(name, text)
        elif name == "max-allowable-numa-nodes":
            try:
                most = parse_integer(text)
            except ValueError as exc:
                raise ConfigurationError(
                    f'unable to convert policy option to integer "{name}": {exc}'
                ) from None
            if most < MAX_NUMA_NODES:
                raise ConfigurationError(
                    f'the minimum value of "{name}" should not be less than {MAX_NUMA_NODES}'
                )
        else:
            raise ConfigurationError(f'unknown Topology Manager Policy option: "{name}"')
    return closest, most


def parse_bool(name: str, text: str) -> bool:
    """The value of an option. Raises ConfigurationError."""
    try:
        return flag_values.parse_bool(text)
    except ValueError:
        raise ConfigurationError(
            f'bad value for option "{name}": strconv.ParseBool: parsing {go_quote(text)}: invalid syntax'
        ) from None
