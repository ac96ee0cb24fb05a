"""`--runonce`: the pods of one update are started, nothing else."""

from __future__ import annotations

import pytest
import trio

from tests.pods.admit_all import Few
from tests.pods.build import make_pod
from tests.pods.world import World
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate
from trio_kubelet.pods.run_once import RunOnceError


async def once(world: World, *pods: object) -> list[str]:
    send, receive = trio.open_memory_channel[PodUpdate](1)
    if pods:
        send.send_nowait(PodUpdate(PodOperation.SET, "file", pods))  # type: ignore[arg-type]
    return [pod.metadata.uid for pod in await world.room.run_once(receive)]


async def test_the_pods_of_one_update_are_started(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.runtime.sync_errors["uid-a"] = 3
    assert await once(world, make_pod("a"), make_pod("b")) == ["uid-a", "uid-b"]
    assert world.runtime.alive() == {"uid-a", "uid-b"}
    assert trio.current_time() < 8


async def test_what_has_ended_before_is_started(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.runtime.add("uid-a", "a")
    world.runtime.die("uid-a")
    assert await once(world, make_pod("a")) == ["uid-a"]
    assert world.runtime.alive() == {"uid-a"}


async def test_no_update_in_time_is_an_error(autojump_clock: trio.abc.Clock) -> None:
    with pytest.raises(RunOnceError, match="no pod manifest update after 1s"):
        await once(World())


async def test_a_refused_pod_is_no_failure(autojump_clock: trio.abc.Clock) -> None:
    world = World(admitter=Few())
    assert await once(world, make_pod("a"), make_pod("b"), make_pod("c")) == ["uid-a", "uid-b"]
    assert world.events.reasons("uid-c") == ["OutOfpods"]


async def test_pods_that_fail_are_named(autojump_clock: trio.abc.Clock) -> None:
    world = World(admitter=Few())
    world.runtime.sync_errors["uid-a"] = 100
    with pytest.raises(RunOnceError) as failure:
        await once(world, make_pod("a"), make_pod("b"), make_pod("c"))
    assert "default/a: failed to" in str(failure.value)
    assert "default/c" not in str(failure.value)
    assert world.events.reasons("uid-c") == ["OutOfpods"]
    assert "default/b" not in str(failure.value)
    assert world.runtime.alive() == {"uid-b"}
