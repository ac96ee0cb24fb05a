"""What the configuration says about the Node object; it does not change while the agent runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from trio_kubelet.api import v1
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.machine.facts import MachineFacts, capacity_of, node_allocatable, reservation_problem
from trio_kubelet.machine.system import SystemFacts
from trio_kubelet.node.addresses import NodeIPs, parse_node_ip_flag

ATTACH_DETACH_ANNOTATION: Final = "volumes.kubernetes.io/controller-managed-attach-detach"
PROVIDED_IP_ANNOTATION: Final = "alpha.kubernetes.io/provided-node-ip"
EXTERNAL_CLOUD_TAINT: Final = "node.cloudprovider.kubernetes.io/uninitialized"

# Features a node declares when their gate is on (KEP-5328), in the order the API wants: sorted.
_DECLARABLE: Final = (
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
)
_NEEDS_RUNTIME: Final = "UserNamespacesHostNetworkSupport"


class NodeProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The node as configured. Quantities are canonical; `swap` is bytes."""

    name: str
    system: SystemFacts
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    labels: Mapping[str, str] = {}
    taints: tuple[v1.Taint, ...] = ()
    annotations: Mapping[str, str] = {}
    node_ips: NodeIPs = NodeIPs()
    external_cloud: bool = False
    register: bool = True
    adopts_if_forbidden: bool = True  # take over a Node that is there if none may be created
    provider_id: str = ""
    port: int = 10250
    max_images: int = 50
    swap: int = 0
    version: str = ""
    declared_features: tuple[str, ...] | None = None  # None: this node does not declare any
    declares_host_users: bool = False  # whether user namespaces with the host's network are declarable
    shows_features: bool = True
    local_storage: bool = True
    warning: str = ""  # what the machine lacks, though the node can be ready


def default_labels(hostname: str, architecture: str) -> dict[str, str]:
    """The labels every node has; `architecture` by Go's name."""
    return {
        "kubernetes.io/hostname": hostname,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": architecture,
    }


def node_profile(
    flags: KubeletFlags,
    config: KubeletConfiguration,
    gates: FeatureGates,
    *,
    name: str,
    facts: MachineFacts,
    system: SystemFacts,
    version: str,
) -> NodeProfile:
    """The profile of a configuration on a machine. Raises ValueError for one that cannot be."""
    if flags.cloud_provider not in ("", "external"):
        raise ValueError(f"--cloud-provider={flags.cloud_provider}: must be external or empty")
    capacity = capacity_of(facts, config)
    ignore = flags.experimental_allocatable_ignore_eviction
    if problem := reservation_problem(capacity, config, ignore_eviction=ignore):
        raise ValueError(problem)
    external = flags.cloud_provider == "external"
    declares = gates.enabled("NodeDeclaredFeatures")
    return NodeProfile(
        name=name,
        system=system,
        capacity=capacity,
        allocatable=node_allocatable(capacity, config, ignore_eviction=ignore),
        labels={**default_labels(name, system.architecture), **flags.node_labels},
        taints=_taints(config, external),
        annotations={ATTACH_DETACH_ANNOTATION: "true"} if config.enable_controller_attach_detach else {},
        node_ips=parse_node_ip_flag(flags.node_ip),
        external_cloud=external,
        register=bool(config.register_node),
        adopts_if_forbidden=not gates.enabled("KubeletRegistrationGetOnExistsOnly"),
        provider_id=config.provider_id,
        port=config.port,
        max_images=config.node_status_max_images,
        swap=facts.swap if gates.enabled("NodeSwap") else 0,
        version=version,
        declared_features=tuple(f for f in _DECLARABLE if gates.enabled(f)) if declares else None,
        declares_host_users=gates.enabled(_NEEDS_RUNTIME),
        shows_features=gates.enabled("SupplementalGroupsPolicy"),
        local_storage=bool(config.local_storage_capacity_isolation),
        warning="" if facts.cpu_quota else "CPU hardcapping unsupported",
    )


def declared_features(profile: NodeProfile, *, host_users: bool) -> list[str] | None:
    """The features to declare; `host_users`: the runtime has user namespaces with the host's network."""
    if profile.declared_features is None:
        return None
    extra = (_NEEDS_RUNTIME,) if profile.declares_host_users and host_users else ()
    return sorted((*profile.declared_features, *extra))


def _taints(config: KubeletConfiguration, external_cloud: bool) -> tuple[v1.Taint, ...]:
    given = tuple(
        v1.Taint(key=t.key, value=t.value, effect=t.effect, time_added=t.time_added)
        for t in config.register_with_taints
    )
    if not external_cloud:
        return given
    return (*given, v1.Taint(key=EXTERNAL_CLOUD_TAINT, value="true", effect="NoSchedule"))
