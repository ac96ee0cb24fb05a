"""Certificates of pods at a test API server, with a signer that has its moods; virtual time."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import random
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from prometheus_client import CollectorRegistry

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.pod_signer import REQUESTS, PodSigner
from tests.kube.store import Refused, Tree
from tests.kube.test_reflector import eventually
from trio_kubelet import log
from trio_kubelet.api import v1
from trio_kubelet.clock import NANOSECONDS
from trio_kubelet.events import EventRecorder, PodEvent
from trio_kubelet.kube.certificates import pod_keys
from trio_kubelet.kube.certificates.pod_keys import new_key
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.pod_certificates import NodeIdentity, PodCertificates
from trio_kubelet.volumes.objects import CredentialBundle, ObjectError

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
        recorder.listen(self.events.append)
        self.node_uid = "node-uid"
        self.certificates = PodCertificates(
            KubeClient(SimulatedDoor(self.server), 10),
            NodeIdentity("n", lambda: self.node_uid),
            recorder,
            self.clock,
            self.told.append,
            random.Random(seed),
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
        renewed_at = []
        now = trio.current_time()
        while trio.current_time() < now + 8 * HOUR:
            await trio.sleep(60)
            bundle = await world.certificates.read(pod, "v", 0)
            leaf = leaf_of(bundle)
            assert leaf.not_valid_after_utc.timestamp() > world.clock.now_ns() / NANOSECONDS
            if bundle.key not in keys:
                keys.add(bundle.key)
                renewed_at.append(trio.current_time())
        assert len(renewed_at) == 7  # every hour and a little
        assert len(world.told) == 8
        assert world.events == []
        periods = {round(b - a) for a, b in itertools.pairwise(renewed_at)}
        assert len(periods) > 1
        assert all(HOUR <= period <= HOUR + 300 + 60 for period in periods)


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


async def test_a_request_that_was_deleted_is_made_again(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.signer.verdict = ""
    async with world.running():
        pod = world.register("u")
        await eventually(lambda: len(world.signer.requests()) == 1, 2)
        (request,) = world.signer.requests()
        world.server.store.delete(REQUESTS, "ns", request["metadata"]["name"])
        await trio.sleep(590)
        assert world.signer.requests() == []
        world.signer.verdict = "Issued"
        await eventually(lambda: len(world.signer.requests()) == 1, 330)
        leaf_of(await world.certificates.read(pod, "v", 0))


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


async def test_a_pod_that_goes_while_its_request_is_made_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.server.latency = 1.0
    async with world.running():
        pod = world.register("u")
        await trio.sleep(1.5)
        world.certificates.unregister("u")
        await trio.sleep(60)
        assert world.metric() == {}
        assert world.told == []
        assert not world.server.watches
        assert await world.error(pod) == "no credentials yet for key={ns u u v 0}"


@pytest.mark.parametrize("trouble", ["no account", "no node", "refused", "away"])
async def test_what_cannot_be_asked_is_asked_again_with_back_off(
    autojump_clock: trio.testing.MockClock, trouble: str
) -> None:
    world = World()
    if trouble == "no account":
        world.server.store.delete("serviceaccounts", "ns", "sa")
    elif trouble == "no node":
        world.node_uid = ""
    elif trouble == "refused":
        world.server.refuse = lambda r: Refused(403, "Forbidden", "no") if r.method == "POST" else None
    else:
        world.server.down = True
    async with world.running():
        pod = world.register("u")
        assert await world.error(pod) == "credential bundle is not issued yet"
        world.server.requests.clear()
        await trio.sleep(3600)
        tries = [r for r in world.server.requests if "serviceaccounts" in r.path]
        assert 90 <= len(tries) <= 125  # every half minute and a little
        if trouble == "no account":
            world.server.store.create("serviceaccounts", "ns", {"metadata": {"name": "sa"}})
        world.node_uid = "node-uid"
        world.server.refuse = lambda r: None
        world.server.down = False
        world.certificates.hurry()
        await eventually(lambda: world.told == [frozenset({"u"})], 3)
        leaf_of(await world.certificates.read(pod, "v", 0))


async def test_an_answer_without_dates_is_waited_over(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    async with world.running(signer=False):
        pod = world.register("u")
        await eventually(lambda: len(world.signer.requests()) == 1, 2)
        (request,) = world.signer.requests()
        conditions = [{"type": "Issued", "status": "True"}]
        world.server.store.set_status(REQUESTS, "ns", request["metadata"]["name"], conditions=conditions)
        assert await world.error(pod) == "credential bundle is not issued yet"
        world.signer.decide(request)
        leaf_of(await world.certificates.read(pod, "v", 0))


async def test_no_key_is_logged(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary in place of the key is nowhere in what is said, whatever goes wrong."""
    said = io.StringIO()
    log.configure(verbosity=10, stream=said)
    canary = b"-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----\n"
    make = pod_keys.new_key
    monkeypatch.setattr(pod_keys, "new_key", lambda kind: pod_keys.KeyAndProof(canary, make(kind).proof))
    world = World()
    texts: list[str] = []
    async with world.running():
        pods = [world.register("u", {}, {"keyType": "none"})]
        assert (await world.certificates.read(pods[0], "v", 0)).key == canary
        try:
            await world.certificates.read(pods[0], "v", 1)
        except ObjectError as error:
            texts += traceback.format_exception(error)
        world.signer.verdict = "Denied"
        pods.append(world.register("w"))
        await world.error(pods[1])
        await trio.sleep(3 * HOUR)
        texts += map(repr, world.events)
    log.configure()
    assert "PodCertificateRequest is decided" in said.getvalue()
    assert "canary" not in "".join([*texts, said.getvalue()])


