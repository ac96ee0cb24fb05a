"""The eviction manager over doors in memory: when it acts, on whom, and when it does not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.eviction.world import HARD, World
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.eviction.manager import LOOK_AGAIN
from trio_kubelet.eviction.thresholds import CALM, REST, Signal, Threshold, pause_before_next
from trio_kubelet.podinfo.updates import CONFIG_SOURCE_ANNOTATION
from trio_kubelet.stats.summary_types import PodStats

Clock = trio.testing.MockClock


async def test_a_calm_node_is_only_looked_at(autojump_clock: Clock) -> None:
    world = World(HARD)
    world.add("calm", 500)
    async with world.running():
        await trio.sleep(100)
    assert (world.evicted, world.measured_times) == ([], 0)
    assert world.reads <= 100 / CALM + 1


GIB = 1 << 30


def memory(left: int, capacity: int = 64 * GIB) -> dict[str, Signal]:
    return {"memory.available": Signal(left, capacity)}


@pytest.mark.parametrize(
    ("left", "cpus", "pause"),
    [
        (60 * GIB, 1, REST),  # plenty
        (12 * GIB, 1, 2.75),  # 11 GiB at 4 GiB a second
        (12 * GIB, 2, 2.75 / 2),
        (12 * GIB, 64, CALM),
        (GIB, 1, CALM),  # crossed
        (0, 1, CALM),
    ],
)
def test_the_more_is_left_the_later_is_the_next_look(left: int, cpus: int, pause: float) -> None:
    threshold = Threshold("memory.available", "1Gi")
    assert pause_before_next([threshold], memory(left), memory(left), 1.0, cpus) == pause


def test_what_shrinks_fast_is_looked_at_sooner() -> None:
    threshold = Threshold("memory.available", "0")
    halfway = pause_before_next([threshold], memory(6 * GIB), memory(60 * GIB), 5.0, 1)
    assert halfway == 6 / 54 * 5.0 / 2, "half of what is left at that rate"


@given(
    left=st.integers(0, 1 << 40),
    taken=st.integers(0, 1 << 40),
    elapsed=st.floats(0, 60),
    cpus=st.integers(1, 512),
)
def test_nothing_is_gone_long_before_the_next_look(left: int, taken: int, elapsed: float, cpus: int) -> None:
    before = memory(left + taken, 1 << 42)
    pause = pause_before_next(
        [Threshold("memory.available", "0")], memory(left, 1 << 42), before, elapsed, cpus
    )
    assert 0 < pause <= REST
    assert pause <= max(CALM, left / (cpus * 4 * GIB))


def test_what_is_over_its_threshold_is_looked_at_as_always_however_fast_it_grows() -> None:
    threshold = Threshold("memory.available", "1Gi")
    assert pause_before_next([threshold], memory(GIB), memory(2 * GIB), 0.01, 1) == CALM
    assert pause_before_next([threshold], memory(12 * GIB), memory(13 * GIB), 0.0, 1) == 2.75


def test_a_node_without_thresholds_is_looked_at_now_and_then() -> None:
    assert pause_before_next([], memory(5), {}, 1.0, 1) == REST


async def test_the_leaking_pod_goes_within_a_second_and_nobody_else(autojump_clock: Clock) -> None:
    world = World(HARD)
    for number in range(20):
        world.add(f"calm-{number}", 20)
    world.add("leak", 10)
    async with world.running():
        await trio.sleep(33)
        world.uses["leak"] = 530
        crossed = trio.current_time()
        await trio.sleep(60)
    assert [name for name, _, _ in world.evicted] == ["leak"]
    assert world.evicted_at[0] - crossed <= 1.0
    told = "The node was low on resource: memory. Threshold quantity: 100, available: 70. "
    use = "Container c was using 530, request is 0, has larger consumption of memory. "
    assert world.evicted[0][1:] == (1, told + use)
    assert ("Warning", "EvictionThresholdMet", "Attempting to reclaim memory") in world.said.events
    labels = {"eviction_signal": "memory.available"}
    for name in ("kubelet_evictions", "kubelet_eviction_stats_age_seconds_count"):
        assert world.registry.get_sample_value(name, labels) == 1
    age = world.registry.get_sample_value("kubelet_eviction_stats_age_seconds_sum", labels)
    assert age is not None
    assert 0 <= age <= 1


async def test_figures_of_the_runtime_are_not_waited_for_when_memory_runs_out(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the shim of every container for them; cgroups tell the same at once."""
    world = World(HARD)
    world.add("calm", 20)
    world.add("leak", 10)
    fast = world.measured

    async def slow(uids: Collection[str] | None = None) -> dict[str, PodStats]:
        await trio.sleep(8)
        return await fast(uids)

    monkeypatch.setattr(world, "measured", slow)
    monkeypatch.setattr(world, "in_use", fast)
    async with world.running():
        await trio.sleep(33)
        world.uses["leak"] = 930
        crossed = trio.current_time()
        await trio.sleep(5)
    assert [name for name, _, _ in world.evicted] == ["leak"]
    assert world.evicted_at[0] - crossed <= CALM


