"""Probes that pass again and again, which the runtime's door repeats without a task."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from tests.probes.world import World, ended, probe
from trio_kubelet.api import v1
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.cri.errors import CRIError, Unavailable
from trio_kubelet.observed.probes import ProbeKind, ProbeResult, ProbeUpdate
from trio_kubelet.server.http.exposition import render

Clock = trio.testing.MockClock


async def test_a_probe_that_passes_again_and_again_is_repeated_without_tasks(autojump_clock: Clock) -> None:
    """Until it does not pass; what is counted of it is the same."""
    world = World()
    pod = world.pod(readiness=probe(period=4, failure=2))
    async with world.running():
        repeating = await world.repeated(pod, period=4)
        assert [container_id for _, container_id in world.runs] == ["id"]
        assert repeating.container_id == "id"
        assert repeating.period == 4
        assert repeating.due == pytest.approx(world.runs[-1][0] + 4, abs=0.25)
        world.show(pod)  # as it was
        await world.updates(20)
        assert not repeating.stopped
        assert len(world.runs) == 1
        repeating.passed(0.5)
        counted = 'result="successful"} 2'
        assert counted in b"".join(render(world.metrics.registry)).decode()
        world.exit_codes["id"] = 1
        repeating.end(ExecResult(b"", b"", 1))
        updates = await world.updates(5)  # the second failure is found by a task
        assert [update.result for update in updates] == [ProbeResult.FAILURE]
        assert len(world.runs) == 2
        world.exit_codes.clear()
        updates = await world.updates(9)
        assert [update.result for update in updates] == [ProbeResult.SUCCESS]
        assert len(world.repeating) == 2


async def test_repeated_probes_keep_their_moments(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=4))
    async with world.running():
        repeating = await world.repeated(pod, period=4)
        await trio.sleep_until(repeating.due + 0.01)
        repeating.end(Unavailable("the runtime is away"))
        await world.updates(3)
        assert world.repeating[-1].due == repeating.due + 4


@pytest.mark.parametrize("found", [None, Unavailable("the runtime is away")])
async def test_a_repeated_probe_that_cannot_be_run_is_run_by_a_task_at_once(
    autojump_clock: Clock, found: CRIError | None
) -> None:
    """And what that finds counts."""
    world = World()
    pod = world.pod(readiness=probe(period=5))
    async with world.running():
        repeating = await world.repeated(pod, period=5)
        await trio.sleep_until(repeating.due)
        repeating.end(found)
        await world.updates(0.1)
        assert len(world.runs) == 2
        assert world.runs[-1][0] == pytest.approx(repeating.due, abs=0.01)
        await world.updates(20)
        assert len(world.runs) == 2
        assert len(world.repeating) == 2
        assert world.events == []


@pytest.mark.parametrize(("found", "runs"), [(Unavailable("the runtime is away"), 2), (None, 3)])
async def test_a_repeated_probe_that_cannot_be_run_is_tried_as_often_as_others(
    autojump_clock: Clock, found: CRIError | None, runs: int
) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=60))
    async with world.running():
        repeating = await world.repeated(pod, period=60)
        before = len(world.runs)
        world.away = True
        repeating.end(found)
        await world.updates(1)
        assert len(world.runs) - before == runs
        assert len(world.events) == 1


async def test_a_repeated_probe_that_is_run_by_a_task_is_run_once_at_a_time(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=60))
    async with world.running():
        repeating = await world.repeated(pod, period=60)
        world.takes["id"] = 5
        repeating.end(None)
        await trio.sleep(1)
        world.show(pod, "new")
        await trio.sleep(1)
        assert [container_id for _, container_id in world.runs] == ["id", "id"]
        await trio.sleep(5)
        assert [container_id for _, container_id in world.runs] == ["id", "id", "new"]


async def test_a_repeated_probe_of_a_container_that_ended_says_so(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=5))
    async with world.running():
        await world.repeated(pod, period=5)
        status = v1.PodStatus(phase="Running", container_statuses=[ended(1)])
        world.manager.pod_status_changed(pod, status)
        assert await world.updates(6) == [ProbeUpdate(ProbeKind.READINESS, "p", "id", ProbeResult.FAILURE)]


async def test_a_repeated_probe_ends_with_its_pod(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=5))
    async with world.running():
        repeating = await world.repeated(pod, period=5)
        world.show(pod, phase="Failed")
        assert repeating.stopped
        await world.updates(6)
        assert len(world.manager) == 0


async def test_what_a_repeated_probe_finds_after_it_was_stopped_counts_for_nothing(
    autojump_clock: Clock,
) -> None:
    for found in (ExecResult(b"", b"", 1), Unavailable("the runtime is away"), None):
        world = World()
        pod = world.pod(liveness=probe(period=1, failure=1))
        async with world.running():
            repeating = await world.repeated(pod, period=1)
            repeating.under_way = True
            world.manager.remove_pod(pod.metadata.uid)
            assert repeating.stopped
            repeating.end(found)
            assert await world.updates(3) == []
            assert len(world.runs) == 1
            assert world.events == []


async def test_a_repeated_liveness_probe_ends_with_its_pod_and_readiness_does_not(
    autojump_clock: Clock,
) -> None:
    liveness, readiness = {"liveness": probe(period=2)}, {"readiness": probe(period=2)}
    for probes, is_stopped in ((liveness, True), (readiness, False)):
        world = World()
        pod = world.pod("p", **probes)
        async with world.running():
            repeating = await world.repeated(pod, period=2)
            metadata = replace(pod.metadata, deletion_timestamp="2024-01-01T00:00:00Z")
            world.show(replace(pod, metadata=metadata))
            assert repeating.stopped is is_stopped
            await world.updates(5)
            assert len(world.runs) == 1


async def test_successes_are_counted_before_a_probe_is_repeated(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=1, success=3))
    async with world.running():
        await world.repeated(pod, period=1)
        assert len(world.runs) == 3


async def test_who_says_much_is_not_repeated(autojump_clock: Clock) -> None:
    world = World()
    world.can_repeat = True
    world.output = 1025 * b"x"
    pod = world.pod(readiness=probe(period=1))
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        await world.updates(10)
        assert world.repeating == []
        assert len(world.runs) >= 9
