"""How this node comes to its cluster: connections with the identity that flags and files give it.

Apart from `cluster`, because this knows files, environment and network, and because only a node with an API
server needs to import it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from trio_kubelet.base import Base
from trio_kubelet.cluster import Cluster
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.config.load import ConfigurationError
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.devices.values import Counts
from trio_kubelet.kube.bootstrap import ClientCertificate, plan_client
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.request import Template, serving_template
from trio_kubelet.kube.certificates.rotation import ServingRotation, serving_store
from trio_kubelet.kube.certificates.serving import ServingCertificate
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.connections import Connections, RateLimits, open_connections
from trio_kubelet.kube.kubeconfig import KubeconfigError
from trio_kubelet.kube.metrics import KubeMetrics
from trio_kubelet.node.doors import PressureDoor
from trio_kubelet.node.own_node import OwnNode
from trio_kubelet.node.runtime_health import RuntimeHealth
from trio_kubelet.pods.manager import PodManager


class Membership:
    """A node's standing in its cluster; `certificate.run` gets and keeps the client certificate."""

    def __init__(
        self,
        *,
        base: Base,
        connections: Connections,
        certificate: ClientCertificate,
        metrics: KubeMetrics,
    ) -> None:
        self.certificate = certificate
        self._base = base
        self._connections = connections
        self._metrics = metrics

    @property
    def client(self) -> KubeClient:
        """Asks the API server."""
        return self._connections.client

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
        base, config = self._base, self._base.config
        dns_only = base.gates.enabled("AllowDNSOnlyNodeCSR")

        def template() -> Template | None:
            addresses = own.node.status.addresses or () if own.node else ()
            return serving_template(base.profile.name, addresses, dns_only)

        rotation = ServingRotation(
            serving,
            self.client,
            template,
            serving_store(base.flags.cert_dir, PairFiles(config.tls_cert_file, config.tls_private_key_file)),
            base.clock,
            self._metrics,
        )
        try:
            await rotation.load()
        except OSError as exc:
            raise ConfigurationError(f"the serving certificate cannot be used: {exc}") from exc
        return rotation


@asynccontextmanager
async def open_membership(base: Base) -> AsyncIterator[Membership]:
    """The membership that flags ask for. Raises ConfigurationError for files that cannot be used."""
    flags, config, metrics = base.flags, base.config, KubeMetrics(base.registry)
    try:
        plan = await CERTIFICATES.run(
            plan_client,
            flags.kubeconfig,
            flags.bootstrap_kubeconfig,
            flags.cert_dir,
            config.rotate_certificates,
            base.clock.now_ns(),
            dict(os.environ),
        )
    except KubeconfigError as exc:
        raise ConfigurationError(f"--kubeconfig: {exc}") from exc
    async with open_connections(plan.config, base.clock, limits(config), metrics) as connections:
        certificate = ClientCertificate(plan, connections, base.profile.name, base.clock, metrics)
        try:
            await certificate.load()
        except OSError as exc:
            raise ConfigurationError(f"the client certificate cannot be used: {exc}") from exc
        yield Membership(base=base, connections=connections, certificate=certificate, metrics=metrics)


def limits(config: KubeletConfiguration) -> RateLimits:
    """How often the API server may be asked."""
    return RateLimits(
        api_qps=config.kube_api_qps,
        api_burst=config.kube_api_burst,
        event_qps=config.event_record_qps,
        event_burst=config.event_burst,
    )
