"""When the probes of many pods run: no bursts, and those that hang hold up no others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from tests.probes.world import World, probe
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.observed.probes import ProbeResult
from trio_kubelet.probes.manager import PARALLEL

Clock = trio.testing.MockClock


@pytest.mark.parametrize(
    ("number", "period"), [(100, 10), (250, 10), (400, 10), (500, 5), (500, 10), (500, 30), (1000, 10)]
)
async def test_a_restart_of_the_agent_makes_no_burst_and_no_flip(
    autojump_clock: Clock, number: int, period: int
) -> None:
    """kubernetes/kubernetes 52154: 500 probes of 10 s, no 100 ms with more than three times the mean."""
    world = World()
    pods = [world.pod(f"p{each}", readiness=probe(period)) for each in range(number)]
    async with world.running():
        for number, pod in enumerate(pods):
            world.manager.add_pod(pod)
            world.show(pod, f"id{number}", age=3600)
        updates = await world.updates(3 * period)
    assert {u.result for u in updates} == {ProbeResult.SUCCESS}
    times = sorted(time for time, _ in world.runs)
    mean = len(pods) / period / 10  # in 100 ms
    assert len(times) >= 2.8 * len(pods)
    for index, begin in enumerate(times):
        window = sum(1 for time in times[index : index + 40] if time < begin + 0.1)
        assert window <= 3 * mean


async def test_probes_of_a_full_node_level_out(autojump_clock: Clock) -> None:
    """At first some moments have more than may start together, who then start a little later: two wake-ups.
    From their second run on 500 probes of 10 s have forty moments, and keep them.
    """
    world = World()
    async with world.running():
        for number in range(500):
            pod = world.pod(f"p{number}", readiness=probe())
            world.manager.add_pod(pod)
            world.show(pod, f"id{number}", age=3600)
        await world.updates(45)
    rounds = [sorted(run for run in world.runs if begin < run[0] <= begin + 10) for begin in (20, 30)]
    assert [len({moment for moment, _ in each}) for each in rounds] == [40, 40]
    assert [len(each) for each in rounds] == [500, 500]
    assert [(moment + 10, uid) for moment, uid in rounds[0]] == rounds[1]


def crowd(world: World) -> None:
    """500 new pods at once."""
    for number in range(500):
        pod = world.pod(f"p{number}", liveness=probe())
        world.manager.add_pod(pod)
        world.show(pod, f"id{number}")


async def test_many_new_pods_are_held_apart(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        crowd(world)
        await world.updates(20)
    times = sorted(time for time, _ in world.runs)
    for index, begin in enumerate(times):
        assert sum(1 for time in times[index : index + 40] if time < begin + 0.1) <= 15


async def test_probes_that_are_due_together_wake_the_agent_seldom(autojump_clock: Clock) -> None:
    """Those of 500 pods start by sixes rather than one by one: 100 a second at 17 moments."""
    world = World()
    async with world.running():
        crowd(world)
        await world.updates(4)
    assert len(world.runs) >= 390
    assert len({time for time, _ in world.runs}) <= 75


@pytest.mark.parametrize(("takes", "every"), [(0.5, 0.5), (3600, 1)], ids=["ended", "hang"])
async def test_as_many_probes_wait_for_an_answer_as_may_and_then_the_next(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, takes: float, every: float
) -> None:
    """What is due goes on when one has ended; those that hang keep it from that for a second."""
    monkeypatch.setattr("trio_kubelet.probes.manager.PARALLEL", 10)
    waiting: list[float] = []

    async def wait(
        self: World, container_id: str, command: Sequence[str], timeout: float, enough: int
    ) -> ExecResult:
        waiting.append(trio.current_time())
        await trio.sleep(takes)
        return ExecResult(b"", b"", 0)

    monkeypatch.setattr(World, "_exec", wait)
    world = World()
    async with world.running():
        for number in range(30):
            pod = world.pod(f"p{number}", liveness=probe(period=60))
            world.manager.add_pod(pod)
            world.show(pod, f"id{number}")
        await world.updates(20)
    assert len(waiting) == 30
    waves = [sum(1 for at in waiting if wave <= at / every < wave + 1) for wave in range(3)]
    assert waves == [10, 10, 10]


async def test_probes_that_hang_for_an_hour_hold_up_no_others(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do those of a pod that has as many as may wait at once."""

    async def hang(
        self: World, container_id: str, command: Sequence[str], timeout: float, enough: int
    ) -> ExecResult:
        self.runs.append((trio.current_time(), container_id))
        if container_id.startswith("bad"):
            await trio.sleep(3600)
        return ExecResult(b"", b"", 0)

    monkeypatch.setattr(World, "_exec", hang)
    world = World()
    async with world.running():
        for number in range(2 * PARALLEL):
            pod = world.pod(f"bad{number}", liveness=probe(period=1))
            world.manager.add_pod(pod)
            world.show(pod, f"bad{number}")
        await world.updates(10)
        pod = world.pod("good", readiness=probe(period=5))
        world.manager.add_pod(pod)
        world.show(pod, "good")
        await world.updates(58)
    turns = [at for at, container_id in world.runs if container_id == "good"]
    assert len(turns) == 12
    assert all(after - before < 6 for before, after in itertools.pairwise(turns))
