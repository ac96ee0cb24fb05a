"""The client certificate of a node that gets and keeps its own (`client_plan` says which do).

Asking happens in the background: what runs from manifests does not wait for a cluster. A client certificate
that expires while the agent runs is asked for with the bootstrap credentials again, if there are any.

Imported only where there is such a certificate, for the library costs time and memory.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from trio_kubelet.common.clock import Clock
from trio_kubelet.common.lanes import CERTIFICATES
from trio_kubelet.kube import network
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.request import CLIENT_AUTH, CLIENT_SIGNER, node_template
from trio_kubelet.kube.certificates.rotation import CertificateRotation, Measures, Purpose
from trio_kubelet.kube.certificates.store import PairStore
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.client_plan import PREFIX, ClientPlan, write_kubeconfig
from trio_kubelet.kube.connections import Connections
from trio_kubelet.kube.kubeconfig import ClientConfig, KubeconfigError, read_kubeconfig
from trio_kubelet.kube.metrics import KubeMetrics

LOOK_PERIOD: Final = 600.0


class ClientCertificate:
    """Gets and keeps the client certificate of a managed plan. `load` first, then `run`."""

    def __init__(
        self,
        plan: ClientPlan,
        connections: Connections,
        node_name: str,
        clock: Clock,
        metrics: KubeMetrics,
    ) -> None:
        self._plan = plan
        self._connections = connections
        self._clock = clock
        config = plan.config
        given = PairFiles(config.client_certificate.file, config.client_key.file)
        self._store = PairStore(plan.cert_dir, PREFIX, given if given.certificate and given.key else None)
        template = node_template(node_name)
        self.rotation = CertificateRotation(
            purpose=Purpose(
                name=CLIENT_SIGNER,
                signer=CLIENT_SIGNER,
                usage=CLIENT_AUTH,
                look_period=LOOK_PERIOD,
                first_key=os.path.join(plan.cert_dir, f"{PREFIX}.key.tmp"),
            ),
            store=self._store,
            template=lambda: template,
            client=self._client,
            deliver=connections.use_certificate,
            clock=clock,
            measures=Measures(metrics.client_renew_errors.inc),
        )
        if plan.managed:
            metrics.client_ttl.set_function(self.rotation.seconds_left)

    async def load(self) -> None:
        """Takes what is there as identity. Raises OSError when it cannot be read."""
        if not self._plan.managed:
            return
        await self.rotation.load()
        inline = self._plan.config.client_certificate.data, self._plan.config.client_key.data
        if not self.rotation.valid and all(inline):
            # kubeadm hands a mighty certificate over this way; it is replaced at once.
            await CERTIFICATES.run(self._store.update, *inline, self._clock.now_ns())
            await self.rotation.load()
            self.rotation.must_rotate_now()
        stored = self.rotation.stored
        await self._connections.use_certificate(stored.files if stored else self._store.current_files)

    async def run(self) -> None:
        """Gets a certificate when there is none, then keeps it current; returns when that is not wanted."""
        if not self._plan.managed:
            return
        if self._plan.rotate:
            await self.rotation.run()
        if not self.rotation.valid:
            await self.rotation.rotate()
        if self._plan.write_when_done:
            await CERTIFICATES.run(
                write_kubeconfig, self._plan.config, self._store.current_path, self._plan.kubeconfig
            )

    @asynccontextmanager
    async def _client(self, valid: bool) -> AsyncIterator[KubeClient]:
        """The way to ask: as the node itself if that is possible, else with what bootstrapping offers."""
        if valid:
            yield self._connections.client
            return
        try:
            config = await CERTIFICATES.run(self._ask_with)
        except KubeconfigError as exc:
            raise OSError(str(exc)) from exc
        async with network.connect(config, self._clock) as door:
            yield KubeClient(door)

    def _ask_with(self) -> ClientConfig:
        """Read each time: the file may hold a new token by now."""
        path = self._plan.bootstrap if os.path.exists(self._plan.bootstrap) else self._plan.kubeconfig
        return read_kubeconfig(path)
