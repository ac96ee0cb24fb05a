"""The reflector against the test API server, in memory and on virtual time."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.kube.apiserver import APIServer
from tests.kube.door import SimulatedDoor
from tests.kube.store import Refused, Selector, Tree, selector
from trio_kubelet.api import v1
from trio_kubelet.kube import reflector_core
from trio_kubelet.kube.doors import APIAnswer, APIRequest
from trio_kubelet.kube.errors import APIUnavailable
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.kube.reflector_core import ReflectorCore
from trio_kubelet.server.http.messages import Request

NODE = {"fieldSelector": "spec.nodeName=n"}


def a_pod(name: str, node: str = "n", **spec: object) -> Tree:
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c"}], **spec}}


class World:
    """A server, a reflector that follows its pods, and how often it told of changes."""

    def __init__(self, pings: bool = True) -> None:
        self.server = APIServer()
        self.changes = 0
        self.door = SimulatedDoor(self.server, pings)
        self.pods: Reflector[v1.Pod] = Reflector(
            self.door, "/api/v1/pods", v1.Pod, params=NODE, changed=self._count, rng=random.Random(1)
        )

    def _count(self) -> None:
        self.changes += 1

    @property
    def names(self) -> set[str]:
        return set(self.pods.objects)

    def create(self, *names: str) -> None:
        for name in names:
            self.server.store.create("pods", "d", a_pod(name))

    def delete(self, name: str) -> None:
        self.server.store.delete("pods", "d", name, {"gracePeriodSeconds": 0})

    def agrees(self) -> bool:
        """Whether the copy is what the server has for the node."""
        there = {
            f"{p['metadata']['namespace']}/{p['metadata']['name']}": p["metadata"]["resourceVersion"]
            for p in self.server.store.list(_wanted())
        }
        return there == {key: pod.metadata.resource_version for key, pod in self.pods.objects.items()}

    def queries(self, part: str) -> list[Request]:
        return [r for r in self.server.requests if part in r.target]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pods.run)
            yield
            nursery.cancel_scope.cancel()


def _wanted() -> Selector:
    return selector("pods", "", "spec.nodeName=n")


async def eventually(condition: Callable[[], bool], seconds: float) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await trio.sleep(0.05)


@pytest.mark.parametrize("mode", ["supported", "refused", "broken", "ignored", "endless"])
async def test_follows_with_and_without_watch_list(autojump_clock: trio.testing.MockClock, mode: str) -> None:
    world = World()
    world.server.watch_list = mode
    world.create("a", "b")
    world.server.store.create("pods", "d", a_pod("elsewhere", node="other"))
    async with world.running():
        with trio.fail_after(30):
            await world.pods.synced.wait()
        assert world.names == {"d/a", "d/b"}
        world.create("c")
        world.delete("a")
        world.server.store.set_status("pods", "d", "b", phase="Running")
        await eventually(world.agrees, 1)
        assert world.names == {"d/b", "d/c"}
        assert world.pods.objects["d/b"].status.phase == "Running"
        assert bool(world.queries("limit=500")) == (mode != "supported")


async def test_a_server_without_watch_list_is_asked_again_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.server.watch_list = "refused"
    async with world.running():
        await world.pods.synced.wait()
        world.server.watch_list = "supported"
        await trio.sleep(700)
        world.server.store.compact()
        world.create("x")
        world.server.store.compact()
        world.server.break_watches()
        await eventually(lambda: world.names == {"d/x"}, 10)
        assert len(world.queries("sendInitialEvents")) == 2


async def test_long_lists_come_in_pages(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.server.watch_list = "refused"
    world.create(*(f"p{i}" for i in range(1201)))
    async with world.running():
        await world.pods.synced.wait()
        assert world.agrees()
        assert len(world.queries("limit=500")) == 3
        assert world.changes == 1


async def test_a_page_token_that_expires_leads_to_one_whole_list(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.server.watch_list = "refused"
    world.create(*(f"p{i}" for i in range(600)))

    def compact_between(request: Request) -> Refused | None:
        if "continue=" in request.target:
            world.server.store.advance()
            world.server.store.compact()
        return None

    world.server.refuse = compact_between
    async with world.running():
        with trio.fail_after(10):
            await world.pods.synced.wait()
        assert world.agrees()


@pytest.mark.parametrize("as_status", [False, True])
async def test_an_expired_version_leads_to_a_new_list(
    autojump_clock: trio.testing.MockClock, as_status: bool
) -> None:
    world = World()
    world.server.expired_as_status = as_status
    world.create("a", "b")
    async with world.running():
        await world.pods.synced.wait()
        world.server.down = True
        world.server.break_watches()
        world.delete("a")
        world.create("c")
        world.server.store.compact()
        await trio.sleep(120)
        assert world.names == {"d/a", "d/b"}
        world.server.down = False
        await eventually(world.agrees, 70)
        assert world.names == {"d/b", "d/c"}


@pytest.mark.parametrize("loud", [False, True])
async def test_a_store_put_back_is_noticed(autojump_clock: trio.testing.MockClock, loud: bool) -> None:
    """After a restore of etcd our version is from the future and a watch from it stays silent for ever."""
    world = World()
    world.create("a")
    saved = world.server.store.backup()
    world.create("b")
    async with world.running():
        await world.pods.synced.wait()
        assert world.names == {"d/a", "d/b"}
        world.server.store.restore(saved)
        if loud:
            world.server.break_watches()
        else:
            world.server.end_watches()
        await eventually(lambda: world.names == {"d/a"}, 30 if loud else 110)
        world.create("c")
        await eventually(world.agrees, 1)


async def test_an_event_of_a_lower_version_means_the_store_was_put_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    saved = world.server.store.backup()
    world.create("a", "b", "c")
    async with world.running():
        await world.pods.synced.wait()
        world.server.store.restore(saved)
        world.create("new")  # the watch is still open, and tells
        await eventually(lambda: world.names == {"d/new"}, 5)


async def test_bookmarks_keep_the_version_fresh(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.create("a")
    async with world.running():
        await world.pods.synced.wait()
        world.server.store.advance(50)
        await trio.sleep(70)
        world.server.store.compact()
        world.server.break_watches()
        await trio.sleep(20)
        assert len(world.queries("sendInitialEvents")) == 1
        assert world.queries(f"resourceVersion={world.server.store.version}")


async def test_a_silent_server_is_left_and_found_again(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.create("a")
    async with world.running():
        await world.pods.synced.wait()
        world.server.silent = True
        world.create("b")
        await trio.sleep(300)
        assert world.names == {"d/a"}
        world.server.silent = False
        await eventually(world.agrees, 70)


async def test_silence_without_pings_is_noticed_by_asking(autojump_clock: trio.testing.MockClock) -> None:
    """A proxy that holds a dead watch open: no bookmark comes, so the server is asked how far it is."""
    world = World(pings=False)
    async with world.running():
        await world.pods.synced.wait()
        (stuck,) = world.server.watches
        stuck._behaviour = _Silent()
        world.create("a")
        await eventually(world.agrees, 120)


class _Silent:
    bookmark_period = float("inf")
    watch_list = "supported"
    silent = True


async def test_an_outage_is_waited_out_with_growing_jittered_pauses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.create("a")
    async with world.running():
        await world.pods.synced.wait()
        world.server.down = True
        world.server.break_watches()
        world.door.attempts.clear()
        await trio.sleep(3600)
        times = world.door.attempts
        pauses = [b - a for a, b in itertools.pairwise(times)]
        assert 60 <= len(times) <= 140
        assert pauses[1] < 7
        assert all(29 <= p <= 61 for p in pauses[8:])
        assert len({round(p, 1) for p in pauses[8:]}) > 10
        assert world.names == {"d/a"}


async def test_retry_after_is_respected(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    asked: list[float] = []

    def busy(request: Request) -> Refused | None:
        asked.append(trio.current_time())
        return Refused(429, "TooManyRequests", "slow down", retry_after=45)

    world.server.refuse = busy
    async with world.running():
        await trio.sleep(200)
    pauses = [b - a for a, b in itertools.pairwise(asked)]
    assert pauses
    assert min(pauses) >= 45


async def test_a_watch_that_is_broken_at_once_does_not_become_a_busy_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    async with world.running():
        await world.pods.synced.wait()

        async def breaker() -> None:
            while True:
                world.server.break_watches()
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaker)
            before = len(world.server.requests)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert len(world.server.requests) - before < 20


async def test_an_unreadable_object_keeps_its_last_state_and_holds_up_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.create("a", "b")
    async with world.running():
        await world.pods.synced.wait()
        known = world.pods.objects["d/a"]
        world.server.store.update("pods", "d", "a", {"spec": {"nodeName": "n", "containers": 7}})
        world.create("c")
        await eventually(lambda: "d/c" in world.names, 1)
        assert world.pods.objects["d/a"] is known
        world.server.store.compact()
        world.server.store.advance()
        world.server.store.compact()
        world.server.break_watches()
        await trio.sleep(60)
        assert world.pods.objects["d/a"] is known
        assert len(world.queries("sendInitialEvents")) == 2


async def test_nulls_are_read_as_go_reads_them(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.server.store.create("pods", "d", a_pod("a", schedulerName=None, hostNetwork=None, volumes=None))
    async with world.running():
        await world.pods.synced.wait()
        assert world.pods.objects["d/a"].spec.host_network is False


async def test_what_does_not_change_stays_the_same_object(autojump_clock: trio.testing.MockClock) -> None:
    """PodConfig may compare by identity."""
    world = World()
    world.create("a", "b")
    async with world.running():
        await world.pods.synced.wait()
        a = world.pods.objects["d/a"]
        world.server.store.set_status("pods", "d", "b", phase="Running")
        await eventually(world.agrees, 1)
        assert world.pods.objects["d/a"] is a


@pytest.mark.parametrize("watch_list", ["supported", "refused"])
async def test_a_version_that_is_too_old_after_each_list_does_not_become_a_busy_loop(
    autojump_clock: trio.testing.MockClock, watch_list: str
) -> None:
    world = World()
    world.server.watch_list = watch_list
    world.create("a")

    async def expire() -> None:
        while True:
            for watch in world.server.watches:
                if not watch.ended:
                    watch.expire("too old")
            await trio.sleep(0.02)

    async with world.running(), trio.open_nursery() as nursery:
        nursery.start_soon(expire)
        await trio.sleep(120)
        assert len(world.server.requests) < 40
        nursery.cancel_scope.cancel()
        await trio.sleep(90)
        assert world.agrees()


@pytest.mark.parametrize("items", ["[]", '[{"metadata":{"name":"a"}}]'])
async def test_a_list_without_an_end_does_not_become_a_busy_loop(
    autojump_clock: trio.testing.MockClock, items: str
) -> None:
    world = World()
    world.server.watch_list = "refused"
    asked = 0

    async def request(request: APIRequest, timeout: float) -> APIAnswer:
        nonlocal asked
        asked += 1
        page = f'{{"metadata":{{"resourceVersion":"5","continue":"{asked}"}},"items":{items}}}'
        await trio.lowlevel.checkpoint()
        return APIAnswer(200, page.encode())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.door, "request", request)
        async with world.running():
            await trio.sleep(120)
            assert not world.pods.synced.is_set()
            assert asked < 40
            patch.undo()
            await eventually(world.pods.synced.is_set, 70)


@pytest.mark.parametrize("how", ["list", "initial events"])
def test_what_a_list_may_hold_is_bounded(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(reflector_core, "MOST_BYTES", 100_000)
    core = ReflectorCore(v1.Pod, {})
    if how == "list":
        core.next_step(0, 0)
        core.on_failure(APIUnavailable(""), 0, 0)
    core.next_step(0, 0)

    def take(number: int) -> None:
        pod = f'{{"metadata":{{"name":"p{number}"}}}}'
        if how == "list":
            core.on_page(f'{{"metadata":{{"continue":"{number}"}},"items":[{pod}]}}'.encode())
        else:
            core.on_event(f'{{"type":"ADDED","object":{pod}}}'.encode())

    with pytest.raises(APIUnavailable, match="not a list: it does not end within 100000 bytes"):
        any(map(take, range(10_000)))


def test_an_object_of_endless_depth_holds_up_no_other() -> None:
    """Managed fields may be nested as deep as somebody likes; the decoder goes some hundred levels."""
    fields = '{"f:x":' * 5000 + "{}" + "}" * 5000
    metadata = f'{{"name":"a","managedFields":[{{"fieldsV1":{fields}}}]}}'
    event = f'{{"type":"ADDED","object":{{"metadata":{metadata}}}}}'
    core = ReflectorCore(v1.Pod, {})
    core.next_step(0, 0)
    core.on_event(event.encode())
    end = {"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}
    core.on_event(json.dumps({"type": "BOOKMARK", "object": end}).encode())
    assert set(core.objects) == {"a"}


def test_a_version_of_thousands_of_digits_compares_as_nothing() -> None:
    core = ReflectorCore(v1.Pod, {})
    core.on_page(b'{"metadata":{"resourceVersion":"5"},"items":[]}')
    pod = {"metadata": {"name": "a", "resourceVersion": "9" * 5000}}
    core.on_event(json.dumps({"type": "ADDED", "object": pod}).encode())
    assert set(core.objects) == {"a"}


async def test_a_server_that_asks_for_years_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.server.refuse = lambda request: Refused(429, "TooManyRequests", "slow down", retry_after=10**9)
    async with world.running():
        await trio.sleep(10)
        world.server.refuse = lambda request: None
        await eventually(world.pods.synced.is_set, 301)
