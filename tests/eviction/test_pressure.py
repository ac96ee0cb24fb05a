"""Which pressures follow from thresholds and signals, over time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.node.world import Said
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.common.clock import NANOSECONDS, SystemClock, TrioClock
from trio_kubelet.common.lanes import WorkHangs
from trio_kubelet.config.types import KubeletConfiguration
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.eviction import signals as eviction_signals
from trio_kubelet.eviction.monitor import PressureMonitor, PressureSettings
from trio_kubelet.eviction.pressure import Pressure, observe, to_act_on
from trio_kubelet.eviction.signals import SignalPlaces, read_signals
from trio_kubelet.eviction.thresholds import (
    CALM,
    REST,
    Layout,
    Signal,
    Threshold,
    for_filesystems,
    is_crossed,
    pause_before_next,
    thresholds_of,
)
from trio_kubelet.machine.cgroup_reader import CgroupReader, cgroup_reader
from trio_kubelet.machine.node_reader import are_apart
from trio_kubelet.machine.values import CgroupUse, Processes
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.faults import Fault, Kind
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService

Clock = trio.testing.MockClock
MEMORY = Threshold("memory.available", "100")
PERIOD = 300.0


def memory(available: int) -> dict[str, Signal]:
    return {"memory.available": Signal(available, 1000)}


def test_thresholds_of_a_configuration() -> None:
    config = KubeletConfiguration(
        eviction_hard={"memory.available": "100Mi", "nodefs.available": "0%", "pid.available": "100%"},
        eviction_soft={"memory.available": "300Mi"},
        eviction_soft_grace_period={"memory.available": "1m30s"},
        eviction_minimum_reclaim={"memory.available": "50Mi"},
    )
    hard = Threshold("memory.available", "100Mi", 0.0, "50Mi")
    soft = Threshold("memory.available", "300Mi", 90.0, "50Mi")
    of_pods = Threshold("allocatableMemory.available", "100Mi", 0.0, "50Mi")
    assert thresholds_of(config) == (hard, soft, of_pods)
    assert thresholds_of(config, ignore_eviction=True) == (hard, soft)


def test_a_soft_threshold_without_grace_is_the_pods_too() -> None:
    config = KubeletConfiguration(
        eviction_soft={"memory.available": "300Mi"}, eviction_soft_grace_period={"memory.available": "0s"}
    )
    assert [each.signal for each in thresholds_of(config)] == [
        "memory.available",
        "allocatableMemory.available",
    ]


@pytest.mark.parametrize(
    ("layout", "expected"), [(Layout.ONE, "10%"), (Layout.IMAGES_APART, "15%"), (Layout.SPLIT, "10%")]
)
def test_the_containers_filesystem_goes_with_another(layout: Layout, expected: str) -> None:
    given_thresholds = (
        Threshold("nodefs.available", "10%"),
        Threshold("imagefs.available", "15%"),
        Threshold("containerfs.available", "1%"),
    )
    found = for_filesystems(given_thresholds, layout)
    assert found == (*given_thresholds[:2], Threshold("containerfs.available", expected))


def test_under_the_threshold_and_only_there() -> None:
    at = observe([MEMORY], memory(100), Pressure(), PERIOD, 0.0)
    assert not at.conditions
    under = observe([MEMORY], memory(99), at, PERIOD, 1.0)
    assert under.conditions == {"MemoryPressure"}
    assert under.met == (MEMORY,)


def test_a_percentage_is_of_the_capacity() -> None:
    threshold = Threshold("nodefs.inodesFree", "5%")
    pressed = observe([threshold], {"nodefs.inodesFree": Signal(49, 1000)}, Pressure(), PERIOD, 0.0)
    assert pressed.conditions == {"DiskPressure"}
    free = observe([threshold], {"nodefs.inodesFree": Signal(50, 1000)}, Pressure(), PERIOD, 0.0)
    assert not free.conditions


def test_it_stays_for_the_transition_period() -> None:
    state = observe([MEMORY], memory(1), Pressure(), PERIOD, 0.0)
    state = observe([MEMORY], memory(500), state, PERIOD, 299.0)
    assert state.conditions == {"MemoryPressure"}
    assert not state.met
    state = observe([MEMORY], memory(500), state, PERIOD, 300.0)
    assert not state.conditions


def test_a_soft_threshold_presses_at_once_and_evicts_after_its_grace() -> None:
    soft = Threshold("pid.available", "10", 60.0)
    low, high = {"pid.available": Signal(1, 100)}, {"pid.available": Signal(50, 100)}
    state = observe([soft], low, Pressure(), PERIOD, 0.0)
    assert state.conditions == {"PIDPressure"}
    assert state.met == ()
    state = observe([soft], low, state, PERIOD, 60.0)
    assert state.met == (soft,)
    state = observe([soft], high, state, PERIOD, 61.0)
    state = observe([soft], low, state, PERIOD, 62.0)
    assert state.met == ()


def test_what_was_met_is_over_when_enough_is_reclaimed() -> None:
    threshold = Threshold("memory.available", "100", 0.0, "50")
    state = observe([threshold], memory(99), Pressure(), 0.5, 0.0)
    state = observe([threshold], memory(149), state, 0.5, 1.0)
    assert state.conditions == {"MemoryPressure"}
    assert state.met == (threshold,)
    state = observe([threshold], memory(150), state, 0.5, 2.0)
    assert (state.conditions, state.met) == (frozenset(), ())
    assert not observe([threshold], memory(149), state, 0.5, 3.0).conditions


def test_memory_is_acted_on_before_disks_and_processes() -> None:
    """Whatever comes first in the configuration."""
    names = ("pid.available", "memory.available", "nodefs.inodesFree", "allocatableMemory.available")
    signals = {name: Signal(1, 1000) for name in names}
    seen = observe([Threshold(name, "100") for name in names], signals, Pressure(), PERIOD, 0.0)
    assert [each.signal for each in to_act_on(seen, Pressure())] == [names[1], names[3], names[0], names[2]]


def test_a_minimum_reclaim_may_be_all_there_is() -> None:
    config = KubeletConfiguration(
        eviction_hard={"memory.available": "100"},
        eviction_minimum_reclaim={"memory.available": "100%"},
        enforce_node_allocatable=[],
    )
    (threshold,) = thresholds_of(config)
    state = observe([threshold], memory(99), Pressure(), 0.5, 0.0)
    state = observe([threshold], memory(1000), state, 0.5, 1.0)
    assert state.met == (threshold,)


def test_a_signal_that_cannot_be_read_meets_nothing() -> None:
    assert not observe([MEMORY], {}, Pressure(), PERIOD, 0.0).conditions


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 200)), max_size=30))
def test_pressed_if_seen_within_the_period(steps: list[tuple[int, int]]) -> None:
    state, now = Pressure(), 0.0
    low: list[float] = []
    for seconds, available in steps:
        now += seconds
        if available < 100:
            low.append(now)
        state = observe([MEMORY], memory(available), state, PERIOD, now)
        assert bool(state.conditions) == any(now - at < PERIOD for at in low)


def test_this_machine_can_be_read() -> None:
    clock = SystemClock()
    places = SignalPlaces(
        memory=1 << 50, root_dir="/", pods_cgroup="/nonexistent", image_fs="/", container_fs="/no/such"
    )
    signals = read_signals(places, cgroup_reader(find_hierarchies(), clock), clock)
    assert {"memory.available", "nodefs.available", "imagefs.inodesFree", "pid.available"} <= set(signals)
    assert not {"allocatableMemory.available", "containerfs.available"} & set(signals)
    assert 0 < signals["memory.available"].available < 1 << 50
    # What is left on it may change between two looks at the same filesystem.
    assert signals["nodefs.available"].capacity == signals["imagefs.available"].capacity > 0
    assert 0 < signals["imagefs.inodesFree"].available <= signals["imagefs.inodesFree"].capacity
    assert 0 < signals["pid.available"].available < signals["pid.available"].capacity
    assert are_apart("/", "/proc")
    assert not are_apart("/", "/")


@pytest.mark.parametrize(("least", "inodes"), [("5%", 0), ("1000", 0), ("1000", 10_000)])
def test_where_inodes_are_not_counted_none_run_out(
    least: str, inodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they looked at all the time: a filesystem such as Btrfs says that it has 0, and 0 are left."""
    disk = SimpleNamespace(
        f_bavail=1 << 30, f_bfree=1 << 30, f_blocks=1 << 30, f_frsize=4096, f_files=inodes, f_ffree=0
    )
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    places = SignalPlaces(memory=1000, root_dir="/", pods_cgroup="/kubepods")
    signals = read_signals(places, Cgroups(None), SystemClock())
    threshold = Threshold("nodefs.inodesFree", least)
    assert is_crossed(threshold, signals.get("nodefs.inodesFree"), reclaimed=False) == bool(inodes)
    assert pause_before_next([threshold], signals, {}, 1.0, 1) == (CALM if inodes else REST)