async def _at_once(world: World, pod: v1.Pod) -> None:
    """A bundle that can be had at once is whole."""
    with trio.move_on_after(0.1), contextlib.suppress(ObjectError):
        leaf_of(await world.certificates.read(pod, "v", 0))


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_in_the_end_every_pod_has_its_certificate(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    world = World(seed)
    pods: dict[str, v1.Pod] = {}
    async with world.running():
        for step in range(40):
            match rng.choice(
                ["come", "come", "go", "down", "up", "break", "silent", "mood", "delete", "lose"]
            ):
                case "come":
                    uid = f"u{step}"
                    pods[uid] = world.register(uid, *[{}] * rng.randint(1, 2))
                case "go" if pods:
                    gone = rng.choice(sorted(pods))
                    del pods[gone]
                    world.certificates.unregister(gone)
                case "down":
                    world.server.down = True
                    world.server.break_watches()
                case "up":
                    world.server.down = world.server.silent = world.server.lose_answers = False
                case "break":
                    world.server.break_watches()
                case "silent":
                    world.server.silent = True
                case "lose":
                    world.server.lose_answers = True
                case "mood":
                    world.signer.verdict = rng.choice(["", "Issued"])
                case "delete":
                    for request in world.signer.requests()[:2]:
                        world.server.store.delete(REQUESTS, "ns", request["metadata"]["name"])
            await trio.sleep(rng.expovariate(1 / 300))
            for pod in pods.values():
                await _at_once(world, pod)
        world.server.down = world.server.silent = world.server.lose_answers = False
        world.signer.verdict = "Issued"
        world.certificates.hurry()
        # A request that was deleted is missed after fifteen minutes at most.
        await trio.sleep(1000)
        assert set(world.metric()) == ({(SIGNER, "fresh")} if pods else set())
        for pod in pods.values():
            leaf = leaf_of(await world.certificates.read(pod, "v", 0))
            assert leaf.not_valid_after_utc.timestamp() > world.clock.now_ns() / NANOSECONDS
        for uid in pods:
            world.certificates.unregister(uid)
        await eventually(lambda: not world.server.watches, 30)
        assert world.metric() == {}
