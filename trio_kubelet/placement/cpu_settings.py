"""What of the configuration concerns the CPU manager on this machine. Pure."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.placement.allocator import NO_POLICY
from trio_kubelet.placement.cpu_policy import CPUPolicy, reserved_cpus
from trio_kubelet.placement.cpusets import parse_cpus
from trio_kubelet.placement.merging import SINGLE_NUMA_NODE
from trio_kubelet.placement.settings import parse_bool, pod_level
from trio_kubelet.placement.taking import CPUPolicyOptions, NotEnoughCPUs
from trio_kubelet.placement.topology import Topology, socket_of
from trio_kubelet.podinfo.amounts import UNIT, amount

STATIC: Final = "static"

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


def cpu_policy(
    config: KubeletConfiguration, gates: FeatureGates, topology: Topology | None
) -> CPUPolicy | None:
    """The CPU manager's policy; None for `none`, which needs no `topology`. Raises ConfigurationError."""
    chosen = config.cpu_manager_policy or NO_POLICY
    if chosen == NO_POLICY:
        if config.cpu_manager_policy_options:
            raise ConfigurationError("new none policy error: None policy: received unsupported options")
        return None
    if chosen != STATIC:
        raise ConfigurationError(f'unknown policy: "{chosen}"')
    assert topology is not None
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
        values[name] = parse_bool(name, text)
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