MACHINE = CgroupUse(at_ns=1, memory=900, working_set=700, cache=300, inactive_file=200)


class Cgroups(CgroupReader):
    """Those of the machine and of its pods; `pods` is what those use, None where they have no cgroup."""

    def __init__(self, pods: CgroupUse | None, machine: CgroupUse | None = MACHINE) -> None:
        self._uses = {"/": machine, "/kubepods": pods}

    def uses(self, cgroups: Sequence[str], processes: bool = True) -> list[CgroupUse | None]:
        return [self._uses[cgroup] for cgroup in cgroups]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (None, None),
        (CgroupUse(at_ns=2, memory=500, working_set=400, memory_limit=0), None),
        (CgroupUse(at_ns=2, memory=500, working_set=400), None),  # without a limit it is the machine's memory
        (CgroupUse(at_ns=2, memory_limit=800), None),
        (
            CgroupUse(at_ns=2, memory=500, working_set=400, cache=90, inactive_file=60, memory_limit=800),
            Signal(400, 800, 2, 90, 60),
        ),
        (CgroupUse(at_ns=2, memory=900, working_set=850, memory_limit=800), Signal(0, 800, 2)),
    ],
)
def test_memory_of_the_machine_and_of_its_pods(pods: CgroupUse | None, expected: Signal | None) -> None:
    places = SignalPlaces(memory=1000, root_dir="/", pods_cgroup="/kubepods")
    signals = read_signals(places, Cgroups(pods), SystemClock())
    assert signals["memory.available"] == Signal(300, 1000, 1, 300, 200)
    assert signals.get("allocatableMemory.available") == expected


