"""Config maps and secrets of pods, followed at a test API server on virtual time."""

from __future__ import annotations

import base64
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Tree, selector
from tests.kube.test_reflector import eventually
from trio_kubelet.api import v1
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.fetched_objects import FetchedObjects
from trio_kubelet.kube.objects import FIRST_LIST_WAIT, IDLE_PERIOD, MOST_OF_POD, PodObjects, WatchedObjects
from trio_kubelet.kube.pod_certificates import NodeIdentity, PodCertificates
from trio_kubelet.kube.references import Reference, ReferenceKind, references
from trio_kubelet.kube.tokens import TokenStore
from trio_kubelet.kube.trust_bundles import TrustBundles
from trio_kubelet.podinfo.doors import ObjectError, read_all
from trio_kubelet.podinfo.recorder import EventRecorder


def a_pod(uid: str, *, volume: str = "", env: str = "", secret: str = "", pull: str = "") -> v1.Pod:
    container: dict[str, Any] = {"name": "c"}
    volumes: list[dict[str, Any]] = []
    if env:
        container["envFrom"] = [{"configMapRef": {"name": env}}]
    if volume:
        volumes.append({"name": "v", "configMap": {"name": volume}})
    if secret:
        volumes.append({"name": "s", "projected": {"sources": [{"secret": {"name": secret}}]}})
    spec: dict[str, Any] = {"containers": [container], "volumes": volumes}
    if pull:
        spec["imagePullSecrets"] = [{"name": pull}]
    meta = {"name": uid, "namespace": "ns", "uid": uid}
    return msgspec.convert({"metadata": meta, "spec": spec}, v1.Pod)


