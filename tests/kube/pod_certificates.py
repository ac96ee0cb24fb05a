"""Pods with certificates, their API server and their signer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.pod_signer import PodSigner
from trio_kubelet.api import v1
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.pod_certificates import NodeIdentity, PodCertificates
from trio_kubelet.podinfo.doors import CredentialBundle, ObjectError
from trio_kubelet.podinfo.recorder import EventRecorder, PodEvent

SIGNER = "example.com/s"
HOUR = 3600


class World:
    def __init__(self, seed: int = 1) -> None:
        self.server = APIServer()
        self.clock = self.server.clock
        self.signer = PodSigner(self.server, self.clock, lifetime=2 * HOUR)
        self.told: list[frozenset[str]] = []
        self.events: list[PodEvent] = []
        recorder = EventRecorder(self.clock)
        recorder.pod_events.listen(self.events.append)
        self.node_uid = "node-uid"
        self.certificates = PodCertificates(
            client=KubeClient(SimulatedDoor(self.server), 10),
            node=NodeIdentity("n", lambda: self.node_uid),
            events=recorder,
            clock=self.clock,
            changed=self.told.append,
            rng=random.Random(seed),
        )
        self.account = self.server.store.create("serviceaccounts", "ns", {"metadata": {"name": "sa"}})

    def register(self, uid: str, *sources: dict[str, Any]) -> v1.Pod:
        pod = a_pod(uid, *sources)
        self.certificates.register(pod)
        return pod

    async def error(self, pod: v1.Pod, index: int = 0) -> str:
        with pytest.raises(ObjectError) as error:
            await self.certificates.read(pod, "v", index)
        return str(error.value)

    def metric(self) -> dict[tuple[str, str], float]:
        registry = CollectorRegistry()
        registry.register(self.certificates)
        return {
            (sample.labels["signer_name"], sample.labels["state"]): sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "kubelet_podcertificate_states"
        }

    @asynccontextmanager
    async def running(self, signer: bool = True) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.certificates.run)
            if signer:
                nursery.start_soon(self.signer.run)
            yield
            nursery.cancel_scope.cancel()


def a_pod(uid: str, *sources: dict[str, Any]) -> v1.Pod:
    wanted = [{"signerName": SIGNER, "keyType": "ED25519", **source} for source in sources or ({},)]
    projected: list[dict[str, Any]] = [{"podCertificate": source} for source in wanted]
    spec = {
        "serviceAccountName": "sa",
        "containers": [{"name": "c"}],
        "volumes": [{"name": "v", "projected": {"sources": projected}}],
    }
    return msgspec.convert({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec}, v1.Pod)


def leaf_of(bundle: CredentialBundle) -> x509.Certificate:
    """The certificate of a bundle, whose key has to be its own."""
    leaf = x509.load_pem_x509_certificates(bundle.chain)[0]
    key = serialization.load_pem_private_key(bundle.key, None)
    assert key.public_key() == leaf.public_key()
    return leaf
