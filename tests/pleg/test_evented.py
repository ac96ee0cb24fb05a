"""Runtime events as hints: whatever happens to them, the cache ends up as without events."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.pleg.world import World
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.cri.doors import EVERYTHING_DIRTY, ContainerEvent
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.observed.types import PodLifecycleEventType
from trio_kubelet.pleg.evented import EventedPLEG
from trio_kubelet.sim.faults import EVENTS, Fault, Kind

Clock = trio.testing.MockClock
DIED = PodLifecycleEventType.CONTAINER_DIED


async def settled(world: World) -> None:
    """Past the time in which relists still run beside the new stream: an event has come on it."""
    await trio.sleep(1)
    world.add_pod("first", 0)
    await world.events_for(10)


async def test_an_event_is_told_without_a_relist(autojump_clock: Clock) -> None:
    world = World()
    world.add_pod("a", 2)
    async with world.running(evented=True):
        await settled(world)
        began = trio.current_time()
        world.kill("a")
        event = await world.pleg.watch().receive()
        assert trio.current_time() - began < 0.05
        assert event.type is DIED
        await world.events_for(60)
        assert world.known() == world.truth()
        assert world.metrics.running_containers.labels("running")._value.get() == 0


async def test_a_start_is_looked_at_once_by_who_started(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(evented=True):
        await settled(world)
        before = world.service.calls["ListPodSandbox"]
        world.add_pod("a", 2)
        await trio.sleep(0.2)  # the events are there
        await world.pleg.update_one("a")
        assert world.known() == world.truth()
        await world.events_for(30)
        assert world.service.calls["ListPodSandbox"] == before + 1


async def test_a_start_that_nobody_looks_at_is_looked_at_after_two_seconds(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(evented=True):
        await settled(world)
        before = world.service.calls["ListPodSandbox"]
        world.add_pod("a", 2)
        await trio.sleep(1.9)
        moment = trio.current_time()
        assert world.service.calls["ListPodSandbox"] == before
        world.cache.update_time(moment)  # as the open stream does: this pod it must not vouch for
        await world.cache.get_newer_than("a", moment - 0.5)
        assert 0 < trio.current_time() - moment < 0.2
        assert world.known() == world.truth()
        await world.events_for(30)
        assert world.service.calls["ListPodSandbox"] == before + 1


async def test_who_has_started_a_pod_may_look_at_once(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(evented=True):
        await settled(world)
        before = world.service.calls["ListPodSandbox"]
        for name in map(str, range(30)):
            world.add_pod(name)
            world.pleg.expect_look(name)
            await world.pleg.update_one(name)
            assert world.known() == world.truth()
            await world.events_for(5)
        assert world.service.calls["ListPodSandbox"] <= before + 60


@pytest.mark.parametrize(("works", "looked_at"), [(1.0, 2.0), (5.0, 5.0), (60.0, 10.0)])
async def test_a_start_whose_worker_is_at_it_is_looked_at_after_ten_seconds(
    autojump_clock: Clock, works: float, looked_at: float
) -> None:
    """A start takes long on a node with much to start: it is not looked at for each of its events."""
    world = World()

    async def work() -> None:
        with world.pleg.at_work("a"):
            await trio.sleep(works)

    async with world.running(evented=True):
        await settled(world)
        before = world.service.calls["ListPodSandbox"]
        began = trio.current_time()
        world.add_pod("a", 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await world.cache.get_newer_than("a", began)
            assert looked_at <= trio.current_time() - began < looked_at + 0.2
        assert world.known() == world.truth()
        assert world.service.calls["ListPodSandbox"] == before + 1


async def test_one_start_after_another_does_not_put_off_the_look(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(evented=True):
        await settled(world)
        before = world.service.calls["ListPodSandbox"]
        world.add_pod("a")
        for number in range(1, 6):
            await trio.sleep(0.5)
            world.add_container("a", f"c{number}")
        assert world.service.calls["ListPodSandbox"] == before + 1


@pytest.mark.parametrize("method", ["PodSandboxStatus", "ListContainers"])
async def test_what_starts_while_a_look_is_under_way_is_looked_at_too(
    autojump_clock: Clock, method: str
) -> None:
    world = World()
    world.add_pod("a")
    async with world.running(evented=True):
        await settled(world)
        world.fault(Fault(method=method, kind=Kind.SLOW, seconds=0.5, count=1))
        look = world.pleg.request_look("a", inspect=True)
        await trio.sleep(0.2)
        world.add_container("a", "late")
        await look.wait()
        await world.events_for(3)
        assert world.known() == world.truth()


async def test_relists_become_rare_while_events_flow(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(evented=True):
        await settled(world)
        before = sum(world.service.calls.values())
        await world.events_for(290)
        assert sum(world.service.calls.values()) - before <= 4


async def test_a_stream_is_relied_on_after_its_first_event(autojump_clock: Clock) -> None:
    """containerd 1.7 gives the next event to the stream of an agent that was killed, where it is lost."""
    world = World()
    world.add_pod("a")
    world.add_pod("b")
    async with world.running(evented=True):
        await world.events_for(60)
        world.fault(Fault(Kind.DROP, EVENTS, count=1))
        began = trio.current_time()
        world.kill("a")
        assert (await world.pleg.watch().receive()).type is DIED
        assert trio.current_time() - began <= 1.1
        await world.events_for(10)
        world.kill("b")
        await world.events_for(10)
        before = sum(world.service.calls.values())
        await world.events_for(250)
        assert sum(world.service.calls.values()) - before <= 4


@pytest.mark.parametrize("own", [True, False], ids=["a start", "an end found by the rare relist"])
async def test_a_stream_that_goes_silent_while_it_is_open_is_not_relied_on(
    autojump_clock: Clock, own: bool
) -> None:
    """What dies was found up to five minutes later, each time; until events tell of it again."""
    world = World()
    for name in ("a", "b", "c"):
        world.add_pod(name)
    async with world.running(evented=True):
        await settled(world)
        await world.events_for(40)
        world.fault(Fault(Kind.DROP, EVENTS))
        if own:
            world.add_pod("new")
            await world.pleg.update_one("new")
            await world.events_for(40)
        else:
            world.kill("a")
            await world.events_for(340)
        began = trio.current_time()
        world.kill("b")
        assert (await world.pleg.watch().receive()).type is DIED
        assert trio.current_time() - began <= 1.1
        world.service.faults.clear()
        world.add_pod("again")
        await world.events_for(40)
        before = sum(world.service.calls.values())
        await world.events_for(100)
        assert sum(world.service.calls.values()) - before <= 4, "relists are rare again"
        world.kill("c")
        began = trio.current_time()
        assert (await world.pleg.watch().receive()).type is DIED
        assert trio.current_time() - began < 0.05


async def test_what_happened_before_the_stream_was_opened_may_be_seen_late(autojump_clock: Clock) -> None:
    """A node's pods at the start of the agent, or a runtime that takes its time to say how they are: no event
    tells of them, and the stream is as good as any.
    """
    world = World()
    world.add_pod("a")
    world.fault(Fault(Kind.SLOW, "ContainerStatus", seconds=20, count=1))
    async with world.running(evented=True):
        await settled(world)
        await world.events_for(120)
        assert world.known() == world.truth()
        assert world.metrics.stream_ends._value.get() == 0


class Nameless:
    """A runtime whose events say no longer of which pod they tell, as of one that is removed."""

    def __init__(self, events: trio.MemoryReceiveChannel[ContainerEvent]) -> None:
        self.opened, self._events = 0, events

    @asynccontextmanager
    async def container_events(self) -> AsyncIterator[AsyncIterator[ContainerEvent]]:
        self.opened += 1
        yield self._events


@pytest.mark.parametrize("event", [EVERYTHING_DIRTY, cri.ContainerEventResponse()], ids=["lost", "no pod"])
async def test_an_event_may_tell_of_a_pod_without_its_name(
    autojump_clock: Clock, event: ContainerEvent
) -> None:
    """Nor is a stream silent that brings more events than there is room for."""
    world = World()
    world.add_pod("a")
    send, events = trio.open_memory_channel[ContainerEvent](1)
    nameless: Any = Nameless(events)
    evented = EventedPLEG(
        generic=world.pleg, runtime=nameless, cache=world.cache, clock=world.clock, metrics=world.metrics
    )
    async with world.running() as nursery:
        nursery.start_soon(evented.run)
        await send.send(event)
        await world.events_for(60)
        world.kill("a")
        await send.send(event)
        assert [event.type for event in await world.events_for(5)] == [DIED]
        world.add_pod("b")
        await world.pleg.update_one("b")
        await send.send(event)
        await world.events_for(60)
        assert nameless.opened == 1
        nursery.cancel_scope.cancel()


async def test_what_happens_while_there_are_no_events_is_not_remembered(autojump_clock: Clock) -> None:
    """A runtime that has none would have had the UIDs of all pods of all time kept."""
    world = World(unimplemented=frozenset({EVENTS}))
    async with world.running(evented=True):
        for number in range(10):
            world.add_pod(f"pod-{number}")
            await world.events_for(2)
        assert not world.evented._hearing._seen


async def test_the_caches_time_advances_between_relists(autojump_clock: Clock) -> None:
    world = World()
    async with world.running(evented=True):
        await settled(world)
        moment = trio.current_time()
        await world.cache.get_newer_than("nobody", moment)
        assert trio.current_time() - moment < 12


async def test_a_runtime_without_events_is_relisted(autojump_clock: Clock) -> None:
    world = World(unimplemented=frozenset({EVENTS}))
    world.add_pod("a")
    async with world.running(evented=True):
        await settled(world)
        world.kill("a")
        began = trio.current_time()
        assert (await world.pleg.watch().receive()).type is DIED
        assert trio.current_time() - began <= 1.1


async def test_a_dead_stream_comes_back_by_itself(autojump_clock: Clock) -> None:
    world = World()
    world.add_pod("a")
    async with world.running(evented=True) as nursery:
        await settled(world)
        nursery.start_soon(world.service.restart, 20.0)
        await trio.sleep(70)
        world.add_pod("after", 0)
        await world.events_for(10)
        calls = sum(world.service.calls.values())
        await world.events_for(100)
        assert sum(world.service.calls.values()) - calls <= 4  # the long period is back
        world.kill("a")
        began = trio.current_time()
        assert (await world.pleg.watch().receive()).type is DIED
        assert trio.current_time() - began < 0.05


@pytest.mark.parametrize("seed", range(10))
async def test_any_fate_of_the_events_ends_in_the_same_state(autojump_clock: Clock, seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    for kind in (Kind.DROP, Kind.DOUBLE, Kind.REORDER):
        world.fault(Fault(kind, EVENTS, probability=rng.uniform(0, 0.5)))
    world.fault(Fault(Kind.LATE, EVENTS, probability=rng.uniform(0, 0.5), seconds=rng.uniform(0.1, 30)))
    world.fault(Fault(Kind.END, EVENTS, probability=0.02))
    world.fault(Fault(Kind.FAIL, "*Status", probability=0.1))
    told: set[str] = set()
    async with world.running(evented=True) as nursery:

        async def read() -> None:
            async for event in world.pleg.watch():
                if event.type is DIED:
                    told.add(event.data)

        nursery.start_soon(read)
        doomed = []
        for step in range(100):
            uid = f"p{step}"
            world.add_pod(uid, rng.randint(1, 3))
            if rng.random() < 0.5:
                doomed.append(uid)
            await trio.sleep(rng.uniform(0, 3))
            if doomed and rng.random() < 0.7:
                world.kill(doomed.pop(rng.randrange(len(doomed))))
            if rng.random() < 0.1 and step > 5:
                world.remove(f"p{step - 5}")
                if f"p{step - 5}" in doomed:
                    doomed.remove(f"p{step - 5}")
        world.service.faults.clear()
        await trio.sleep(320)  # one long period
        assert world.known() == world.truth()
        dead = {c for uid in world.truth() for c, runs in world.truth()[uid] if not runs}
        assert dead <= told


async def test_the_counters_of_the_stream_count_openings_and_ends_of_any_kind(autojump_clock: Clock) -> None:
    """As the kubelet's: a stream that the runtime ends in order counts as an error, too."""
    world = World()
    metrics = world.metrics
    async with world.running(evented=True):
        await trio.sleep(1)
        assert (metrics.stream_openings._value.get(), metrics.stream_ends._value.get()) == (1, 0)
        world.fault(Fault(Kind.END, EVENTS, probability=1))
        world.add_pod("a")
        world.kill("a")
        await trio.sleep(0.1)
        assert metrics.stream_ends._value.get() == 1


