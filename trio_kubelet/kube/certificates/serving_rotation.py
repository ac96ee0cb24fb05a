"""`serverTLSBootstrap`: the serving certificate comes from the cluster and follows the node's addresses."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from trio_kubelet.common.clock import Clock
from trio_kubelet.kube.certificates.files import PairFiles
from trio_kubelet.kube.certificates.request import SERVER_AUTH, SERVING_SIGNER, Template
from trio_kubelet.kube.certificates.rotation import CertificateRotation, Measures, Purpose
from trio_kubelet.kube.certificates.serving import ServingCertificate
from trio_kubelet.kube.certificates.store import PairStore
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.metrics import KubeMetrics

PREFIX = "kubelet-server"
LOOK_PERIOD = 5.0


class ServingRotation:
    """Hands signed pairs to a `ServingCertificate`. `load` first, then `run`."""

    def __init__(
        self,
        serving: ServingCertificate,
        client: KubeClient,
        template: Callable[[], Template | None],
        store: PairStore,
        clock: Clock,
        metrics: KubeMetrics,
        rng: random.Random | None = None,
    ) -> None:
        """`template`: what a certificate has to say by the node's present addresses."""
        self._serving = serving
        self._kube = client
        self.rotation = CertificateRotation(
            Purpose(name=SERVING_SIGNER, signer=SERVING_SIGNER, usage=SERVER_AUTH, look_period=LOOK_PERIOD),
            store,
            template,
            self._client,
            serving.use,
            clock,
            Measures(metrics.server_renew_errors, metrics.server_rotation),
            rng,
        )
        metrics.server_ttl.set_function(self.rotation.seconds_left)

    async def load(self) -> None:
        """Shows what is stored. Raises OSError when it cannot be read."""
        await self.rotation.load()
        if self.rotation.stored is not None:
            await self._serving.use(self.rotation.stored.files)

    async def run(self) -> None:
        """Rotates until cancelled."""
        await self.rotation.run()

    @asynccontextmanager
    async def _client(self, valid: bool) -> AsyncIterator[KubeClient]:
        yield self._kube


def serving_store(cert_dir: str, given: PairFiles) -> PairStore:
    """Where signed serving certificates are; `given` (tlsCertFile, tlsPrivateKeyFile) serves before them."""
    return PairStore(cert_dir, PREFIX, given if given.certificate and given.key else None)
