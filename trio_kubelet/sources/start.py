"""Starts the configured sources, each under its own supervision: a failing one never disturbs the others.

What only some nodes need (httpx) is imported when it is configured; a node with manifests alone does not pay
for it.
"""

from __future__ import annotations

import trio

from trio_kubelet.api.pod_rules import PodRules
from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import FeatureGates, resolve_gates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.podinfo.updates import FILE_SOURCE, HTTP_SOURCE
from trio_kubelet.sources.file import FileSource
from trio_kubelet.sources.podconfig import PodConfig


def pod_rules(gates: FeatureGates) -> PodRules:
    """What pods may have under these feature gates."""
    return PodRules(
        deletion_cost=gates.enabled("PodDeletionCost"),
        pod_resources=gates.enabled("PodLevelResources"),
        restart_rules=gates.enabled("ContainerRestartRules"),
        restart_all=gates.enabled("RestartAllContainersOnContainerExits"),
        host_network_users=gates.enabled("UserNamespacesHostNetworkSupport"),
        comparing_tolerations=gates.enabled("TaintTolerationComparisonOperators"),
        merged_label_keys=gates.enabled("MatchLabelKeysInPodTopologySpreadSelectorMerge"),
        mount_option=gates.enabled("SELinuxMount"),
        strict_addresses=gates.enabled("StrictIPCIDRValidation"),
        env_files=gates.enabled("EnvFiles"),
        api_references=not gates.enabled("PreventStaticPodAPIReferences"),
    )


def start_sources(
    nursery: trio.Nursery,
    pod_config: PodConfig,
    node_name: str,
    flags: KubeletFlags,
    config: KubeletConfiguration,
) -> None:
    """Starts the sources of the node itself and what merges all of them."""
    rules = pod_rules(resolve_gates(config.feature_gates))
    if config.static_pod_path:
        channel = pod_config.channel(FILE_SOURCE)
        file = FileSource(
            config.static_pod_path,
            node_name,
            config.file_check_frequency,
            channel,
            rules=rules,
        )
        nursery.start_soon(keep_running, "file source", file.run)
    if config.static_pod_url:
        from trio_kubelet.sources.http import http_source

        url = http_source(
            config.static_pod_url,
            config.static_pod_url_header,
            node_name,
            config.http_check_frequency,
            pod_config.channel(HTTP_SOURCE),
            flags.manifest_url_ca_file,
            rules=rules,
        )
        nursery.start_soon(keep_running, "URL source", url.run)
    nursery.start_soon(pod_config.run)
