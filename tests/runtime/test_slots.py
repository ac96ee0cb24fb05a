"""How many starts are under way at once, and whose turn it is."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from trio_kubelet.runtime import slots as slots_module
from trio_kubelet.runtime.slots import (
    LEAST_PER_CPU,
    LENT,
    MOST_PER_CPU,
    Pace,
    RuntimeSlots,
    Took,
    adapt,
    first_pace,
)


class Machine:
    """A runtime of so many cores: calls beyond them only wait, and each costs the others something.

    So many `others` want a core all the time.
    """

    def __init__(self, cores: float, seconds: float = 0.05, friction: float = 0.01, others: int = 0) -> None:
        self.cores, self.seconds, self.friction, self.others = cores, seconds, friction, others
        self.now = self.most = 0
        self.order: list[str] = []

    async def work(self, name: str = "") -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(name)
        try:
            await trio.lowlevel.checkpoint()  # all that come at once are there
            crowd = max(1.0, (self.now + self.others) / self.cores)
            await trio.sleep(self.seconds * crowd * (1 + self.friction * self.now) * random.uniform(0.9, 1.1))
        finally:
            self.now -= 1


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> RuntimeSlots:
    """Slots of which there is one."""
    monkeypatch.setattr(slots_module, "LEAST_PER_CPU", 1)
    monkeypatch.setattr(slots_module, "MOST_PER_CPU", 1)
    return RuntimeSlots(1)


async def busy(slots: RuntimeSlots, machine: Machine, calls: int) -> float:
    """Makes so many calls at once; seconds until all are done."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(calls):
            nursery.start_soon(slots.call, "start", machine.work)
    return trio.current_time() - began


@pytest.mark.parametrize(("cpus", "cores"), [(2, 2), (2, 4), (8, 8), (16, 16), (2, 1)])
async def test_as_many_are_let_in_as_help(autojump_clock: MockClock, cpus: int, cores: int) -> None:
    random.seed(cpus)
    slots, machine = RuntimeSlots(cpus), Machine(cores)
    took = await busy(slots, machine, 600)
    assert LEAST_PER_CPU * cpus <= slots.limit <= 4 * max(cpus, cores)
    crowded = await busy(RuntimeSlots(10_000), Machine(cores), 600)
    assert took < crowded
    best = 600 * 0.05 / cores
    assert took < 1.25 * best * (1 + 0.01 * cores)


@pytest.mark.parametrize("others", [8, 20])
async def test_beside_others_who_take_the_cores_more_are_let_in(
    autojump_clock: MockClock, others: int
) -> None:
    random.seed(others)
    slots = RuntimeSlots(2)
    took = await busy(slots, Machine(2, others=others), 600)
    assert slots.limit >= 8
    assert took < 0.65 * (600 / 4) * 0.05 * (others + 4) / 2  # by four at a time
    before = slots.limit
    await trio.sleep(60)
    await busy(slots, Machine(2), 200)
    assert slots.limit < before  # they have gone


async def test_a_call_that_hangs_gives_its_place_away(autojump_clock: MockClock) -> None:
    slots, machine = RuntimeSlots(2), Machine(2)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(slots.call, "sandbox", trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await slots.call("sandbox", machine.work, critical=True)
        assert trio.current_time() - began < LENT + 0.2
        nursery.cancel_scope.cancel()


async def test_when_who_keeps_the_time_gives_up_another_does(autojump_clock: MockClock) -> None:
    slots, machine = RuntimeSlots(1), Machine(1)
    async with trio.open_nursery() as hung:
        for _ in range(slots.limit):
            hung.start_soon(slots.call, "sandbox", trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slots.call, "sandbox", machine.work)
            await trio.testing.wait_all_tasks_blocked()
            for begun in (False, True, False):
                with trio.move_on_after(LENT / 4):
                    await slots.call("sandbox", machine.work, begun=begun)
        assert trio.current_time() < LENT + 0.2
        hung.cancel_scope.cancel()


async def test_who_waits_is_not_woken_in_vain(autojump_clock: MockClock) -> None:
    class Steps(trio.abc.Instrument):
        taken = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.taken += 1

    slots, calls, steps = RuntimeSlots(1), 100, Steps()
    async with trio.open_nursery() as nursery:
        for _ in range(calls):
            nursery.start_soon(slots.call, "sandbox", partial(trio.sleep, 0.9 * LENT))
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
    trio.lowlevel.remove_instrument(steps)
    assert trio.current_time() > 10 * LENT
    assert steps.taken < 4 * calls


async def test_critical_pods_first_then_pods_that_have_begun_then_by_age(
    autojump_clock: MockClock, narrow: RuntimeSlots
) -> None:
    slots, machine = narrow, Machine(1)
    async with trio.open_nursery() as nursery:

        async def ask(name: str, *, critical: bool = False, begun: bool = False) -> None:
            await slots.call("x", lambda: machine.work(name), critical=critical, begun=begun)

        nursery.start_soon(ask, "first")
        await trio.testing.wait_all_tasks_blocked()
        for number, name in enumerate(("old", "new", "container", "critical")):
            task = partial(ask, name, critical=name == "critical", begun=name == "container")
            nursery.start_soon(task)
            await trio.sleep(0.005 * (number + 1))
    assert machine.order == ["first", "critical", "container", "old", "new"]


async def test_who_has_waited_long_is_not_passed_by_containers(
    autojump_clock: MockClock, narrow: RuntimeSlots
) -> None:
    slots, machine = narrow, Machine(1, seconds=0.5)
    async with trio.open_nursery() as nursery:

        async def crash_loops() -> None:
            while "sandbox" not in machine.order:
                await slots.call("start", lambda: machine.work("again"), begun=True)

        for _ in range(4):
            nursery.start_soon(crash_loops)
        await trio.sleep(0.1)
        await slots.call("sandbox", lambda: machine.work("sandbox"))
        assert trio.current_time() < 5


async def test_whoever_gives_up_waiting_leaves_no_trace(
    autojump_clock: MockClock, narrow: RuntimeSlots
) -> None:
    slots, machine = narrow, Machine(1)
    for _ in range(50):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(slots.call, "x", machine.work)
            await trio.sleep(random.uniform(0, 0.1))
            nursery.cancel_scope.cancel()
    assert machine.now == 0
    began = trio.current_time()
    await slots.call("x", machine.work)
    assert trio.current_time() - began < 0.1


async def test_an_error_is_the_callers_and_gives_the_place_back(autojump_clock: MockClock) -> None:
    slots = RuntimeSlots(1)

    async def fail() -> None:
        raise OSError("no")

    for _ in range(3):
        with pytest.raises(OSError, match="no"):
            await slots.call("x", fail)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0, 100), st.integers(1, 500), st.booleans()), max_size=60
    ),
    st.integers(1, 64),
)
def test_the_limit_stays_within_its_bounds(calls: list[tuple[str, float, int, bool]], cpus: int) -> None:
    pace: Pace = first_pace(cpus)
    for at, (kind, seconds, together, wanted) in enumerate(calls):
        pace = adapt(pace, Took(kind, seconds, together, wanted, float(at)), cpus)
        assert LEAST_PER_CPU * cpus <= pace.limit <= MOST_PER_CPU * cpus
