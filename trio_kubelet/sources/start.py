"""Starts the configured sources, each under its own supervision: a failing one never disturbs the others.

What only some nodes need (httpx) is imported when it is configured; a node with manifests alone does not pay
for it.
"""

from __future__ import annotations

import trio

from trio_kubelet.common.supervise import keep_running
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.gates import resolve_gates
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.podinfo.updates import FILE_SOURCE, HTTP_SOURCE
from trio_kubelet.sources.file import FileSource
from trio_kubelet.sources.podconfig import PodConfig


def start_sources(
    nursery: trio.Nursery,
    pod_config: PodConfig,
    node_name: str,
    flags: KubeletFlags,
    config: KubeletConfiguration,
) -> None:
    """Starts the sources of the node itself and what merges all of them."""
    host_network_users = resolve_gates(config.feature_gates).enabled("UserNamespacesHostNetworkSupport")
    if config.static_pod_path:
        channel = pod_config.channel(FILE_SOURCE)
        file = FileSource(
            config.static_pod_path,
            node_name,
            config.file_check_frequency,
            channel,
            host_network_users=host_network_users,
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
            host_network_users=host_network_users,
        )
        nursery.start_soon(keep_running, "URL source", url.run)
    nursery.start_soon(pod_config.run)
