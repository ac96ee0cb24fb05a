"""A pod comes, runs, is restarted, changes and goes."""

from __future__ import annotations

import trio

from tests.pods.build import make_pod
from tests.pods.world import World


async def test_a_pod_is_started_shown_and_removed_without_a_trace(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await world.add(pod)
        await world.until(
            lambda: world.status(pod).phase == "Running" if world.room.pods_with_status() else False
        )
        [shown] = world.room.pods_with_status()
        assert shown.status.pod_ip == "10.0.0.7"
        assert [c.ready for c in shown.status.container_statuses or ()] == [True]
        await world.remove(pod)
        await world.until(lambda: world.room.workers.get(pod.metadata.uid) is None, 5)
        await trio.sleep(3)
    assert not world.runtime.pods
    assert not world.volumes.up
    assert not world.cgroups.there
    assert not world.directories.there
    assert world.room.pods_with_status() == []
    assert world.room.statuses.get(pod.metadata.uid) is None


async def test_a_container_that_dies_is_restarted_at_once_the_first_time(
    autojump_clock: trio.abc.Clock,
) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await world.add(pod)
        await world.until(lambda: pod.metadata.uid in world.runtime.alive())
        world.runtime.die(pod.metadata.uid)
        died = trio.current_time()
        await world.until(lambda: len(world.runtime.starts(pod.metadata.uid)) == 2)
        assert world.runtime.starts(pod.metadata.uid)[1] - died <= 1.1  # one relist


async def test_a_crash_loop_is_started_when_its_back_off_ends(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    uid = pod.metadata.uid
    async with world.running():
        await world.add(pod)
        for count in range(1, 4):
            await world.until(lambda count=count: len(world.runtime.starts(uid)) == count)  # type: ignore[misc]
            await trio.sleep(1.5)
            world.runtime.die(uid)
            if count == 2:
                await trio.sleep(2)
                [container] = world.status(pod).container_statuses or []
                assert container.state.waiting is not None
                assert container.state.waiting.reason == "CrashLoopBackOff"
                assert container.last_state.terminated is not None
    starts = world.runtime.starts(uid)
    assert 10 <= starts[2] - starts[1] - 1.5 < 10.3


async def test_an_edited_static_pod_is_replaced_within_a_second_of_the_old_ones_end(
    autojump_clock: trio.abc.Clock,
) -> None:
    world = World()
    old, new = make_pod(uid="old"), make_pod(uid="new")
    world.runtime.stop_takes["old"] = 7
    async with world.running():
        await world.add(old)
        await world.until(lambda: "old" in world.runtime.alive())
        await world.remove(old)
        await world.add(new)
        await trio.sleep(3)
        assert world.runtime.alive() == {"old"}
        assert "waiting for the end of an earlier pod of the same name" in world.stories(new)
        await world.until(lambda: "new" in world.runtime.alive())
    assert world.runtime.starts("new")[0] - world.runtime.stopped_at("old") < 1
