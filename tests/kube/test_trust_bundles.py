"""Cluster trust bundles of pods, followed at a test API server on virtual time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import KINDS, Refused, Tree
from tests.kube.test_reflector import eventually
from trio_kubelet.api import v1
from trio_kubelet.kube.certificates.files import certificate_block, pem_contents
from trio_kubelet.kube.trust_bundles import LONGEST_SELECTOR, NOT_SERVED, TrustBundles, trust_anchors
from trio_kubelet.podinfo.doors import ObjectError

BUNDLES = "clustertrustbundles"
SIGNER = "example.com/s"


def pem(*contents: str) -> str:
    return "".join(certificate_block(content.encode()).decode() for content in contents)


def a_source(**fields: Any) -> v1.ClusterTrustBundleProjection:
    return msgspec.convert({"path": "p", **fields}, v1.ClusterTrustBundleProjection)


def a_pod(uid: str, *sources: dict[str, Any]) -> v1.Pod:
    projected = [{"clusterTrustBundle": {"path": "p", **source}} for source in sources]
    spec = {"containers": [{"name": "c"}], "volumes": [{"name": "v", "projected": {"sources": projected}}]}
    meta = {"name": uid, "namespace": "ns", "uid": uid}
    return msgspec.convert({"metadata": meta, "spec": spec}, v1.Pod)


class World:
    def __init__(self) -> None:
        self.server = APIServer()
        self.told: list[frozenset[str]] = []
        self.bundles = TrustBundles(SimulatedDoor(self.server), self.told.append, random.Random(1))

    def put(self, name: str, *contents: str, signer: str = "", labels: dict[str, str] | None = None) -> None:
        spec = {"signerName": signer, "trustBundle": pem(*contents)}
        thing: Tree = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        try:
            self.server.store.patch(BUNDLES, "", name, {"spec": spec}, False)
        except Refused:
            self.server.store.create(BUNDLES, "", thing)

    async def read(self, **fields: Any) -> set[bytes]:
        """What the projection shows, in no order."""
        return set(pem_contents(await self.bundles.read(a_source(**fields))))

    async def error(self, **fields: Any) -> str:
        with pytest.raises(ObjectError) as error:
            await self.bundles.read(a_source(**fields))
        return str(error.value)

    @property
    def open_watches(self) -> int:
        return len(self.server.watches)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.bundles.run)
            yield
            nursery.cancel_scope.cancel()


@given(st.lists(st.lists(st.binary(max_size=5))), st.binary(min_size=16, max_size=16))
def test_each_anchor_once_in_an_order_that_the_set_decides(bundles: list[list[bytes]], order: bytes) -> None:
    texts = ["noise\n".join(certificate_block(c).decode() for c in bundle) for bundle in bundles]
    shown = trust_anchors(texts, order)
    found = list(pem_contents(shown))
    assert len(found) == len(set(found))
    assert set(found) == {content for bundle in bundles for content in bundle}
    assert trust_anchors(reversed(texts * 2), order) == shown


def test_the_order_means_nothing() -> None:
    anchors = pem(*map(str, range(10)))
    assert len({trust_anchors([anchors], bytes([start])) for start in range(10)}) == 10


async def test_by_name_and_by_signer_and_labels(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("plain", "a", "b")
    world.put("example.com:s:1", "b", "c", signer=SIGNER, labels={"live": "yes"})
    world.put("example.com:s:2", "c", "d", signer=SIGNER)
    world.put("example.com:other:1", "e", signer="example.com/other", labels={"live": "yes"})
    async with world.running():
        world.bundles.register(a_pod("x", {"name": "plain"}, {"signerName": SIGNER}))
        began = trio.current_time()
        assert await world.read(name="plain") == {b"a", b"b"}
        assert trio.current_time() - began < 0.1
        assert await world.read(signerName=SIGNER, labelSelector={}) == {b"b", b"c", b"d"}
        live = {"matchLabels": {"live": "yes"}}
        assert await world.read(signerName=SIGNER, labelSelector=live) == {b"b", b"c"}
        dead = {"matchExpressions": [{"key": "live", "operator": "DoesNotExist"}]}
        assert await world.read(signerName=SIGNER, labelSelector=dead) == {b"c", b"d"}
        # No selector fits nothing, although an empty one was just read.
        assert await world.error(signerName=SIGNER) == (
            "combination of signerName and labelSelector matched zero ClusterTrustBundles"
        )
        assert await world.read(signerName=SIGNER, optional=True) == set()
        assert world.open_watches == 2


async def test_what_cannot_be_had_is_said_as_the_kubelet_says_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with world.running():
        world.bundles.register(a_pod("x", {"name": "no"}, {"signerName": SIGNER}))
        missing = 'while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "no" not found'
        assert await world.error(name="no") == missing
        assert await world.read(name="no", optional=True) == set()
        assert (
            await world.error()
            == "ClusterTrustBundle projection requires either name or signerName to be set"
        )
        odd = {"matchExpressions": [{"key": "a", "operator": "Like"}]}
        assert await world.error(signerName=SIGNER, labelSelector=odd) == (
            'while parsing label selector: "Like" is not a valid label selector operator'
        )
        length = LONGEST_SELECTOR + 1
        long = {"matchLabels": {"a": "x" * (length - 2)}}
        assert await world.error(signerName=SIGNER, labelSelector=long) == (
            f"label selector length ({length}) is larger than {LONGEST_SELECTOR}"
        )


async def test_one_watch_for_each_name_and_signer_from_the_first_pod_to_the_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.put("a", "1")
    async with world.running():
        for uid in ("x", "y"):
            for _ in range(2):
                world.bundles.register(a_pod(uid, {"name": "a"}, {"signerName": SIGNER, "labelSelector": {}}))
        assert await world.read(name="a") == {b"1"}
        await eventually(lambda: world.open_watches == 2, 5)
        discoveries = [r for r in world.server.requests if r.path == "/apis/certificates.k8s.io/v1beta1"]
        assert len(discoveries) == 1
        world.bundles.register(a_pod("y", {"name": "b"}))  # the pod was changed
        await eventually(lambda: world.open_watches == 3, 5)
        world.bundles.unregister("x")
        world.bundles.unregister("x")
        await eventually(lambda: world.open_watches == 1, 5)
        world.bundles.unregister("y")
        await eventually(lambda: world.open_watches == 0, 5)
        assert "not registered" in await world.error(name="a")
    assert world.told == []


async def test_a_change_is_told_to_the_pods_that_show_it(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("a", "1")
    async with world.running():
        world.bundles.register(a_pod("x", {"name": "a"}))
        world.bundles.register(a_pod("y", {"signerName": SIGNER, "labelSelector": {}}))
        assert await world.read(name="a") == {b"1"}
        assert await world.read(signerName=SIGNER, labelSelector={}, optional=True) == set()
        world.put("a", "2")
        await eventually(lambda: world.told == [frozenset({"x"})], 2)
        assert await world.read(name="a") == {b"2"}
        world.put("example.com:s:1", "3", signer=SIGNER)
        await eventually(lambda: world.told == [frozenset({"x"}), frozenset({"y"})], 2)
        assert await world.read(signerName=SIGNER, labelSelector={}) == {b"3"}
        world.server.store.delete(BUNDLES, "", "a")
        await eventually(lambda: len(world.told) == 3, 2)
        assert await world.read(name="a", optional=True) == set()
        same = await world.bundles.read(a_source(signerName=SIGNER, labelSelector={}))
        world.server.store.advance()
        assert await world.bundles.read(a_source(signerName=SIGNER, labelSelector={})) is same


async def test_with_the_server_away_what_is_known_stays(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("a", "1")
    world.put("b", "1")
    async with world.running():
        world.bundles.register(a_pod("x", {"name": "a"}))
        assert await world.read(name="a") == {b"1"}
        world.server.down = True
        world.server.break_watches()
        await trio.sleep(600)
        assert await world.read(name="a") == {b"1"}
        world.bundles.register(a_pod("y", {"name": "b"}))
        began = trio.current_time()
        assert await world.error(name="b") == "ClusterTrustBundle informer has not yet synced"
        assert trio.current_time() - began == pytest.approx(5)
        world.put("a", "2")
        world.server.down = False
        world.bundles.hurry()
        await eventually(lambda: set(world.told) == {frozenset({"x"}), frozenset({"y"})}, 2)
        assert await world.read(name="a") == {b"2"}
        assert await world.read(name="b") == {b"1"}


async def test_the_older_version_is_taken_where_there_is_no_other(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = KINDS[BUNDLES]._replace(group_version="certificates.k8s.io/v1alpha1")
    monkeypatch.setitem(KINDS, BUNDLES, alpha)
    world = World()
    world.put("a", "1")
    async with world.running():
        world.bundles.register(a_pod("x", {"name": "a"}))
        assert await world.read(name="a") == {b"1"}


async def test_a_server_without_them_is_asked_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.put("a", "1")
    kind = KINDS[BUNDLES]
    monkeypatch.delitem(KINDS, BUNDLES)
    async with world.running():
        world.bundles.register(a_pod("x", {"name": "a"}))
        began = trio.current_time()
        assert await world.error(name="a", optional=True) == NOT_SERVED
        assert trio.current_time() - began < 1
        monkeypatch.setitem(KINDS, BUNDLES, kind)
        await eventually(lambda: world.told == [frozenset({"x"})], 60)
        assert await world.read(name="a") == {b"1"}


async def test_a_server_that_will_not_say_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("a", "1")
    world.server.refuse = lambda request: Refused(500, "InternalError", "broken")
    async with world.running():
        world.bundles.register(a_pod("x", {"name": "a"}))
        assert await world.error(name="a") == (
            "failed to ensure informer manager for ClusterTrustBundles: "
            "failed to determine which informer manager to choose: broken"
        )
        world.server.refuse = lambda request: None
        await eventually(lambda: world.told == [frozenset({"x"})], 60)
        assert await world.read(name="a") == {b"1"}
