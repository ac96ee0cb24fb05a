"""What pods may have where that is a matter of feature gates."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from trio_kubelet.api import v1
from trio_kubelet.api.containers import is_sidecar, regular_containers


class PodRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which features pods may use, each with the gate that decides; the defaults are those of v1.36."""

    deletion_cost: bool = True  # PodDeletionCost
    pod_resources: bool = True  # PodLevelResources
    restart_rules: bool = True  # ContainerRestartRules
    restart_all: bool = True  # RestartAllContainersOnContainerExits
    host_network_users: bool = False  # UserNamespacesHostNetworkSupport
    comparing_tolerations: bool = False  # TaintTolerationComparisonOperators
    merged_label_keys: bool = True  # MatchLabelKeysInPodTopologySpreadSelectorMerge
    mount_option: bool = False  # SELinuxMount
    strict_addresses: bool = True  # StrictIPCIDRValidation
    env_files: bool = True  # EnvFiles
    api_references: bool = False  # of static pods, with PreventStaticPodAPIReferences switched off


DEFAULT_RULES: Final = PodRules()


def heeded(pod: v1.Pod, rules: PodRules) -> v1.Pod:
    """The pod without what a node that has these rules does not heed.

    Where restart rules are off, a container has the policy of its pod, but for sidecars. A pod that wants all
    of its containers started again is as it was: it is refused by a node that does not declare that.
    """
    if rules.restart_rules or any(
        rule.action == "RestartAllContainers"
        for container in regular_containers(pod.spec)
        for rule in container.restart_policy_rules or ()
    ):
        return pod

    def plain(container: v1.Container, policy: str | None = None) -> v1.Container:
        return replace(container, restart_policy=policy, restart_policy_rules=None)

    spec = replace(
        pod.spec,
        containers=[plain(each) for each in pod.spec.containers or ()],
        init_containers=[
            plain(each, "Always" if is_sidecar(each) else None) for each in pod.spec.init_containers or ()
        ]
        or None,
    )
    return replace(pod, spec=spec)
