"""The eviction manager over doors in memory: when it acts, on whom, and when it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.eviction.build import pod_stats
from tests.node.world import Said
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.eviction.manager import LOOK_AGAIN, EvictionManager, EvictionSettings
from trio_kubelet.eviction.metrics import EvictionMetrics
from trio_kubelet.eviction.monitor import PressureMonitor, PressureSettings
from trio_kubelet.eviction.signals import SignalPlaces
from trio_kubelet.eviction.thresholds import CALM, REST, Signal, Threshold, pause_before_next
from trio_kubelet.podinfo.updates import CONFIG_SOURCE_ANNOTATION
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService
from trio_kubelet.stats.summary_types import FsStats, PodStats

Clock = trio.testing.MockClock


def a_pod(name: str, priority: int = 0, size_limit: str = "") -> v1.Pod:
    volumes = None
    if size_limit:
        volumes = [v1.Volume(name="v", empty_dir=v1.EmptyDirVolumeSource(size_limit=size_limit))]
    return v1.Pod(
        metadata=v1.ObjectMeta(name=name, namespace="default", uid=name),
        spec=v1.PodSpec(containers=[v1.Container(name="c")], priority=priority, volumes=volumes),
    )


class JumpyClock(TrioClock):
    """A wall clock that somebody sets."""

    jumped_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.jumped_ns


class World:
    """A node whose pods use what `uses` says, and give it back when they have stopped."""

    def __init__(self, *thresholds: Threshold, period: float = 300.0, disk: bool = False) -> None:
        self.clock = JumpyClock(1_700_000_000 * NANOSECONDS)
        self.capacity, self.taken = 1000, 0
        self.reads = 0
        self.pods: dict[str, v1.Pod] = {}
        self.uses: dict[str, int] = {}
        self.evicted: list[tuple[str, int, str]] = []
        self.evicted_at: list[float] = []
        self.freed: list[str] = []
        self.measured_times = 0
        self.looks_at_disks = 0
        self.layers_after_a_look = ""
        self.layers_at = "9999"
        self.images = 0
        self.reclaim_seconds = 0.0
        self.memory_left: int | None = None  # of a node whose disk runs short, too
        self.stuck: set[str] = set()
        self.said = Said()
        self.disk = disk
        self.frozen_at = 0
        self.service = SimService(SimRuntime(), self.clock)
        places = SignalPlaces(memory=1000, root_dir="/", pods_cgroup="/kubepods")
        settings = PressureSettings(places=places, thresholds=thresholds, transition_period=period)
        self.monitor = PressureMonitor(settings, sim_services(self.service).images, self._read, self.said)
        self.registry = CollectorRegistry()
        self.alarm = trio.Event()
        self.manager = EvictionManager(
            EvictionSettings(max_grace=5),
            monitor=self.monitor,
            pods=self,
            stats=self,
            reclaim=self,
            events=self.said,
            metrics=EvictionMetrics(self.registry),
            clock=self.clock,
            alarm=self._alarm,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run)
            nursery.start_soon(self.manager.run)
            yield nursery
            nursery.cancel_scope.cancel()

    def add(self, name: str, use: int, priority: int = 0, size_limit: str = "") -> None:
        self.pods[name], self.uses[name] = a_pod(name, priority, size_limit), use

    def left(self) -> int:
        return max(0, self.capacity - self.taken - self.images - sum(self.uses.values()))

    def _read(self, places: SignalPlaces) -> dict[str, Signal]:
        self.reads += 1
        now = self.frozen_at or self.clock.now_ns()
        name = "nodefs.available" if self.disk else "memory.available"
        signals = {name: Signal(self.left(), self.capacity, now), "imagefs.available": Signal(9, 10, now)}
        if self.memory_left is not None:
            signals["memory.available"] = Signal(self.memory_left, self.capacity, now)
        return signals

    async def _alarm(self) -> None:
        await self.alarm.wait()
        self.alarm = trio.Event()

    # The doors

    def candidates(self) -> list[v1.Pod]:
        gone = {name for name, _, _ in self.evicted}
        return [pod for name, pod in self.pods.items() if name not in gone]

    def evict(
        self,
        pod: v1.Pod,
        *,
        grace: int,
        message: str,
        disruption: bool,
        annotations: Mapping[str, str],
        why: str,
    ) -> trio.Event:
        name = pod.metadata.name
        self.evicted.append((name, grace, message))
        self.evicted_at.append(trio.current_time())
        stopped = trio.Event()
        if self.memory_left is not None:
            self.memory_left = self.capacity
        if name not in self.stuck:
            self.uses[name] = 0
            stopped.set()
        return stopped

    async def wait_stopped(self, pod: v1.Pod, stopped: trio.Event, grace: int) -> bool:
        with trio.move_on_after(10):
            await stopped.wait()
            return True
        return False

    def is_finished(self, uid: str) -> bool:
        return self.uses[uid] == 0

    async def measured(self, uids: Collection[str] | None = None) -> dict[str, PodStats]:
        await trio.lowlevel.checkpoint()
        self.measured_times += 1
        found = {
            name: pod_stats(name, {"mem": use, "c": [{"n": "c", "mem": use}], "v": {"v": (use, 1)}})
            for name, use in self.uses.items()
            if uids is None or name in uids
        }
        for stats in found.values():
            stats.containers[0].rootfs = FsStats(time=self.layers_at, used_bytes=0, inodes_used=0)
            for volume in stats.volume or ():
                volume.time = "9999"
        return found

    async def in_use(self) -> dict[str, PodStats]:
        found = await self.measured()
        for stats in found.values():
            stats.volume, stats.containers[0].rootfs = None, None
        return found

    async def look_at_disks(self) -> None:
        await trio.sleep(0.2)
        self.looks_at_disks += 1
        self.layers_at = self.layers_after_a_look or self.layers_at

    async def dead_containers(self) -> None:
        await trio.lowlevel.checkpoint()
        self.freed.append("containers")

    async def unused_images(self) -> None:
        await trio.sleep(self.reclaim_seconds)
        self.freed.append("images")
        self.images = 0


HARD = Threshold("memory.available", "100")


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
