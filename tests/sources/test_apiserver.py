"""The API source against the test API server, in memory and on virtual time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest
import trio
import trio.testing

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.test_reflector import a_pod, eventually
from tests.sources.collector import Collector
from trio_kubelet.api.pod_rules import PodRules
from trio_kubelet.api.v1 import Pod
from trio_kubelet.kube.watch_events import ObjectDecoder
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate
from trio_kubelet.sources.apiserver import APISource, WatchedPod


def synced() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


def make(server: APIServer, collected: Collector, observed: list[str] | None = None) -> APISource:
    def note(pod: Pod) -> None:
        if observed is not None:
            observed.append(f"{pod.metadata.name}:{pod.status.phase}")

    return APISource(SimulatedDoor(server), "n", collected.send, observed=note, rng=random.Random(2))


async def test_waits_for_the_node_then_follows_its_pods(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    server.store.create("pods", "d", a_pod("a"))
    server.store.create("pods", "d", a_pod("other", node="m"))
    node_synced = trio.Event()
    async with Collector() as collected:
        collected.nursery.start_soon(make(server, collected).run, node_synced)
        await trio.sleep(100)
        assert not server.requests
        node_synced.set()
        await eventually(lambda: bool(collected.updates), 1)
        update = collected.updates[0]
        assert (update.op, update.source) == (PodOperation.SET, "api")
        assert [p.metadata.name for p in update.pods] == ["a"]
        server.store.create("pods", "d", a_pod("b"))
        server.store.delete("pods", "d", "a", {"gracePeriodSeconds": 0})
        await eventually(lambda: wanted(collected.updates) == {"b"}, 1)


async def test_rules_of_restarts_are_not_heeded_without_their_gate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = APIServer()
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}
    plain, side = {"name": "c", "image": "b", "restartPolicy": "Never"}, {"name": "s", "image": "b"}
    pod = a_pod("a")
    pod["spec"] |= {
        "containers": [plain | {"restartPolicyRules": [rule]}],
        "initContainers": [side | {"restartPolicy": "Always"}],
    }
    server.store.create("pods", "d", pod)
    every = a_pod("every")
    every["spec"]["containers"] = [
        plain | {"restartPolicyRules": [rule | {"action": "RestartAllContainers"}]}
    ]
    async with Collector() as collected:
        source = APISource(
            SimulatedDoor(server), "n", collected.send, rules=PodRules(restart_rules=False, restart_all=False)
        )
        collected.nursery.start_soon(source.run, synced())
        await eventually(lambda: bool(collected.updates), 1)
        server.store.create("pods", "d", every)
        await eventually(lambda: len(collected.updates) == 2, 1)
    [told] = collected.updates[0].pods
    [container] = told.spec.containers or []
    [sidecar] = told.spec.init_containers or []
    assert (container.restart_policy, container.restart_policy_rules) == (None, None)
    assert sidecar.restart_policy == "Always"
    [told] = collected.updates[1].pods
    assert (told.spec.containers or [])[0].restart_policy_rules  # such a pod is refused at admission


def wanted(updates: Iterable[PodUpdate]) -> set[str]:
    """The names of the pods that are wanted after these updates."""
    names = set[str]()
    for update in updates:
        told = {pod.metadata.name for pod in update.pods}
        if update.op is PodOperation.SET:
            names = told
        else:
            names = names - told if update.op is PodOperation.REMOVE else names | told
    return names


async def test_a_node_without_pods_is_told_too(autojump_clock: trio.testing.MockClock) -> None:
    async with Collector() as collected:
        collected.nursery.start_soon(make(APIServer(), collected).run, synced())
        await trio.sleep(1)
        assert [u.pods for u in collected.updates] == [()]


async def test_pods_that_vanish_are_told_of_once(autojump_clock: trio.testing.MockClock) -> None:
    server, gone = APIServer(), list[str]()
    for name in ("a", "b"):
        server.store.create("pods", "d", a_pod(name))
    async with Collector() as collected:
        source = APISource(
            SimulatedDoor(server), "n", collected.send, vanished=lambda pod: gone.append(pod.metadata.uid)
        )
        collected.nursery.start_soon(source.run, synced())
        await eventually(lambda: len(source.pods) == 2, 5)
        first = source.pods["d/a"].metadata.uid
        server.store.delete("pods", "d", "a", {"gracePeriodSeconds": 0})
        await eventually(lambda: gone == [first], 5)
        server.store.create("pods", "d", a_pod("a"))
        await eventually(lambda: len(source.pods) == 2, 5)
        server.store.patch("pods", "d", "b", {"metadata": {"labels": {"another": "one"}}}, True)
        await trio.sleep(5)
        assert gone == [first]


async def test_what_nobody_took_when_the_source_ended_is_told_by_its_next_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = APIServer()
    server.store.create("pods", "d", a_pod("a"))
    send, updates = trio.open_memory_channel[PodUpdate](0)
    source = APISource(SimulatedDoor(server), "n", send, rng=random.Random(2))
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as first:
            first.start_soon(source.run, synced())
            assert wanted([await updates.receive()]) == {"a"}
            server.store.create("pods", "d", a_pod("b"))
            await trio.sleep(1)
            first.cancel_scope.cancel()
        nursery.start_soon(source.run, synced())
        with trio.fail_after(1):
            assert wanted([await updates.receive()]) == {"a", "b"}
        nursery.cancel_scope.cancel()


async def test_nothing_is_told_before_the_first_list(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    server.store.create("pods", "d", a_pod("a"))
    server.down = True
    async with Collector() as collected:
        collected.nursery.start_soon(make(server, collected).run, synced())
        await trio.sleep(3600)
        assert collected.updates == []
        server.down = False
        await eventually(lambda: len(collected.updates) == 1, 61)


async def test_the_pods_survive_an_outage_of_hours(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    server.store.create("pods", "d", a_pod("a"))
    async with Collector() as collected:
        collected.nursery.start_soon(make(server, collected).run, synced())
        await trio.sleep(1)
        server.down = True
        server.break_watches()
        await trio.sleep(6 * 3600)
        assert len(collected.updates) == 1


async def test_each_new_state_of_a_pod_is_observed_once(autojump_clock: trio.testing.MockClock) -> None:
    server, observed = APIServer(), list[str]()
    server.store.create("pods", "d", a_pod("a"))
    async with Collector() as collected:
        collected.nursery.start_soon(make(server, collected, observed).run, synced())
        await trio.sleep(1)
        server.store.create("pods", "d", a_pod("b"))
        await trio.sleep(1)
        server.store.set_status("pods", "d", "a", phase="Running")
        await trio.sleep(200)
    assert observed == ["a:Pending", "b:Pending", "a:Running"]
    assert [update.op for update in collected.updates] == [
        PodOperation.SET,
        PodOperation.UPDATE,
        PodOperation.UPDATE,
    ]


async def test_a_slow_consumer_gets_the_latest_and_does_not_hold_up_the_watch(
    autojump_clock: trio.testing.MockClock,
) -> None:
    server = APIServer()
    send, receive = trio.open_memory_channel[PodUpdate](0)
    source = APISource(SimulatedDoor(server), "n", send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.run, synced())
        await trio.sleep(1)
        for i in range(1000):
            server.store.create("pods", "d", a_pod(f"p{i}"))
        await trio.sleep(1)
        assert len(source.pods) == 1000
        sizes = []
        with trio.move_on_after(1):
            while True:
                sizes.append(len((await receive.receive()).pods))
        assert sizes == [0, 1000]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"uid": ".."}, "metadata.uid: must be the name of a directory"),
        ({"uid": ""}, "metadata.uid: must be the name of a directory"),
        ({"uid": "a/../../b"}, "metadata.uid: must be printable, without '/'"),
        ({"uid": "a\0b"}, "metadata.uid: must be printable, without '/'"),
        ({"uid": "a" * 300}, "metadata.uid: must have at most 200 characters"),
        ({"name": "../a"}, "metadata.name: a lowercase RFC 1123 subdomain must"),
        ({"namespace": ""}, "metadata.namespace: a lowercase RFC 1123 label must"),
        (None, "metadata: is required"),
    ],
)
def test_a_pod_without_a_usable_identity_is_not_read_and_the_others_are(
    metadata: dict[str, str] | None, reason: str
) -> None:
    good = {"metadata": {"name": "a", "namespace": "d", "uid": "u"}}
    odd = {} if metadata is None else {"metadata": good["metadata"] | metadata}
    decoder = ObjectDecoder(WatchedPod)
    page = decoder.page(json.dumps({"items": [good, odd]}).encode())
    [read], [unread] = page.items, page.unreadable
    assert read.key == "d/a"
    assert unread.reason.startswith(reason)
    event = decoder.event(json.dumps({"type": "ADDED", "object": odd}).encode())
    assert event == unread