async def test_whatever_ends_the_stream_relists_are_frequent_again(autojump_clock: Clock) -> None:
    """Only errors of the runtime were thought of: after any other end relists stayed rare."""
    world = World()
    world.add_pod("a")
    async with world.running() as nursery:
        broken = trio.Event()

        async def read(events: object, heard: trio.Event) -> None:
            heard.set()
            await broken.wait()
            raise ValueError("no event at all")

        world.evented._read = read  # type: ignore[method-assign]

        async def run() -> None:
            with pytest.RaisesGroup(ValueError):
                await world.evented.run()

        nursery.start_soon(run)
        await settled(world)
        broken.set()
        await trio.sleep(0.1)
        world.kill("a")
        began = trio.current_time()
        assert (await world.pleg.watch().receive()).type is DIED
        assert trio.current_time() - began <= 1.1


class Brief:
    """Each stream ends so long after its first event."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.opened = 0
        self._seconds = seconds

    @asynccontextmanager
    async def container_events(self) -> AsyncIterator[AsyncIterator[ContainerEvent]]:
        self.opened += 1

        async def events() -> AsyncIterator[ContainerEvent]:
            yield EVERYTHING_DIRTY
            await trio.sleep(self._seconds)

        yield events()


async def test_a_stream_that_ends_with_each_event_is_opened_ever_less_often(autojump_clock: Clock) -> None:
    world, brief = World(), Brief()
    runtime: Any = brief
    evented = EventedPLEG(
        generic=world.pleg, runtime=runtime, cache=world.cache, clock=world.clock, metrics=world.metrics
    )
    async with world.running() as nursery:
        nursery.start_soon(evented.run)
        await world.events_for(600)
        nursery.cancel_scope.cancel()
    assert brief.opened < 40


async def test_a_runtime_that_goes_away_while_relists_are_rare_has_the_time_of_any_other(
    autojump_clock: Clock,
) -> None:
    """The last relist was longer ago than frequent ones may be: the node was not ready at once."""
    world = World()
    async with world.running(evented=True) as nursery:
        await settled(world)
        await trio.sleep(250)
        nursery.start_soon(world.service.restart, 600)
        await trio.sleep(170)
        assert world.pleg.healthy() is None
        await trio.sleep(20)
        assert (world.pleg.healthy() or "").endswith("s ago; threshold is 3m0s")


async def test_streams_that_come_and_go_do_not_make_up_for_relists_that_fail(autojump_clock: Clock) -> None:
    world = World()
    runtime: Any = Brief(20)
    evented = EventedPLEG(
        generic=world.pleg, runtime=runtime, cache=world.cache, clock=world.clock, metrics=world.metrics
    )
    async with world.running() as nursery:
        nursery.start_soon(evented.run)
        await trio.sleep(60)
        world.fault(Fault(Kind.FAIL, "List*"))
        await trio.sleep(700)
        assert "pleg was last seen active" in (world.pleg.healthy() or "")


async def test_the_pleg_is_seen_alive_while_relists_are_rare(autojump_clock: Clock) -> None:
    """Alerts written for the kubelet look at the age of kubelet_pleg_last_seen_seconds."""
    world = World()
    async with world.running(evented=True):
        await settled(world)
        for _ in range(20):
            await world.events_for(13)
            seen = world.metrics.last_seen._value.get()
            assert world.clock.now_ns() / NANOSECONDS - seen < 10
