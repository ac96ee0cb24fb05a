"""How this node comes to its cluster: connections with the identity that flags and files give it.

Apart from `cluster`, because this knows files, environment and network, and because only a node with an API
server needs to import it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from trio_kubelet.base import Base
from trio_kubelet.cluster import Cluster
from trio_kubelet.common.go_words import error_words
from trio_kubelet.common.lanes import CERTIFICATES, NODE_FILES
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.devices.values import Counts
from trio_kubelet.dra.api import ClusterClaims
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.client_plan import ClientPlan, plan_client
from trio_kubelet.kube.connections import Connections, RateLimits, closing
from trio_kubelet.kube.doors import RequestSpan
from trio_kubelet.kube.kubeconfig import KubeconfigError
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.node.doors import PressureDoor
from trio_kubelet.node.own_node import OwnNode
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.pods.manager import PodManager

if TYPE_CHECKING:  # imported with the library for certificates, where one is looked into
    from trio_kubelet.kube.bootstrap import ClientCertificate
    from trio_kubelet.kube.certificates.request import Template
    from trio_kubelet.kube.certificates.rotation import ServingRotation
    from trio_kubelet.kube.certificates.serving import ServingCertificate


class Membership:
    """A node's standing in its cluster: `read_kubeconfig`, then `join`; `keep_certificate` keeps it."""

    def __init__(self, *, base: Base, connections: Connections, metrics: KubeMetrics) -> None:
        self._base = base
        self._plan: ClientPlan | None = None
        self._connections = connections
        self._metrics = metrics
        self._certificate: ClientCertificate | None = None

    async def read_kubeconfig(self) -> None:
        """Finds out who the node is to be. Raises ConfigurationError for a kubeconfig that cannot be used.

        For beside what waits for the runtime: most of it is the import of YAML, in a thread. Whether a node
        with bootstrap credentials needs them is found out when it joins: the library for certificates has to
        be imported for that.
        """
        if not self._base.flags.bootstrap_kubeconfig:
            self._plan = await plan_for(self._base)

    async def join(self) -> None:
        """Opens the connections as who the node is. Raises ConfigurationError for files that cannot be used,
        OSError for an unusable exec plugin.
        """
        plan = self._plan or await plan_for(self._base)
        await self._connections.open(plan.config)
        if not plan.managed:
            return
        base = self._base
        bootstrap = await NODE_FILES.run(import_module, "trio_kubelet.kube.bootstrap")
        name = base.profile.name
        certificate = bootstrap.ClientCertificate(plan, self._connections, name, base.clock, self._metrics)
        try:
            await certificate.load()
        except OSError as exc:
            raise ConfigurationError(f"the client certificate cannot be used: {error_words(exc)}") from exc
        self._certificate = certificate

    async def keep_certificate(self) -> None:
        """Gets the client certificate if there is none, and keeps it current; returns if it is not ours."""
        if self._certificate is not None:
            await self._certificate.run()

    @property
    def client(self) -> KubeClient:
        """Asks the API server."""
        return self._connections.client

    @property
    def claims(self) -> ClusterClaims:
        """The cluster's resource claims."""
        return ClusterClaims(self.client, self._base.machine.node.node_name)

    def cluster(
        self,
        *,
        pods: PodManager,
        health: RuntimeHealth,
        pressure: PressureDoor,
        devices: Callable[[], Counts],
        errors: Callable[[], Sequence[str]],
    ) -> Cluster:
        """The API server's side of the agent on this machine."""
        base = self._base
        return Cluster(
            self._connections,
            pods=pods,
            config=base.config,
            gates=base.gates,
            root_dir=base.flags.root_dir,
            profile=base.profile,
            pressure=pressure,
            runtime=base.services.runtime,
            images=base.services.images,
            health=health,
            recorder=base.recorder,
            clock=base.clock,
            registry=base.registry,
            metrics=self._metrics,
            booted_ns=base.machine.booted_ns,
            providers=base.providers,
            devices=devices,
            errors=errors,
        )

    async def serving_rotation(self, serving: ServingCertificate, own: OwnNode) -> ServingRotation:
        """Who gets `serving` signed by the cluster (`serverTLSBootstrap`). Raises ConfigurationError."""
        from trio_kubelet.kube.certificates.request import serving_template
        from trio_kubelet.kube.certificates.rotation import ServingRotation, serving_store

        base, config = self._base, self._base.config
        dns_only = base.gates.enabled("AllowDNSOnlyNodeCSR")

        def template() -> Template | None:
            addresses = own.node.status.addresses or () if own.node else ()
            return serving_template(base.profile.name, addresses, dns_only)

        rotation = ServingRotation(
            serving=serving,
            client=self.client,
            template=template,
            store=serving_store(
                base.flags.cert_dir, PairFiles(config.tls_cert_file, config.tls_private_key_file)
            ),
            clock=base.clock,
            metrics=self._metrics,
        )
        try:
            await rotation.load()
        except OSError as exc:
            raise ConfigurationError(f"the serving certificate cannot be used: {error_words(exc)}") from exc
        return rotation


@asynccontextmanager
async def open_membership(base: Base, span: RequestSpan | None) -> AsyncIterator[Membership]:
    """The membership that flags ask for, not yet joined; its requests happen within `span`s."""
    metrics = KubeMetrics(base.registry)
    streams_lists = base.gates.enabled("WatchListClient")
    lanes = Connections(base.clock, limits(base.config), metrics, span=span, streams_lists=streams_lists)
    async with closing(lanes) as connections:
        yield Membership(base=base, connections=connections, metrics=metrics)


async def plan_for(base: Base) -> ClientPlan:
    """How the flags want the node to be somebody. Raises ConfigurationError."""
    flags = base.flags
    try:
        return await CERTIFICATES.run(
            plan_client,
            flags.kubeconfig,
            flags.bootstrap_kubeconfig,
            flags.cert_dir,
            base.config.rotate_certificates,
            base.clock.now_ns(),
            dict(os.environ),
        )
    except KubeconfigError as exc:
        raise ConfigurationError(f"--kubeconfig: {exc}") from exc


def limits(config: KubeletConfiguration) -> RateLimits:
    """How often the API server may be asked."""
    return RateLimits(
        api_qps=config.kube_api_qps,
        api_burst=config.kube_api_burst,
        event_qps=config.event_record_qps,
        event_burst=config.event_burst,
    )
