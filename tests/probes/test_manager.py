"""The probe manager on a virtual clock: thresholds, restarts, and what stops when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from tests.probes.world import EPOCH_NS, World, ended, probe
from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.observed.probes import ProbeKind, ProbeResult, ProbeUpdate
from trio_kubelet.server.http.exposition import render

Clock = trio.testing.MockClock


async def test_a_new_container_is_probed_at_once_and_then_every_period(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe())
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        updates = await world.updates(35)
    assert [u.result for u in updates] == [ProbeResult.SUCCESS], "what held before is no news"
    assert len(world.runs) == 4
    assert world.runs[0][0] < 0.1
    gaps = [b[0] - a[0] for a, b in zip(world.runs, world.runs[1:], strict=False)]
    assert all(abs(gap - 10) < 0.1 for gap in gaps)


async def test_what_the_agent_starts_in_its_first_second_is_probed_at_once(autojump_clock: Clock) -> None:
    """Its status tells whole seconds, as if it had been there before."""
    world = World(epoch_ns=EPOCH_NS + NANOSECONDS // 2)
    async with world.running():
        for number in range(10):
            pod = world.pod(f"p{number}", readiness=probe())
            world.manager.add_pod(pod)
            world.show(pod, f"id{number}")
        updates = await world.updates(0.2)
    assert len([each for each in updates if each.result is ProbeResult.SUCCESS]) == 10


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_new_container_is_not_probed_in_the_old_ones_place(
    autojump_clock: Clock, under_way: bool
) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=5))
    async with world.running():
        repeating = await world.repeated(pod, period=5)
        repeating.under_way = under_way
        world.show(pod, "new")
        assert repeating.stopped
        if under_way:
            await world.updates(1)
            assert len(world.runs) == 1  # one at a time
            repeating.end(ExecResult(b"", b"", 0))
        await world.updates(6)
        assert [container_id for _, container_id in world.runs[1:]] == ["new"]
        assert world.repeating[-1].container_id == "new"
        assert world.events == []


@pytest.mark.parametrize("kind", ["readiness", "startup"])
@pytest.mark.parametrize("exit_code", [0, 1])
async def test_a_new_container_need_not_wait_longer_than_the_old_ones_last_run(
    autojump_clock: Clock, kind: str, exit_code: int
) -> None:
    world = World()
    pod = world.pod("p", **{kind: probe(period=60)})
    world.takes["old"], world.exit_codes["old"] = 20, exit_code
    async with world.running():
        world.manager.add_pod(pod)
        for container_id in ("old", "new"):
            world.show(pod, container_id, started=kind == "readiness")
            await trio.sleep(2)
        assert len(world.runs) == 1  # one at a time
        await world.updates(17)
        assert [container_id for _, container_id in world.runs] == ["old", "new"]


async def test_liveness_fails_after_its_threshold_and_rests_until_a_new_container(
    autojump_clock: Clock,
) -> None:
    world = World()
    pod = world.pod(liveness=probe(period=1))
    async with world.running():
        world.manager.add_pod(pod)
        world.exit_codes["id"] = 1
        world.show(pod)
        updates = await world.updates(20)
        assert [u.result for u in updates] == [ProbeResult.FAILURE]
        assert len(world.runs) == 3
        assert world.events == ["Warning Unhealthy Liveness probe failed: out spec.containers{c}"] * 3
        world.show(pod, "next")
        assert await world.updates(5) == []
        assert world.manager.readings().liveness == {"next": ProbeResult.SUCCESS}
        assert len(world.runs) > 5
    assert world.manager.readings().liveness == {"next": ProbeResult.SUCCESS}


async def test_the_initial_delay_counts_from_the_start_of_the_container(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(liveness=probe(period=1, delay=7))
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        await trio.sleep(6.5)
        assert world.runs == []
        await trio.sleep(2)
        assert world.runs


async def test_what_has_passed_of_the_initial_delay_is_not_waited_for(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=60, delay=10))
    async with world.running():
        world.manager.add_pod(pod)
        await trio.sleep(30)
        world.show(pod, age=8)
        await trio.sleep(1.5)
        assert world.runs == []
        await trio.sleep(1)
        assert len(world.runs) == 1


async def test_a_clock_that_was_set_back_holds_up_no_probe(autojump_clock: Clock) -> None:
    """kubernetes 58853, 123898: not probed before the clock was there again."""
    world = World()
    before, after = world.pod("b", readiness=probe()), world.pod("a", readiness=probe(delay=7))
    async with world.running():
        world.manager.add_pod(before)
        world.show(before, "old")
        await trio.sleep(5)
        world.show(before, "old", age=-3600)
        world.manager.add_pod(after)
        world.show(after, "new", age=-3600)
        await trio.sleep(6)
        assert {run[1] for run in world.runs if run[0] > 5} == {"old"}
        await trio.sleep(2)
    assert "new" in {run[1] for run in world.runs}


@pytest.mark.parametrize("kind", ["liveness", "startup"])
async def test_a_program_has_until_the_first_turn_to_come_up(autojump_clock: Clock, kind: str) -> None:
    """Turns are whole periods since the pod was first seen, also for a container that is made later."""
    world = World()
    a_probe = probe(period=10, failure=1)
    pod = world.pod(liveness=a_probe) if kind == "liveness" else world.pod(startup=a_probe)
    async with world.running():
        world.manager.add_pod(pod)
        for container_id, shown_at in (("id", 2.0), ("next", 22.0)):
            world.exit_codes[container_id] = 1
            await trio.sleep_until(shown_at)
            world.show(pod, container_id, started=kind != "startup")
            world.runs.clear()
            updates = await world.updates(7.5)
            assert ProbeResult.FAILURE not in {u.result for u in updates}
            assert len(world.runs) == (kind == "startup")
            assert world.events == []
            assert (await world.updates(1))[-1].result is ProbeResult.FAILURE
            assert len(world.events) == 1
            world.events.clear()


async def test_a_program_that_is_up_need_not_wait_for_the_first_turn_of_its_startup_probe(
    autojump_clock: Clock,
) -> None:
    world = World()
    pod = world.pod(startup=probe(period=10), readiness=probe(period=10))
    async with world.running():
        world.manager.add_pod(pod)
        await trio.sleep(2)
        world.show(pod, started=False)
        await world.updates(0.1)
        assert world.manager.view().startup == {"id": ProbeResult.SUCCESS}
        world.show(pod)
        await world.updates(0.1)
        assert world.manager.view().readiness == {"id": ProbeResult.SUCCESS}


async def test_liveness_begins_with_its_next_turn_when_startup_has_passed(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(startup=probe(period=1), liveness=probe(period=10, failure=1))
    async with world.running():
        world.manager.add_pod(pod)
        await trio.sleep(2)
        world.show(pod, started=False)
        await world.updates(11)
        world.exit_codes["id"] = 1
        world.show(pod)
        assert await world.updates(6.5) == []
        [failed] = await world.updates(1)
        assert (failed.kind, failed.result) == (ProbeKind.LIVENESS, ProbeResult.FAILURE)


async def test_startup_holds_back_the_others(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(startup=probe(period=1, failure=30), liveness=probe(period=1))
    world.exit_codes["id"] = 1
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod, started=False)
        assert await world.updates(5) == []
        assert world.manager.view().startup == {"id": ProbeResult.UNKNOWN}
        world.exit_codes["id"] = 0
        await world.updates(2)
        assert world.manager.view().startup == {"id": ProbeResult.SUCCESS}
        before = len(world.runs)
        world.show(pod, started=True)
        await world.updates(3.5)
        assert 3 <= len(world.runs) - before <= 5  # liveness only: startup rests


async def test_ending_a_pod_stops_liveness_but_not_readiness(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(liveness=probe(period=1), readiness=probe(period=1))
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        await world.updates(3)
        world.manager.stop_liveness_and_startup(pod)
        before = len(world.runs)
        await world.updates(5.5)
        assert 5 <= len(world.runs) - before <= 7  # with liveness it would be twice as many
        world.manager.remove_pod("p")
        before = len(world.runs)
        await world.updates(5)
        assert len(world.runs) == before
        assert len(world.manager) == 0
        assert world.manager.view().readiness == {}


async def test_a_liveness_probe_that_was_stopped_is_not_run_again(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(liveness=probe(period=1), readiness=probe(period=60))
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        await world.updates(3.4)
        world.manager.stop_liveness_and_startup(pod)
        before = len(world.runs)
        await world.updates(5)
        world.show(pod, "started beside its end")
        await world.updates(5)
        assert [container_id for _, container_id in world.runs[before:]] == ["started beside its end"]


@pytest.mark.parametrize("keeps", [True, False])
async def test_what_was_ready_before_the_agent_is_unready_until_probed_only_with_the_gate(
    keeps: bool, autojump_clock: Clock
) -> None:
    world = World(keeps_results=keeps)
    pod = world.pod("a", readiness=probe())
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod, "id", age=3600)
        assert (world.manager.view().kept_before_ns > 0) is keeps, "which is what the status goes by"
        updates = await world.updates(30)
    assert [each.result for each in updates] == [ProbeResult.SUCCESS]


async def test_rounds_of_its_pod_leave_a_probe_as_it_is(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe(period=60))
    async with world.running():
        for _ in range(3):
            world.manager.add_pod(pod)
            world.show(pod)
            await world.updates(10)
        assert len(world.runs) == 1


async def test_sidecars_are_probed(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod()
    pod.spec.init_containers = [
        v1.Container(name="sidecar", restart_policy="Always", readiness_probe=probe())
    ]
    running = v1.ContainerState(running=v1.ContainerStateRunning(started_at=rfc3339(world.clock.now_ns())))
    shown = v1.ContainerStatus(name="sidecar", container_id="containerd://id", started=True, state=running)
    async with world.running():
        world.manager.add_pod(pod)
        status = v1.PodStatus(phase="Pending", init_container_statuses=[shown])
        world.manager.pod_status_changed(pod, status)
        assert await world.updates(1) == [ProbeUpdate(ProbeKind.READINESS, "p", "id", ProbeResult.SUCCESS)]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_pod_that_is_over_is_not_probed_even_if_a_container_still_runs(
    autojump_clock: Clock, phase: str
) -> None:
    world = World()
    pod = world.pod(liveness=probe(period=1), readiness=probe(period=1))
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        await world.updates(3)
        world.show(pod, phase=phase)
        before = len(world.runs)
        await world.updates(10)
        assert len(world.runs) - before <= 2
        assert len(world.manager) == 0
        world.manager.add_pod(pod)
        world.show(pod)
        await world.updates(3)
        assert len(world.runs) - before > 4


async def test_unwanted_pods_are_forgotten(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        for uid in ("a", "b"):
            world.manager.add_pod(world.pod(uid, liveness=probe()))
        world.manager.keep_only({"a"})
        assert len(world.manager) == 1


async def test_a_container_that_ended_for_good_is_told_once(autojump_clock: Clock) -> None:
    """Each round of its pod made the probe anew, whose verdict led to the next round, without a pause."""
    world = World()
    pod = world.pod(liveness=probe())
    pod.spec.restart_policy = "Never"
    status = ended(3)
    told = 0
    async with world.running():
        for _ in range(20):  # rounds of a pod with another container that still runs
            world.manager.add_pod(pod)
            world.manager.pod_status_changed(pod, v1.PodStatus(phase="Running", container_statuses=[status]))
            told += len(await world.updates(1))
    assert told <= 2
    assert len(world.manager) == 0


async def test_a_container_that_failed_is_probed_when_it_starts_again(autojump_clock: Clock) -> None:
    world = World()
    pod = world.pod(readiness=probe())
    pod.spec.restart_policy = "OnFailure"
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        await world.updates(1)
        status = v1.PodStatus(phase="Running", container_statuses=[ended(3)])
        world.manager.pod_status_changed(pod, status)
        await world.updates(20)
        world.show(pod, "anew")
        assert ProbeUpdate(ProbeKind.READINESS, "p", "anew", ProbeResult.SUCCESS) in await world.updates(1)


async def test_a_container_that_ended_for_good_is_probed_when_all_start_again(autojump_clock: Clock) -> None:
    """A rule of another container restarts all of the pod (KEP-5532), whatever the policy."""
    world = World()
    pod = world.pod(readiness=probe())
    pod.spec.restart_policy = "Never"
    restarting = v1.PodCondition(type="AllContainersRestarting", status="True")
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        await world.updates(1)
        for conditions in ([], [], [restarting]):
            world.manager.add_pod(pod)
            status = v1.PodStatus(phase="Running", container_statuses=[ended(0)], conditions=conditions)
            world.manager.pod_status_changed(pod, status)
            await world.updates(20)
        assert len(world.manager) == 0
        world.manager.add_pod(pod)  # one round, after all were started
        world.show(pod, "anew")
        assert ProbeUpdate(ProbeKind.READINESS, "p", "anew", ProbeResult.SUCCESS) in await world.updates(1)


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_a_probe_raises_stays_with_its_pod(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """It is a probe that could not be run: told, without a verdict, and run again in its next period."""
    world = World()
    bad, good = world.pod("bad", liveness=probe(period=1)), world.pod("good", liveness=probe(period=1))

    async def run(
        self: World, container_id: str, command: Sequence[str], timeout: float, enough: int
    ) -> ExecResult:
        self.runs.append((trio.current_time(), container_id))
        if container_id == "bad":
            raise SHAPES[shape]()
        return ExecResult(b"", b"", 0)

    monkeypatch.setattr(World, "_exec", run)
    world = World()
    async with world.running():
        for each in (bad, good):
            world.manager.add_pod(each)
            world.show(each, each.metadata.uid)
        assert await world.updates(10) == []
        assert world.manager.readings().liveness == {
            "bad": ProbeResult.SUCCESS,  # as long as nothing else is known
            "good": ProbeResult.SUCCESS,
        }
    assert all(sum(run == uid for _, run in world.runs) >= 9 for uid in ("bad", "good"))
    assert len(world.events) >= 9
    assert all("Liveness probe errored and resulted in unknown state" in event for event in world.events)
    told = b"".join(render(world.metrics.registry)).decode()
    assert 'pod_uid="good"' in told
    assert 'pod_uid="bad"' not in told, "a run that told nothing is none"


async def test_a_probe_that_cannot_be_run_waits_for_its_next_period(autojump_clock: Clock) -> None:
    world = World()
    world.away = True
    pod = world.pod(readiness=probe(period=10))
    async with world.running():
        world.manager.add_pod(pod)
        world.show(pod)
        assert await world.updates(35) == []
    assert len(world.events) == 4


async def test_a_probe_that_ended_leaves_no_series(autojump_clock: Clock) -> None:
    world = World()
    pods = [world.pod(uid, liveness=probe(period=1)) for uid in ("gone", "stays")]
    async with world.running():
        for pod in pods:
            world.manager.add_pod(pod)
            world.show(pod, pod.metadata.uid)
        await world.updates(3)
        world.exit_codes["gone"] = 1
        await world.updates(2)
        told = b"".join(render(world.metrics.registry)).decode()
        assert 'pod="gone",pod_uid="gone",probe_type="Liveness",result="failed"} 2' in told
        assert 'pod="gone",pod_uid="gone",probe_type="Liveness",result="successful"} 3' in told
        world.manager.remove_pod("gone")
        told = b"".join(render(world.metrics.registry)).decode()
    assert "gone" not in told
    assert 'pod="stays",pod_uid="stays",probe_type="Liveness",result="successful"} 5' in told
