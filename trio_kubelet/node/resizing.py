"""What of a node's configuration keeps resizes of running pods from being made."""

from __future__ import annotations

from trio_kubelet.config.gates import FeatureGates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.pods.resize.rules import ResizeRules
from trio_kubelet.runtime.configs.resources import may_swap


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
