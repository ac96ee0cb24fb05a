"""The reflector against the test API server, in memory and on virtual time."""

from __future__ import annotations

import itertools
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
from trio_kubelet.kube.reflector import Reflector
from trio_kubelet.server.http.serve import Request

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
