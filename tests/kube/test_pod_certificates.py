"""Certificates of pods at a test API server, with a signer that has its moods; virtual time."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.kube.pod_certificates import HOUR, SIGNER, World, leaf_of
from tests.kube.store import Tree
from tests.kube.test_reflector import eventually
from tests.shapes import SHAPES
from trio_kubelet.api.timestamps import parse_rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube import pod_certificate_states as states
from trio_kubelet.kube.certificates.request import new_key
from trio_kubelet.kube.pod_certificates import PodCertificates


async def test_what_is_asked_of_the_signer(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    async with world.running():
        more = {"maxExpirationSeconds": 3600, "userAnnotations": {"example.com/a": "b"}}
        pod = world.register("u", {"keyType": "ECDSAP256", **more})
        await world.certificates.read(pod, "v", 0)
        body: Tree = json.loads(next(r.body for r in world.server.requests if r.method == "POST"))
        proof = base64.b64decode(body["spec"].pop("stubPKCS10Request"))
        assert body == {
            "apiVersion": "certificates.k8s.io/v1beta1",
            "kind": "PodCertificateRequest",
            "metadata": {
                "namespace": "ns",
                "generateName": "req-",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "u", "uid": "u"}],
            },
            "spec": {
                "signerName": SIGNER,
                "podName": "u",
                "podUID": "u",
                "serviceAccountName": "sa",
                "serviceAccountUID": world.account["metadata"]["uid"],
                "nodeName": "n",
                "nodeUID": "node-uid",
                "maxExpirationSeconds": 3600,
                "unverifiedUserAnnotations": {"example.com/a": "b"},
            },
        }
        csr = x509.load_der_x509_csr(proof)
        assert csr.is_signature_valid
        assert (list(csr.subject), list(csr.extensions), list(csr.attributes)) == ([], [], [])


@pytest.mark.parametrize(
    ("key_type", "fits"),
    [
        ("RSA3072", lambda key: isinstance(key, rsa.RSAPrivateKey) and key.key_size == 3072),
        ("RSA4096", lambda key: isinstance(key, rsa.RSAPrivateKey) and key.key_size == 4096),
        ("ECDSAP256", lambda key: isinstance(key.curve, ec.SECP256R1)),
        ("ECDSAP384", lambda key: isinstance(key.curve, ec.SECP384R1)),
        ("ECDSAP521", lambda key: isinstance(key.curve, ec.SECP521R1)),
        ("ED25519", lambda key: isinstance(key, ed25519.Ed25519PrivateKey)),
    ],
)
def test_types_of_keys(key_type: str, fits: Callable[[Any], bool]) -> None:
    made = new_key(key_type)
    assert made.key.startswith(b"-----BEGIN PRIVATE KEY-----\n")
    key = serialization.load_pem_private_key(made.key, None)
    assert fits(key)
    csr = x509.load_der_x509_csr(made.proof)
    assert csr.is_signature_valid
    assert csr.public_key() == key.public_key()
    assert "PRIVATE" not in repr(made)
    with pytest.raises(ValueError, match=r'^unknown key type "DSA"$'):
        new_key("DSA")


async def test_issued_and_told(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    async with world.running():
        pod = world.register("u", {}, {"keyType": "ECDSAP256"})
        world.certificates.register(pod)
        bundles = [await world.certificates.read(pod, "v", index) for index in (0, 1)]
        leaves = [leaf_of(bundle) for bundle in bundles]
        assert leaves[0].public_key() != leaves[1].public_key()
        for bundle in bundles:
            lines = bundle.chain.splitlines()
            assert lines[0] == b"-----BEGIN CERTIFICATE-----"
            assert len(x509.load_pem_x509_certificates(bundle.chain)) == 2
            assert b"leaf" not in lines
        await eventually(lambda: world.told == [frozenset({"u"})] * 2, 1)
        assert len(world.signer.requests()) == 2
        assert world.events == []
        assert world.metric() == {(SIGNER, "fresh"): 2}


async def test_a_reader_waits_a_moment_and_its_pod_is_told_when_it_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.signer.verdict = ""
    async with world.running():
        pod = world.register("u")
        began = trio.current_time()
        assert await world.error(pod) == "credential bundle is not issued yet"
        assert trio.current_time() - began == pytest.approx(5)
        assert world.metric() == {(SIGNER, "not_yet_issued"): 1}
        assert world.told == []
        world.signer.verdict = "Issued"
        await eventually(lambda: world.told == [frozenset({"u"})], 2)
        began = trio.current_time()
        leaf_of(await world.certificates.read(pod, "v", 0))
        assert trio.current_time() == began


@pytest.mark.parametrize(("verdict", "words"), [("Denied", "was denied"), ("Failed", "failed")])
async def test_a_refusal_is_told_and_final(
    autojump_clock: trio.testing.MockClock, verdict: str, words: str
) -> None:
    world = World()
    world.signer.verdict = verdict
    async with world.running():
        pod = world.register("u")
        assert await world.error(pod) == (
            f'PodCertificateRequest was permanently {verdict.lower()}: reason="Test" message="so \\"it\\" is"'
        )
        (event,) = world.events
        (request,) = world.signer.requests()
        assert (event.pod.metadata.uid, event.type, event.reason) == ("u", "Warning", verdict)
        assert event.message == (
            f"PodCertificateRequest ns/{request['metadata']['name']} {words}, "
            'reason="Test", message="so \\"it\\" is"'
        )
        assert world.told == [frozenset({"u"})]
        world.signer.verdict = "Issued"
        await trio.sleep(3 * HOUR)
        assert len(world.signer.requests()) == 1
        assert world.metric() == {(SIGNER, verdict.lower()): 1}


async def test_renewed_again_and_again_with_a_new_key_each_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with world.running():
        pod = world.register("u")
        first = await world.certificates.read(pod, "v", 0)
        keys = {first.key}
        end = trio.current_time() + 8 * HOUR
        while trio.current_time() < end:
            await trio.sleep(60)
            bundle = await world.certificates.read(pod, "v", 0)
            leaf = leaf_of(bundle)
            assert leaf.not_valid_after_utc.timestamp() > world.clock.now_ns() / NANOSECONDS
            keys.add(bundle.key)
        asked = [parse_rfc3339(r["metadata"]["creationTimestamp"]) for r in world.signer.requests()]
        assert len(asked) == len(keys) == len(world.told) == 8  # every hour and a little
        assert world.events == []
        periods = {(b - a) // NANOSECONDS for a, b in itertools.pairwise(asked)}
        assert len(periods) > 1
        assert all(HOUR <= period <= HOUR + 310 for period in periods)


async def test_a_renewal_that_is_overdue_and_a_certificate_that_ends_are_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with world.running():
        pod = world.register("u")
        first = await world.certificates.read(pod, "v", 0)
        world.signer.verdict = ""
        await trio.sleep(HOUR)
        assert world.events == []
        await trio.sleep(16 * 60)
        assert [(e.type, e.reason, e.message) for e in world.events] == [
            ("Warning", "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
        ]
        assert world.metric() == {(SIGNER, "overdue_for_refresh"): 1}
        await trio.sleep(HOUR)
        assert [e.reason for e in world.events][1:] == ["CertificateExpired"]
        assert world.events[1].message == "PodCertificate expired"
        assert world.metric() == {(SIGNER, "expired"): 1}
        assert await world.certificates.read(pod, "v", 0) == first
        world.signer.verdict = "Issued"
        await eventually(lambda: len(world.told) == 2, 2)
        assert await world.certificates.read(pod, "v", 0) != first
        assert world.metric() == {(SIGNER, "fresh"): 1}
        assert len(world.events) == 2


async def test_one_watch_while_there_are_pods_with_certificates(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with world.running():
        await trio.sleep(1)
        assert world.server.requests == []
        pods = [world.register(uid) for uid in ("a", "b", "c")]
        for pod in pods:
            await world.certificates.read(pod, "v", 0)
        assert len(world.server.watches) == 1
        queries = {r.target for r in world.server.requests if r.first("watch")}
        assert all("fieldSelector=spec.nodeName%3Dn" in query for query in queries)
        for uid in ("a", "b"):
            world.certificates.unregister(uid)
        await trio.sleep(1)
        assert len(world.server.watches) == 1
        world.certificates.unregister("c")
        world.certificates.unregister("c")
        await eventually(lambda: not world.server.watches, 1)
        assert world.metric() == {}
        assert await world.error(pods[0]) == "no credentials yet for key={ns a a v 0}"
        again = world.register("d")
        leaf_of(await world.certificates.read(again, "v", 0))


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_one_pods_certificate_raises_the_others_have_theirs(
    shape: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, after_news = PodCertificates._create, states.after_news
    senseless: set[str] = set()

    async def bad_create(self: PodCertificates, projection: Any) -> states.PendingRequest:
        if projection.key.uid == "no-key":
            raise SHAPES[shape]()
        asked = await create(self, projection)
        if projection.key.uid == "no-sense":
            senseless.add(asked.name)
        return asked

    def bad_news(state: states.CertificateState, found: Any, now_ns: int, chance: float) -> Any:
        if state.asked is not None and state.asked.name in senseless:
            raise SHAPES[shape]()
        return after_news(state, found, now_ns, chance)

    monkeypatch.setattr(PodCertificates, "_create", bad_create)
    monkeypatch.setattr(states, "after_news", bad_news)
    world = World()
    async with world.running():
        bad = [world.register("no-key"), world.register("no-sense")]
        await trio.sleep(10)
        leaf_of(await world.certificates.read(world.register("good"), "v", 0))
        for pod in bad:
            assert await world.error(pod) == "credential bundle is not issued yet"
