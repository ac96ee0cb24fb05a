"""Certificates of pods when requests, watches and the API server itself get lost; virtual time."""

from __future__ import annotations

import contextlib
import io
import random
import traceback

import pytest
import trio
import trio.testing

from tests.kube.pod_certificates import HOUR, SIGNER, World, leaf_of
from tests.kube.pod_signer import REQUESTS
from tests.kube.store import Refused
from tests.kube.test_reflector import eventually
from trio_kubelet.api import v1
from trio_kubelet.common import log
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.kube.certificates import request as pod_keys
from trio_kubelet.podinfo.doors import ObjectError


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
