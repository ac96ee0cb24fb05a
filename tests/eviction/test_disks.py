"""When disks run out, and beside that: figures that are old, images and a runtime that take long, limits."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import trio
import trio.testing

from tests.eviction.world import HARD, World
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.eviction.thresholds import CALM, Threshold
from trio_kubelet.stats.summary_types import PodStats

Clock = trio.testing.MockClock


async def test_a_full_disk_waits_for_figures_from_after_its_crossing(autojump_clock: Clock) -> None:
    """By older ones the pod that fills the disk looks like the others."""
    world = World(Threshold("nodefs.available", "100"), disk=True)
    world.add("pod", 950)
    world.layers_at = "2000-01-01T00:00:00Z"
    async with world.running():
        await trio.sleep(5)
        assert world.evicted == []
        assert 3 <= world.looks_at_disks <= 5, "about one each second"
        world.layers_at = rfc3339(world.clock.now_ns() - 2 * NANOSECONDS)
        await trio.sleep(2)
        assert len(world.evicted) == 1
    assert world.freed == ["containers", "images"]
    assert [reason for _, reason, _ in world.said.events] == ["EvictionThresholdMet"]


async def test_figures_of_disks_that_stay_old_have_to_do(autojump_clock: Clock) -> None:
    world = World(Threshold("nodefs.available", "100"), disk=True)
    world.add("pod", 950)
    world.add("next", 940)
    world.layers_at = "2000-01-01T00:00:00Z"
    async with world.running():
        await trio.sleep(17)
        assert len(world.evicted) == 1
        assert world.freed == ["containers", "images"]
        await trio.sleep(11)
    assert len(world.evicted) == 2
    assert world.freed == ["containers", "images"] * 2, "before each that goes"


async def test_a_disk_that_stays_full_costs_one_pod_after_the_other(autojump_clock: Clock) -> None:
    """What fills it is nobody's here. Each goes by an observation of its own, and then there is peace."""
    world = World(Threshold("nodefs.available", "100"), disk=True)
    for name in ("one", "two", "three"):
        world.add(name, 10)
    world.taken = 1000
    async with world.running():
        await trio.sleep(120)
    assert sorted(name for name, _, _ in world.evicted) == ["one", "three", "two"]
    assert len(set(world.evicted_at)) == 3
    attempts = [reason for _, reason, _ in world.said.events].count("EvictionThresholdMet")
    assert 10 <= attempts <= 15, "one attempt each ten seconds"
    assert world.reads <= 2 * 120 / CALM
    assert world.monitor.conditions == {"DiskPressure"}
    assert world.looks_at_disks == 0, "what is measured all the time is new enough"


async def test_one_observation_costs_one_pod_at_most(autojump_clock: Clock) -> None:
    """Figures that do not change are no news, however often they are read."""
    world = World(HARD)
    for name in ("one", "two", "three"):
        world.add(name, 300)
    world.taken, world.frozen_at = 500, 1_700_000_000 * NANOSECONDS
    async with world.running():
        await trio.sleep(60)
        assert len(world.evicted) == 1
        world.frozen_at = 0
        await trio.sleep(5)
    assert len(world.evicted) == 2


@pytest.mark.parametrize("jump", [-86_400, -1, 1, 86_400])
@pytest.mark.parametrize("disk", [False, True])
async def test_a_clock_that_jumps_delays_no_eviction(autojump_clock: Clock, jump: int, disk: bool) -> None:
    world = World(Threshold("nodefs.available", "100") if disk else HARD, disk=disk)
    world.add("calm", 100, size_limit="1M")
    world.add("hog", 100, size_limit="1M")
    async with world.running():
        await trio.sleep(20)
        assert world.evicted == []
        world.clock.jumped_ns = jump * NANOSECONDS
        world.uses["hog"] = 850
        crossed = trio.current_time()
        await trio.sleep(30)
    assert [name for name, _, _ in world.evicted] == ["hog"]
    assert world.evicted_at[0] - crossed <= 1.0
    assert world.monitor.conditions


async def test_a_look_at_disks_makes_their_figures_fresh(autojump_clock: Clock) -> None:
    world = World(Threshold("nodefs.available", "100"), disk=True)
    world.add("pod", 950)
    world.layers_at, world.layers_after_a_look = "2000-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
    async with world.running():
        await trio.sleep(1)
    assert (len(world.evicted), world.looks_at_disks) == (1, 1)
    labels = {"eviction_signal": "nodefs.available"}
    age = world.registry.get_sample_value("kubelet_eviction_stats_age_seconds_sum", labels)
    assert age == pytest.approx(0.2), "what the signal said before the look"