def test_no_less_than_nothing_is_left_of_the_machines_memory() -> None:
    """A machine may be told smaller than it is."""
    places = SignalPlaces(memory=600, root_dir="/", pods_cgroup="/kubepods")
    signals = read_signals(places, Cgroups(None), SystemClock())
    assert signals["memory.available"] == Signal(0, 600, 1, 300, 200)


@pytest.mark.parametrize("tasks", [Processes(1, None, 5), Processes(1, 100, None)])
def test_where_nobody_tells_of_the_machines_processes_the_rest_is_seen(
    tasks: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_signals, "processes_of_machine", lambda clock: tasks)
    places = SignalPlaces(memory=1000, root_dir="/", pods_cgroup="/kubepods")
    found = read_signals(places, Cgroups(None), SystemClock())
    assert "pid.available" not in found
    assert {"memory.available", "nodefs.available"} <= set(found)


@pytest.mark.parametrize("machine", [None, CgroupUse(at_ns=1)])
def test_where_nobody_tells_of_the_machines_memory_the_rest_is_seen(machine: CgroupUse | None) -> None:
    places = SignalPlaces(memory=1000, root_dir="/", pods_cgroup="/kubepods")
    signals = read_signals(places, Cgroups(None, machine), SystemClock())
    assert "memory.available" not in signals
    assert {"nodefs.available", "pid.available"} <= set(signals)


class World:
    """A monitor over a simulated runtime; `signals` is what it reads."""

    def __init__(self) -> None:
        self.signals: dict[str, Signal] = memory(500)
        self.places: list[SignalPlaces] = []
        self.said = Said()
        self.changes = 0
        self.service = SimService(SimRuntime(), TrioClock(1_700_000_000 * NANOSECONDS))
        places = SignalPlaces(memory=1000, root_dir="/", pods_cgroup="/kubepods")
        settings = PressureSettings(places=places, thresholds=(MEMORY,), transition_period=60.0)
        self.monitor = PressureMonitor(settings, sim_services(self.service).images, self.read, self.said)
        self.monitor.changed.listen(self._count)

    async def look_for_ever(self) -> None:
        while True:
            await trio.sleep(10)
            await self.monitor.look()

    def read(self, places: SignalPlaces) -> dict[str, Signal]:
        self.places.append(places)
        return self.signals

    def _count(self) -> None:
        self.changes += 1