@pytest.mark.parametrize("disk", [False, True])
async def test_nobody_goes_while_the_runtime_never_told_its_pods(
    autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    disk: bool,
) -> None:
    """Whoever went would go by chance. The first figures are acted on within a second or so."""
    world = World(Threshold("nodefs.available" if disk else "memory.available", "100"), disk=disk)
    world.add("calm", 20)
    world.add("leak", 930)
    known = world.measured

    async def unknown(uids: Collection[str] | None = None) -> dict[str, PodStats] | None:
        await trio.sleep(3)
        return await known(uids) if trio.current_time() > 60 else None

    monkeypatch.setattr(world, "measured", unknown)
    monkeypatch.setattr(world, "in_use", unknown)
    async with world.running():
        await trio.sleep(60)
        assert world.evicted == []
        await trio.sleep(10)
    assert len(world.evicted) == 1
    assert world.evicted_at[0] <= 65
    if not disk:
        assert world.evicted[0][0] == "leak"
    events = [reason for _, reason, _ in world.said.events]
    assert events == ["EvictionThresholdMet"], "it is told once"
    assert capfd.readouterr().err.count("failed to get summary stats") == 1


async def test_a_start_under_pressure_evicts_as_soon_as_a_pod_was_looked_at(
    autojump_clock: Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    """Which is some seconds after the start: until then nobody can go, and that is told once."""
    await trio.sleep(100)
    world = World(HARD)
    world.taken = 950
    async with world.running():
        await trio.sleep(4.5)
        assert world.evicted == []
        world.taken = 0
        world.add("calm", 20)
        world.add("leak", 930)
        known = trio.current_time()
        await trio.sleep(5)
    assert [name for name, _, _ in world.evicted] == ["leak"]
    assert world.evicted_at[0] - known <= LOOK_AGAIN + CALM
    assert [reason for _, reason, _ in world.said.events] == ["EvictionThresholdMet"]
    assert capfd.readouterr().err.count("no pods are active to evict") == 1


async def test_one_pod_at_a_time_until_it_is_enough(autojump_clock: Clock) -> None:
    world = World(Threshold("memory.available", "100", reclaim="200"))
    for name, use in (("big", 200), ("middle", 190), ("small", 180), ("least", 170)):
        world.add(name, use)
    world.taken = 200
    async with world.running():
        await trio.sleep(60)
    # 60 are left, 300 are wanted: the first frees 200, which is not enough, the second is.
    assert [name for name, _, _ in world.evicted] == ["big", "middle"]


async def test_what_goes_on_running_out_waits_for_nothing_after_an_eviction(autojump_clock: Clock) -> None:
    world = World(HARD)
    for name, use in (("first", 400), ("second", 390), ("third", 380)):
        world.add(name, use)
    world.taken = 400
    async with world.running():
        await trio.sleep(2)
    assert [name for name, _, _ in world.evicted] == ["first", "second"]


async def test_a_pod_that_does_not_stop_is_not_evicted_twice(autojump_clock: Clock) -> None:
    world = World(HARD)
    world.add("stuck", 500)
    world.add("next", 450)
    world.stuck.add("stuck")
    async with world.running():
        await trio.sleep(39)
        assert [name for name, _, _ in world.evicted] == ["stuck"]
        await trio.sleep(20)
    assert [name for name, _, _ in world.evicted] == ["stuck", "next"]


@pytest.mark.parametrize(
    ("priority", "source"),
    [(2_000_000_000, "api"), (0, "file"), (0, "http")],
    ids=["critical", "file", "URL"],
)
async def test_only_critical_and_static_pods_are_left(
    autojump_clock: Clock, priority: int, source: str
) -> None:
    world = World(HARD)
    world.add("critical", 950, priority=priority)
    world.pods["critical"].metadata.annotations = {CONFIG_SOURCE_ANNOTATION: source}
    async with world.running():
        await trio.sleep(35)
    assert world.evicted == []
    # One attempt each ten seconds, as figures of all pods cost something.
    assert world.measured_times == 4


async def test_images_go_before_pods_do(autojump_clock: Clock) -> None:
    world = World(Threshold("nodefs.available", "100"), disk=True)
    world.add("pod", 500)
    world.images = 450
    async with world.running():
        await trio.sleep(30)
        assert (world.freed, world.evicted) == (["containers", "images"], [])
        assert world.monitor.conditions == {"DiskPressure"}
        world.images, world.uses["pod"] = 0, 950  # nothing to free any more
        await trio.sleep(30)
    assert [name for name, _, _ in world.evicted] == ["pod"]


async def test_a_soft_threshold_waits_for_its_grace_and_gives_some(autojump_clock: Clock) -> None:
    world = World(Threshold("memory.available", "100", grace=30.0))
    world.add("pod", 950)
    async with world.running():
        await trio.sleep(29)
        assert not world.evicted
        assert world.monitor.conditions == {"MemoryPressure"}
        await trio.sleep(3)
    assert [(name, grace) for name, grace, _ in world.evicted] == [("pod", 5)]


async def test_many_over_their_limits_go_at_once(autojump_clock: Clock) -> None:
    world = World()
    for number in range(500):
        world.add(f"pod-{number}", 0, size_limit="1k")
    async with world.running():
        await trio.sleep(25)
        assert world.evicted == []
        world.uses.update(dict.fromkeys(world.uses, 2000))
        await trio.sleep(20)
    assert len(world.evicted) == len({name for name, _, _ in world.evicted}) == 500
    assert world.evicted[0][2] == 'Usage of EmptyDir volume "v" exceeds the limit "1k". '


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_one_victim_raises_the_others_go(
    shape: str, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = World.evict

    def evict(self: World, pod: v1.Pod, **how: Any) -> trio.Event:
        if pod.metadata.name == "pod-0":
            raise SHAPES[shape]()
        return real(self, pod, **how)

    monkeypatch.setattr(World, "evict", evict)
    world = World()
    for number in range(3):
        world.add(f"pod-{number}", 0, size_limit="1k")
    async with world.running():
        await trio.sleep(25)
        world.uses.update(dict.fromkeys(world.uses, 2000))
        await trio.sleep(20)
    assert {name for name, _, _ in world.evicted} == {"pod-1", "pod-2"}


async def test_the_kernel_can_ask_for_a_look(autojump_clock: Clock) -> None:
    world = World(HARD)
    world.add("leak", 500)
    async with world.running():
        await trio.sleep(10.4)
        world.uses["leak"] = 950
        world.alarm.set()
        await trio.sleep(0.1)
        assert [name for name, _, _ in world.evicted] == ["leak"]