async def test_figures_of_the_second_of_the_crossing_are_not_enough(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be from just before it, when the pod that fills the disk had nothing yet."""
    world = World(Threshold("nodefs.available", "100"), disk=True)
    world.add("calm", 20, size_limit="1Mi")
    world.add("greedy", 0, size_limit="1Mi")
    now_used = world.measured

    async def last_measured(uids: Collection[str] | None = None) -> dict[str, PodStats]:
        found = await now_used(uids)
        if not world.looks_at_disks:
            for volume in found["greedy"].volume or ():
                volume.used_bytes = 0
        return found

    monkeypatch.setattr(world, "measured", last_measured)
    async with world.running():
        await trio.sleep(30.05)
        world.uses["greedy"] = 900
        world.layers_at = rfc3339(world.clock.now_ns())
        await trio.sleep(0.8)
        assert rfc3339(world.clock.now_ns()) == world.layers_at, "all of this is in one second"
    assert world.looks_at_disks == 1
    assert [name for name, _, _ in world.evicted] == ["greedy"]


DISK = Threshold("nodefs.available", "100")


async def test_a_runtime_that_takes_minutes_for_its_images_holds_up_nobody_who_goes_for_memory(
    autojump_clock: Clock,
) -> None:
    world = World(HARD, DISK, disk=True)
    world.add("calm", 100)
    world.add("leak", 200)
    world.images, world.reclaim_seconds, world.memory_left = 690, 300.0, 500
    async with world.running():
        await trio.sleep(60)
        assert world.evicted == []
        world.memory_left = 50
        await trio.sleep(1)
        assert [name for name, _, _ in world.evicted] == ["leak"]
        assert world.monitor.conditions == {"DiskPressure", "MemoryPressure"}
        await trio.sleep(600)
    assert [name for name, _, _ in world.evicted] == ["leak"]
    assert world.freed == ["containers", "images"]


async def test_nobody_goes_for_a_disk_before_all_is_reclaimed_and_then_by_what_is_left_then(
    autojump_clock: Clock,
) -> None:
    world = World(DISK, disk=True)
    world.add("calm", 100, size_limit="1M")
    world.add("big", 300, size_limit="1M")
    world.images, world.reclaim_seconds, world.taken = 300, 300.0, 300
    async with world.running():
        await trio.sleep(290)
        world.taken = 530
        assert (world.evicted, world.freed) == ([], ["containers"])
        await trio.sleep(60)
    assert [name for name, _, _ in world.evicted] == ["big"]
    assert "available: 70" in world.evicted[0][2]
    assert world.freed == ["containers", "images"]
    assert [reason for _, reason, _ in world.said.events] == ["EvictionThresholdMet"]


async def test_who_exceeds_its_limit_goes_while_images_are_removed(autojump_clock: Clock) -> None:
    world = World(DISK, disk=True)
    world.add("pod", 500, size_limit="600")
    world.images, world.reclaim_seconds = 450, 300.0
    async with world.running():
        await trio.sleep(60)
        assert world.evicted == []
        world.uses["pod"] = 700
        await trio.sleep(12)
        assert [name for name, _, _ in world.evicted] == ["pod"]


async def test_a_disk_that_nobody_can_be_evicted_for_delays_nobody_who_goes_for_memory(
    autojump_clock: Clock,
) -> None:
    world = World(HARD, DISK, disk=True)
    world.add("critical", 950, priority=2_000_000_000)
    world.memory_left = 500
    async with world.running():
        await trio.sleep(31)
        world.memory_left = 50
        world.add("leak", 10)
        await trio.sleep(1)
        assert [name for name, _, _ in world.evicted] == ["leak"]


async def test_who_goes_for_memory_may_be_enough_for_the_disk(autojump_clock: Clock) -> None:
    world = World(HARD, DISK, disk=True)
    world.add("calm", 100)
    world.add("hog", 100)
    world.memory_left = 500
    async with world.running():
        await trio.sleep(20)
        world.uses["hog"], world.memory_left = 850, 50
        await trio.sleep(60)
    assert [name for name, _, _ in world.evicted] == ["hog"]


async def test_a_pod_goes_once_though_it_is_chosen_for_two_reasons(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(HARD)
    world.add("calm", 10, size_limit="700")
    world.add("hog", 10, size_limit="700")
    world.stuck.add("hog")
    fast = world.measured

    async def slow(uids: Collection[str] | None = None) -> dict[str, PodStats]:
        found = await fast(uids)
        await trio.sleep(2)
        return found

    monkeypatch.setattr(world, "measured", slow)
    monkeypatch.setattr(world, "in_use", fast)
    async with world.running():
        await trio.sleep(9.9)
        world.uses["hog"] = 800
        await trio.sleep(1)
        world.uses["hog"] = 950
        await trio.sleep(5)
    assert [name for name, _, _ in world.evicted] == ["hog"]