async def test_the_monitor_tells_of_changes(autojump_clock: Clock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        await world.monitor.look()
        nursery.start_soon(world.look_for_ever)
        await trio.sleep(25)
        assert world.changes == 0
        world.signals = memory(1)
        await trio.sleep(10)
        assert world.monitor.pressure.conditions == {"MemoryPressure"}
        world.signals = memory(500)
        await trio.sleep(45)
        assert world.changes == 1
        await trio.sleep(20)
        assert (world.changes, world.monitor.pressure.conditions) == (2, frozenset())
        assert world.places[-1].image_fs
        nursery.cancel_scope.cancel()


async def test_an_image_filesystem_without_a_size_is_told_now_and_then(autojump_clock: Clock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        nursery.start_soon(world.look_for_ever)
        await trio.sleep(899)
        text = "invalid capacity 0 on image filesystem"
        assert world.said.events == [("Warning", "InvalidDiskCapacity", text)] * 3
        world.signals = memory(500) | {"imagefs.available": Signal(1, 2)}
        await trio.sleep(900)
        assert len(world.said.events) == 3
        assert world.monitor.image_filesystem() == (2, 1)
        world.signals = memory(500)
        await world.monitor.look()
        assert world.monitor.image_filesystem() is None
        nursery.cancel_scope.cancel()


class Images:
    """Says where images and containers are."""

    def __init__(self) -> None:
        self.answer = cri.ImageFsInfoResponse()

    async def image_fs_info(self) -> cri.ImageFsInfoResponse:
        await trio.lowlevel.checkpoint()
        return self.answer


async def test_where_images_are_is_what_the_runtime_last_said(autojump_clock: Clock) -> None:
    """One that names no filesystem for containers has them with the images."""
    world, images = World(), Images()
    door: Any = images
    monitor = PressureMonitor(world.monitor.settings, door, world.read, world.said)
    await monitor.look()
    assert (world.places[-1].image_fs, world.places[-1].container_fs) == ("", "")
    where = cri.FilesystemUsage(fs_id=cri.FilesystemIdentifier(mountpoint="/"))
    for images.answer in (cri.ImageFsInfoResponse(image_filesystems=[where]), cri.ImageFsInfoResponse()):
        await trio.sleep(60)
        await monitor.look()
        assert (world.places[-1].image_fs, world.places[-1].container_fs) == ("/", "/")


class Full:
    """A lane without a thread: the process table is full, or its threads hang."""

    left_behind = 0

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def run(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), WorkHangs("pressure: hangs")])
async def test_it_is_looked_even_without_a_thread(
    autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        await world.monitor.look()
        monkeypatch.setattr("trio_kubelet.eviction.monitor.PRESSURE", Full(error))
        world.signals = memory(1)
        seen = await world.monitor.look()
        await world.monitor.look()
        assert capfd.readouterr().err.count(str(error)) == 1, "what hinders is told once"
        nursery.cancel_scope.cancel()
    assert seen.met == (MEMORY,)
    assert world.monitor.conditions == {"MemoryPressure"}
    # What hangs is a disk: it is left out, and the rest is seen.
    assert bool(world.places[-1].root_dir) == isinstance(error, RuntimeError)


class Stuck:
    """A lane whose threads do not come back from a disk, until `left_behind` says so."""

    left_behind = 2

    async def run(self, read: Callable[[SignalPlaces], object], places: SignalPlaces) -> object:
        if self.left_behind:
            await trio.sleep(10)
            raise WorkHangs("pressure: no end within 10 s")
        await trio.lowlevel.checkpoint()
        return read(places)


async def test_a_disk_that_hangs_is_waited_for_once(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Memory runs out in less time than its deadline."""
    world, lane = World(), Stuck()
    monkeypatch.setattr("trio_kubelet.eviction.monitor.PRESSURE", lane)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        await world.monitor.look()
        began = trio.current_time()
        for _ in range(100):
            await world.monitor.look()
        assert trio.current_time() - began < 1
        assert not world.places[-1].root_dir
        assert capfd.readouterr().err.count("A filesystem hangs") == 1
        lane.left_behind = 0
        await world.monitor.look()
        assert world.places.pop().root_dir
        nursery.cancel_scope.cancel()


async def test_a_runtime_that_hangs_costs_few_looks(autojump_clock: Clock) -> None:
    world, looks = World(), 0
    world.service.faults.add(Fault(Kind.HANG, "ImageFsInfo"))
    async with trio.open_nursery() as nursery:
        await nursery.start(world.service.run)
        end = trio.current_time() + 60
        while trio.current_time() < end:
            await world.monitor.look()
            looks += 1
            await trio.sleep(0.25)
        nursery.cancel_scope.cancel()
    assert looks > 180
    assert world.said.events == [], "what is not known to be there is not said to be empty"
