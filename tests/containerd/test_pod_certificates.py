"""A cluster's pod that reads trust bundles and a certificate of its own, on a real runtime."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, Node, container, wait_until
from tests.containerd.scenes import until_nothing_left
from tests.containerd.test_pod_objects import REFRESH_SECONDS, Cluster, read, until_read
from tests.kube.pod_signer import REQUESTS, PodSigner
from trio_kubelet.kube.certificates.files import certificate_block

GATES = "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,PodCertificateRequest=true"
SOURCES: list[dict[str, Any]] = [
    {"clusterTrustBundle": {"name": "b", "path": "anchors.pem"}},
    {
        "podCertificate": {
            "signerName": "example.com/s",
            "keyType": "ECDSAP256",
            "credentialBundlePath": "bundle.pem",
            "certificateChainPath": "chain.pem",
        }
    },
]
VOLUME = {"name": "v", "projected": {"sources": SOURCES}}
MOUNT = {"name": "v", "mountPath": "/v"}


def anchors(content: str) -> str:
    return certificate_block(content.encode()).decode()


async def key_in(node: Node, signer: PodSigner) -> str:
    """The key a container reads, which has to be that of the certificate behind it."""
    text = await read(node, "p", "/v/bundle.pem")
    key, chain = text[: text.index("-----BEGIN CERTIFICATE")], text[text.index("-----BEGIN CERTIFICATE") :]
    leaf, issuer = x509.load_pem_x509_certificates(chain.encode())
    assert serialization.load_pem_private_key(key.encode(), None).public_key() == leaf.public_key()
    leaf.verify_directly_issued_by(issuer)
    assert issuer == x509.load_pem_x509_certificate(signer.ca.pem)
    return key


async def test_trust_bundles_and_certificates_reach_containers(new_node: NewNode, tmp_path: Path) -> None:
    cluster = Cluster()
    signer = PodSigner(cluster.server, cluster.server.clock, lifetime=24 * 3600)
    put = partial(cluster.store.create, "clustertrustbundles", "")
    put({"metadata": {"name": "b"}, "spec": {"trustBundle": anchors("one")}})
    async with new_node() as node, cluster.serving(node, tmp_path) as config, trio.open_nursery() as nursery:
        nursery.start_soon(signer.run)
        agent = await node.start_agent(f"--kubeconfig={config}", "-v=10", GATES)
        made = cluster.pod(node, "p", container("a", volumeMounts=[MOUNT]), volumes=[VOLUME])
        uid, full_name = made["metadata"]["uid"], made["metadata"]["name"]
        await node.wait_running("p", "a")
        (first,) = await node.running("p", "a")
        assert await read(node, "p", "/v/anchors.pem") == anchors("one")
        keys = [await key_in(node, signer)]

        new = {"spec": {"trustBundle": anchors("two")}}
        cluster.store.patch("clustertrustbundles", "", "b", new, False)
        took = await until_read(node, "p", "/v/anchors.pem", anchors("two"), 10)
        assert took <= REFRESH_SECONDS * PATIENCE

        chain = await read(node, "p", "/v/chain.pem")
        await node.kill_agent()
        second = await node.start_agent(f"--kubeconfig={config}", "-v=10", GATES)

        async def renewed() -> bool:
            with suppress(AssertionError):  # a reader may hold the old directory while it goes
                return await read(node, "p", "/v/chain.pem") != chain
            return False

        await wait_until(renewed, 60, "the agent that knows no key any more got a new certificate")
        keys.append(await key_in(node, signer))
        assert keys[0] != keys[1]
        assert len(signer.requests()) == 2
        assert [c.id for c in await node.running("p", "a")] == [first.id]
        said = [agent.log_text(), second.log_text(), await node.metrics(), json.dumps(await node.pods())]
        secret = [line for key in keys for line in key.splitlines() if not line.startswith("-")]
        assert not [line for line in secret for page in said if line in page]
        assert 'kubelet_podcertificate_states{signer_name="example.com/s",state="fresh"} 1' in said[2]

        cluster.store.delete("pods", "default", full_name, {"gracePeriodSeconds": 1})
        await wait_until(lambda: cluster.shown(full_name) is None, 30, "the pod is deleted")
        await until_nothing_left(node, "p", uid)
        followed = {"clustertrustbundles", REQUESTS}
        await wait_until(
            lambda: not followed & {watch._wanted.resource for watch in cluster.server.watches},
            10,
            "nothing is followed any more",
        )
        nursery.cancel_scope.cancel()


async def test_with_the_gates_off_the_volume_fails_with_the_kubelets_words(
    new_node: NewNode, tmp_path: Path
) -> None:
    cluster = Cluster()
    async with new_node() as node, cluster.serving(node, tmp_path) as config:
        await node.start_agent(f"--kubeconfig={config}")
        cluster.pod(node, "p", container("a", volumeMounts=[MOUNT]), volumes=[VOLUME])
        message = (
            'MountVolume.SetUp failed for volume "v" : '
            "[ClusterTrustBundle projection is not supported in static kubelet mode, unimplemented]"
        )
        await wait_until(lambda: message in cluster.events("FailedMount"), 20, "FailedMount")
        assert not any("certificates.k8s.io" in request.path for request in cluster.server.requests)
