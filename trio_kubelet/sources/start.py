"""Starts the configured sources, each under its own supervision: a failing one never disturbs the others.

What only some nodes need (httpx, WebSockets) is imported when it is configured; a node with manifests alone
does not pay for it.
"""

from __future__ import annotations

import os
from typing import Protocol

import trio

from trio_kubelet.api.v1 import Node, Pod
from trio_kubelet.clock import Clock
from trio_kubelet.config.flags import KubeletFlags
from trio_kubelet.config.load import ConfigError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.sources.file import FileSource
from trio_kubelet.sources.podconfig import PodConfig
from trio_kubelet.sources.types import API_SOURCE, FILE_SOURCE, HTTP_SOURCE, PodUpdate
from trio_kubelet.supervise import keep_running


class APIPodObserver(Protocol):
    """Follows the pods that the API server shows: the pod start SLI begins there."""

    def seen(self, pod: Pod) -> None:
        """A pod is new or has changed."""
        ...

    def gone(self, pod: Pod) -> None:
        """A pod is not there any more."""
        ...


async def start_sources(
    nursery: trio.Nursery,
    pod_config: PodConfig,
    node_name: str,
    flags: KubeletFlags,
    config: KubeletConfiguration,
    clock: Clock,
    observer: APIPodObserver,
) -> None:
    """Starts the sources and what merges them. Raises ConfigError for a kubeconfig that cannot be used."""
    if config.static_pod_path:
        channel = pod_config.channel(FILE_SOURCE)
        file = FileSource(config.static_pod_path, node_name, config.file_check_frequency, channel)
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
        )
        nursery.start_soon(keep_running, "URL source", url.run)
    if flags.kubeconfig:
        channel = pod_config.channel(API_SOURCE)
        await _start_api_source(nursery, channel, node_name, flags.kubeconfig, clock, observer)
    nursery.start_soon(pod_config.run)


async def _start_api_source(
    nursery: trio.Nursery,
    channel: trio.MemorySendChannel[PodUpdate],
    node_name: str,
    kubeconfig: str,
    clock: Clock,
    observer: APIPodObserver,
) -> None:
    from trio_kubelet.kube.kubeconfig import KubeconfigError, client_config
    from trio_kubelet.kube.network import connect
    from trio_kubelet.kube.reflector import Reflector
    from trio_kubelet.sources.apiserver import APISource

    try:
        client = await trio.to_thread.run_sync(client_config, kubeconfig, dict(os.environ))
    except KubeconfigError as exc:
        raise ConfigError(f"--kubeconfig: {exc}") from exc

    async def follow() -> None:
        async with connect(client, clock) as door, trio.open_nursery() as inner:
            params = {"fieldSelector": f"metadata.name={node_name}"}
            node = Reflector(door, "/api/v1/nodes", Node, params=params)
            inner.start_soon(node.run)
            source = APISource(door, node_name, channel, observed=observer.seen, vanished=observer.gone)
            await source.run(node.synced)

    nursery.start_soon(keep_running, "API server source", follow)
