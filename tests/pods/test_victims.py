"""Who could be evicted, and what is said of a pod that the node ends."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from tests.pods.build import api_pod
from tests.pods.world import Events, World
from trio_kubelet.api import v1
from trio_kubelet.pods.victims import ended_by_node, patience, wait_stopped

Clock = trio.testing.MockClock
MESSAGE = "The node was low on resource: memory. "
WHY = "memory.available is 1Mi of 10Mi, less than 2Mi; number 1 of 3 to go"


async def test_an_evicted_pod_says_why_and_is_not_evicted_again(autojump_clock: Clock) -> None:
    world = World(sources=("api",))
    pod, other = api_pod("web"), api_pod("other")
    async with world.running():
        await world.add(pod, other, source="api")
        await world.until(lambda: len(world.room.victims.candidates()) == 2)
        victims = world.room.victims
        stopped = victims.evict(
            pod,
            grace=1,
            message=MESSAGE,
            disruption=True,
            annotations={"starved_resource": "memory"},
            why=WHY,
        )
        assert await victims.wait_stopped(pod, stopped, 1)
        await world.until(lambda: victims.is_finished(pod.metadata.uid))
        status = world.status(pod)
        assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", MESSAGE)
        [target] = [each for each in status.conditions or () if each.type == "DisruptionTarget"]
        assert (target.status, target.reason, target.message) == ("True", "TerminationByKubelet", MESSAGE)
        assert [each.metadata.name for each in victims.candidates()] == ["other"]
    assert ("uid-web", "Evicted", MESSAGE) in world.events.all
    assert WHY in world.stories(pod)


async def test_a_pod_that_is_ending_already_is_evicted_once_and_ends_sooner(autojump_clock: Clock) -> None:
    """As with the kubelet it may be chosen while it ends, for it may take its time; and then not again."""
    world, pod = World(sources=("api",)), api_pod("web", grace=600)
    uid = pod.metadata.uid
    world.runtime.stop_takes[uid] = 1000
    async with world.running():
        await world.add(pod, source="api")
        await world.until(lambda: world.room.victims.candidates() != [])
        metadata = replace(
            pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=600
        )
        ending = replace(pod, metadata=metadata)
        await world.update(ending, source="api")
        await trio.sleep(5)
        victims = world.room.victims
        assert [each.metadata.uid for each in victims.candidates()] == [uid]
        began = trio.current_time()
        stopped = victims.evict(ending, grace=1, message=MESSAGE, disruption=True, annotations={}, why=WHY)
        assert victims.candidates() == []
        assert not world.room.workers.should_content_be_removed(uid), "how its containers end is to be read"
        assert await victims.wait_stopped(ending, stopped, 1)
        assert trio.current_time() - began == pytest.approx(1, abs=0.2)


async def test_a_pod_that_no_source_wants_any_more_counts_until_it_has_ended(autojump_clock: Clock) -> None:
    """It was deleted by force, takes its time, and may be what the node runs short of."""
    world, pod = World(sources=("api",)), api_pod("web", grace=600)
    uid = pod.metadata.uid
    world.runtime.stop_takes[uid] = 1000
    async with world.running():
        await world.add(pod, source="api")
        victims = world.room.victims
        await world.until(lambda: victims.candidates() == [pod])
        await world.remove(pod, source="api")
        await trio.sleep(5)
        assert victims.candidates() == victims.active() == [pod]
        began = trio.current_time()
        stopped = victims.evict(pod, grace=1, message=MESSAGE, disruption=True, annotations={}, why=WHY)
        assert await victims.wait_stopped(pod, stopped, 1)
        assert trio.current_time() - began == pytest.approx(1, abs=0.2)
        await trio.sleep(5)
        assert victims.active() == []


async def test_a_pod_in_which_nothing_runs_any_more_has_nothing_to_give(autojump_clock: Clock) -> None:
    world, pod = World(sources=("api",)), api_pod("web", restart_policy="Never")
    uid = pod.metadata.uid
    async with world.running():
        await world.add(pod, source="api")
        await world.until(lambda: world.room.victims.candidates() != [])
        world.runtime.stop_takes[uid] = 1000
        world.runtime.die(uid, 0)
        worker = world.room.workers.get
        await world.until(lambda: (found := worker(uid)) is not None and found.ending)
        assert world.room.victims.active() == [pod]
        assert world.room.victims.candidates() == []


async def test_five_hundred_victims_at_once(autojump_clock: Clock) -> None:
    """All of them end, each says why, each is told once, and a pod beside them runs on."""
    world = World(sources=("api",))
    pods, beside = [api_pod(f"web-{number}") for number in range(500)], api_pod("beside")
    async with world.running():
        await world.add(*pods, beside, source="api")
        await world.until(lambda: len(world.room.victims.candidates()) == 501)
        victims = world.room.victims
        stopped = [
            victims.evict(pod, grace=1, message=MESSAGE, disruption=False, annotations={}, why=WHY)
            for pod in pods
        ]
        async with trio.open_nursery() as nursery:
            for pod, event in zip(pods, stopped, strict=True):
                nursery.start_soon(victims.wait_stopped, pod, event, 1)
        await world.until(lambda: all(victims.is_finished(pod.metadata.uid) for pod in pods))
        assert {world.status(pod).reason for pod in pods} == {"Evicted"}
        assert [each.metadata.name for each in victims.candidates()] == ["beside"]
        assert world.status(beside).phase == "Running"
    told = [uid for uid, reason, _ in world.events.all if reason == "Evicted"]
    assert sorted(told) == sorted(pod.metadata.uid for pod in pods)


async def test_an_agent_that_was_started_anew_evicts_nobody_it_has_not_looked_at(
    autojump_clock: Clock,
) -> None:
    before = World(sources=("api",))
    pod = api_pod("web")
    async with before.running():
        await before.add(pod, source="api")
        await before.until(lambda: before.room.victims.candidates() != [])
    world = World(sources=("api",), node=before)
    world.room.pods.set(pod)
    assert world.room.victims.active() == [pod]
    assert world.room.victims.candidates() == []
    async with world.running():
        await world.add(pod, source="api")
        await world.until(lambda: world.room.victims.candidates() != [])


async def test_a_pod_that_does_not_stop_in_time_is_told(autojump_clock: Clock) -> None:
    events, began = Events(), trio.current_time()
    assert not await wait_stopped(api_pod(), trio.Event(), 30, events)
    assert trio.current_time() - began == pytest.approx(45)
    message = "Container runtime did not kill the pod within specified grace period."
    assert events.all == [("uid-web", "ExceededGracePeriod", message)]
    assert patience(1) == 10


def test_a_pod_that_had_succeeded_is_not_failed_by_a_shutdown() -> None:
    done, running = v1.PodStatus(phase="Succeeded"), v1.PodStatus(phase="Running")
    spared = ended_by_node(api_pod(), "Terminated", "m", "m", spare_success=True)
    assert (spared(done).phase, spared(running).phase) == ("Succeeded", "Failed")
    evicted = ended_by_node(api_pod(), "Evicted", "m", None)
    assert evicted(done).phase == "Failed"
    assert not evicted(done).conditions