class World:
    def __init__(self) -> None:
        self.server = APIServer()
        self.door = SimulatedDoor(self.server)
        self.told: list[frozenset[str]] = []
        self.objects = WatchedObjects(self.door, self.told.append, random.Random(1))

    def put(self, name: str, value: str, **more: Any) -> None:
        self._put("configmaps", name, {"data": {"k": value}, **more})

    def put_secret(self, name: str, value: str, **more: Any) -> None:
        text = base64.b64encode(value.encode()).decode()
        self._put("secrets", name, {"data": {"k": text}, **more})

    def _put(self, resource: str, name: str, thing: dict[str, Any]) -> None:
        if any(found["metadata"]["name"] == name for found in self.all(resource)):
            self.server.store.patch(resource, "ns", name, thing, False)
        else:
            self.server.store.create(resource, "ns", {"metadata": {"name": name}, **thing})

    def all(self, resource: str) -> list[Tree]:
        return self.server.store.list(selector(resource, "ns"))

    def delete(self, name: str) -> None:
        self.server.store.delete("configmaps", "ns", name)

    async def value(self, name: str) -> str | None:
        found = await self.objects.config_map("ns", name)
        return None if found is None else (found.data or {})["k"]

    @property
    def open_watches(self) -> int:
        return len(self.server.watches)

    def all_objects(self) -> PodObjects:
        """With all feature gates on."""
        clock, tell = self.server.clock, self.told.append
        node, client = NodeIdentity("n", lambda: "node-uid"), KubeClient(self.door, 10)
        return PodObjects(
            self.objects,
            TokenStore(self.door, clock, tell),
            TrustBundles(self.door, tell, random.Random(1)),
            PodCertificates(
                client=client,
                node=node,
                events=EventRecorder(clock),
                clock=clock,
                changed=tell,
                rng=random.Random(1),
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.objects.run)
            yield
            nursery.cancel_scope.cancel()


async def test_one_watch_per_object_from_its_first_pod_to_its_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.put("a", "1")
    async with world.running():
        for uid in ("x", "y", "z"):
            world.objects.register(a_pod(uid, volume="a", secret="s"))
            world.objects.register(a_pod(uid, volume="a", secret="s"))
        assert await world.value("a") == "1"
        await eventually(lambda: world.open_watches == 2, 5)
        queries = {request.target for request in world.server.requests}
        assert len(queries) == 2
        assert all("fieldSelector=metadata.name%3D" in query for query in queries)
        world.objects.unregister("x")
        world.objects.register(a_pod("y", volume="other"))  # the pod was changed
        await eventually(lambda: world.open_watches == 3, 5)
        world.objects.unregister("z")
        await eventually(lambda: world.open_watches == 1, 5)
        world.objects.unregister("y")
        world.objects.unregister("y")
        await eventually(lambda: world.open_watches == 0, 5)
        assert world.objects.watches == 0
        with pytest.raises(ObjectError, match='object "ns"/"a" not registered'):
            await world.value("a")
    assert world.told == []


async def test_a_change_is_told_with_the_pods_that_show_it(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("a", "1")
    async with world.running():
        world.objects.register(a_pod("shows", volume="a"))
        world.objects.register(a_pod("has it as variables", env="a"))
        assert await world.value("a") == "1"
        world.put("a", "2")
        await eventually(lambda: world.told == [frozenset({"shows"})], 0.5)
        assert await world.value("a") == "2"
        world.delete("a")
        await eventually(lambda: len(world.told) == 2, 0.5)
        assert await world.value("a") is None
        world.put("a", "3")  # both may be waiting for it now
        await eventually(lambda: world.told[2:] == [frozenset({"shows", "has it as variables"})], 0.5)


async def test_nobody_is_told_of_what_nobody_has_read(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    async with world.running():
        world.objects.register(a_pod("p", volume="a"))
        await eventually(lambda: world.open_watches == 1, 5)
        world.put("a", "1")
        await trio.sleep(1)
        assert world.told == []
        assert await world.value("a") == "1"


async def test_immutable_objects_are_read_once(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("a", "1", immutable=True)
    world.put("b", "1")
    async with world.running():
        world.objects.register(a_pod("p", volume="a", env="b"))
        assert await world.value("a") == "1"
        assert await world.value("b") == "1"
        await eventually(lambda: world.open_watches == 1, 5)
        world.put("b", "2", immutable=True)
        await eventually(lambda: world.open_watches == 0, 5)
        assert [await world.value(name) for name in "ab"] == ["1", "2"]
        assert world.open_watches == 0


async def test_what_only_feeds_variables_is_not_followed_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.put("a", "1")
    world.put("v", "1")
    async with world.running():
        world.objects.register(a_pod("p", env="a", volume="v"))
        assert await world.value("a") == "1"
        await trio.sleep(IDLE_PERIOD + 100)
        assert world.objects.watches == 1
        world.put("a", "2")
        assert await world.value("a") == "2"
        assert world.objects.watches == 2


@pytest.mark.parametrize("silent", [True, False])
async def test_a_read_waits_for_the_first_list_and_not_for_ever(
    autojump_clock: trio.testing.MockClock, silent: bool
) -> None:
    world = World()
    world.put("a", "1")
    world.server.silent, world.server.down = silent, not silent
    async with world.running():
        world.objects.register(a_pod("p", env="a"))
        began = trio.current_time()
        with pytest.raises(ObjectError, match="failed to sync configmap cache: timed out waiting"):
            await world.value("a")
        assert trio.current_time() - began == pytest.approx(FIRST_LIST_WAIT)
        world.server.silent = world.server.down = False
        await eventually(lambda: world.told == [frozenset({"p"})], 120)
        assert await world.value("a") == "1"


async def test_an_hour_without_the_server_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("a", "1")
    world.put("e", "1")
    async with world.running():
        world.objects.register(a_pod("p", volume="a", env="e"))
        assert [await world.value("a"), await world.value("e")] == ["1", "1"]
        world.server.down = True
        world.server.break_watches()
        await trio.sleep(3600)
        assert [await world.value("a"), await world.value("e")] == ["1", "1"]
        assert world.told == []
        world.server.down = False
        world.put("a", "2")
        await eventually(lambda: world.told == [frozenset({"p"})], 90)
        assert await world.value("a") == "2"


async def test_pods_come_and_go_while_objects_change(autojump_clock: trio.testing.MockClock) -> None:
    """Whatever happens: reads are what the server has, readers are told of what differs, nothing leaks."""
    rng = random.Random(7)
    world = World()
    names = "abcd"
    read: dict[str, dict[str, str | None]] = {}
    async with world.running():
        for step in range(300):
            uid = rng.choice("pqrs")
            match rng.choice(["register", "unregister", "put", "put", "delete", "break"]):
                case "register":
                    name = rng.choice(names)
                    world.objects.register(a_pod(uid, volume=name))
                    read[uid] = {name: await world.value(name)}
                case "unregister":
                    world.objects.unregister(uid)
                    read.pop(uid, None)
                case "put":
                    world.put(rng.choice(names), str(step))
                case "delete":
                    name = rng.choice(names)
                    if any(found["metadata"]["name"] == name for found in world.all("configmaps")):
                        world.delete(name)
                case "break":
                    world.server.break_watches()
            await trio.sleep(rng.choice([0, 0.2, 40]))
            for uids in world.told:
                for told in uids & read.keys():
                    read[told] = {name: await world.value(name) for name in read[told]}
            world.told.clear()
        await trio.sleep(60)
        for uids in world.told:
            for told in uids & read.keys():
                read[told] = {name: await world.value(name) for name in read[told]}
        there = {f["metadata"]["name"]: f["data"]["k"] for f in world.all("configmaps")}
        for values in read.values():
            assert values == {name: there.get(name) for name in values}
        assert world.open_watches == len({name for values in read.values() for name in values})
        for uid in list(read):
            world.objects.unregister(uid)
        await eventually(lambda: world.open_watches == 0, 5)


async def test_started_again_it_follows_everything_anew(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.put("a", "1")
    world.objects.register(a_pod("p", volume="a"))
    for _ in range(2):
        async with world.running():
            assert await world.value("a") == "1"
            assert world.open_watches == 1
        assert world.objects.watches == 0
    world.put("a", "2")
    async with world.running():
        assert await world.value("a") == "2"


async def test_a_pod_with_too_many_objects_has_the_first_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    pod = a_pod("p")
    assert pod.spec.containers is not None
    sources = [v1.EnvFromSource(config_map_ref=v1.ConfigMapEnvSource(name=f"c{n}")) for n in range(1500)]
    container = msgspec.structs.replace(pod.spec.containers[0], env_from=sources)
    many = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[container]))
    world.put("c0", "first")
    async with trio.open_nursery() as nursery:
        await nursery.start(world.objects.run)
        world.objects.register(many)
        assert world.objects.watches == MOST_OF_POD
        assert await world.value("c0") == "first"
        with pytest.raises(ObjectError, match="not registered"):
            await world.value("c1499")
        world.objects.unregister("p")
        assert world.objects.watches == 0
        nursery.cancel_scope.cancel()


async def test_objects_are_read_many_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    under_way, most = 0, 0

    async def read(key: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1
        if key == 7:
            raise ObjectError("no seven")
        return -key

    found = await read_all([*range(200), *range(200)], read)
    assert str(found.pop(7)) == "no seven"
    assert found == {key: -key for key in range(200) if key != 7}
    assert most == 64


def test_references_of_a_pod() -> None:
    found = references(a_pod("p", volume="m", env="m", secret="s", pull="t"))
    assert found == {
        Reference(ReferenceKind.CONFIG_MAPS, "ns", "m"): True,
        Reference(ReferenceKind.SECRETS, "ns", "s"): True,
        Reference(ReferenceKind.SECRETS, "ns", "t"): False,
    }


async def test_always_asking(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    objects = FetchedObjects(world.door, None)
    objects.register(a_pod("p", volume="a", secret="s"))
    world.put("a", "1")
    world.put_secret("s", "hidden")
    first = await objects.config_map("ns", "a")
    world.put("a", "2")
    second = await objects.config_map("ns", "a")
    assert first is not None
    assert second is not None
    assert (first.data, second.data) == ({"k": "1"}, {"k": "2"})
    secret = await objects.secret("ns", "s")
    assert secret is not None
    assert secret.data == {"k": b"hidden"}
    assert await objects.secret("ns", "s") is not None
    world.server.down = True
    with pytest.raises(ObjectError):
        await objects.config_map("ns", "a")
    objects.unregister("p")
    with pytest.raises(ObjectError, match="not registered"):
        await objects.config_map("ns", "a")


async def test_answers_are_kept_for_a_while(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    objects = FetchedObjects(world.door, lambda: 60.0)
    objects.register(a_pod("p", volume="a"))
    assert await objects.config_map("ns", "a") is None
    world.put("a", "1")
    found = await objects.config_map("ns", "a")  # what was not there is asked for again
    assert found is not None
    world.put("a", "2")
    await trio.sleep(59)
    assert await objects.config_map("ns", "a") == found
    await trio.sleep(1)
    second = await objects.config_map("ns", "a")
    assert second is not None
    assert second.data == {"k": "2"}
    world.put("a", "3")
    objects.register(a_pod("new", volume="a"))  # a new pod gets the newest
    newer = await objects.config_map("ns", "a")
    assert newer is not None
    assert newer.data == {"k": "3"}
    world.server.down = True
    await trio.sleep(3600)
    assert await objects.config_map("ns", "a") == newer
    objects.unregister("p")
    objects.unregister("new")
    with pytest.raises(ObjectError, match="not registered"):
        await objects.config_map("ns", "a")


async def test_with_the_gates_off_the_kubelets_words_are_heard(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    tokens = TokenStore(world.door, world.server.clock, world.told.append)
    objects = PodObjects(world.objects, tokens)
    objects.register(a_pod("p", volume="a"))
    with pytest.raises(
        ObjectError, match=r"^ClusterTrustBundle projection is not supported in static kubelet"
    ):
        await objects.trust_anchors(v1.ClusterTrustBundleProjection(name="b", optional=True))
    with pytest.raises(ObjectError, match=r"^unimplemented$"):
        await objects.pod_certificate(a_pod("p"), "v", 0)


async def test_all_that_pods_read_comes_and_goes_with_them(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.server.store.create("serviceaccounts", "ns", {"metadata": {"name": "sa"}})
    objects = world.all_objects()
    projected = [
        {"configMap": {"name": "a"}},
        {"clusterTrustBundle": {"name": "b", "path": "b"}},
        {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "k"}},
    ]
    pod = a_pod("p")
    volume = msgspec.convert({"name": "v", "projected": {"sources": projected}}, v1.Volume)
    pod = msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, volumes=[volume], service_account_name="sa")
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(objects.run)
        objects.register(pod)
        assert await objects.trust_anchors(v1.ClusterTrustBundleProjection(name="b", optional=True)) == b""
        with pytest.raises(ObjectError, match="not issued yet"):
            await objects.pod_certificate(pod, "v", 2)
        followed = {watch._wanted.resource for watch in world.server.watches}
        assert followed == {"configmaps", "clustertrustbundles", "podcertificaterequests"}
        world.server.down = True
        world.server.break_watches()
        await trio.sleep(300)
        world.server.down = False
        objects.hurry()
        resources = {"clustertrustbundles", "podcertificaterequests"}
        await eventually(lambda: resources <= {w._wanted.resource for w in world.server.watches}, 2)
        objects.unregister("p")
        await eventually(lambda: not world.server.watches, 40)
        nursery.cancel_scope.cancel()
