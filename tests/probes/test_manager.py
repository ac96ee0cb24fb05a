"""The probe manager on a virtual clock: thresholds, restarts, pacing, and what stops when."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from tests.shapes import SHAPES
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common.clock import NANOSECONDS, TrioClock
from trio_kubelet.cri.doors import ExecResult
from trio_kubelet.cri.errors import CRIError, Unavailable
from trio_kubelet.observed.probes import ProbeKind, ProbeResult, ProbeUpdate
from trio_kubelet.probes.manager import PARALLEL, ProbeManager
from trio_kubelet.probes.metrics import ProbeMetrics
from trio_kubelet.server.http.exposition import render

Clock = trio.testing.MockClock
EPOCH_NS = 1_700_000_000 * NANOSECONDS


class Repeating:
    """A command that the runtime's door repeats: the test says what becomes of it."""

    def __init__(
        self,
        container_id: str,
        due: float,
        period: float,
        passed: Callable[[float], None],
        end: Callable[[ExecResult | CRIError | None, float], None],
    ) -> None:
        self.container_id, self.due, self.period = container_id, due, period
        self.passed, self._end = passed, end
        self.under_way = False
        self.stopped = False

    def stop(self) -> float | None:
        self.stopped = True
        return None if self.under_way else self.due

    def end(self, found: ExecResult | CRIError | None) -> None:
        """What began just now has ended."""
        self._end(found, trio.current_time())


class World:
    """Pods whose exec probes answer what `exit_codes` says for their container."""

    def __init__(self, *, keeps_results: bool = True, epoch_ns: int = EPOCH_NS) -> None:
        self.clock = TrioClock(epoch_ns)
        self.events: list[str] = []
        self.runs: list[tuple[float, str]] = []
        self.repeating: list[Repeating] = []
        self.can_repeat = False
        self.output = b"out"
        self.exit_codes: dict[str, int] = {}
        self.told: list[ProbeUpdate] = []
        self.takes: dict[str, float] = {}
        self.away = False
        self.metrics = ProbeMetrics()
        self.manager = ProbeManager(
            exec_sync=self._exec,
            repeat_exec=self._repeat_exec,
            recorder=self,
            clock=self.clock,
            metrics=self.metrics,
            keeps_results=keeps_results,
        )
        self.manager.verdicts.listen(self.told.append)

    def record(self, pod: v1.Pod, type: str, reason: str, message: str, field_path: str = "") -> None:
        self.events.append(f"{type} {reason} {message} {field_path}")

    async def _exec(
        self, container_id: str, command: Sequence[str], timeout: float, enough: int
    ) -> ExecResult:
        self.runs.append((trio.current_time(), container_id))
        if self.away:
            raise Unavailable("the runtime is away")
        await trio.sleep(self.takes.get(container_id, 0.001))
        return ExecResult(self.output, b"", self.exit_codes.get(container_id, 0))

    def _repeat_exec(
        self,
        container_id: str,
        command: Sequence[str],
        timeout: float,
        due: float,
        period: float,
        passed: Callable[[float], None],
        end: Callable[[ExecResult | CRIError | None, float], None],
    ) -> Repeating | None:
        if not self.can_repeat:
            return None
        self.repeating.append(Repeating(container_id, due, period, passed, end))
        return self.repeating[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.manager.run)
            yield
            nursery.cancel_scope.cancel()

    def pod(self, uid: str = "p", **probes: v1.Probe) -> v1.Pod:
        container = v1.Container(
            name="c",
            liveness_probe=probes.get("liveness"),
            readiness_probe=probes.get("readiness"),
            startup_probe=probes.get("startup"),
        )
        return v1.Pod(
            metadata=v1.ObjectMeta(name=uid, namespace="n", uid=uid),
            spec=v1.PodSpec(containers=[container], restart_policy="Always"),
        )

    def show(
        self,
        pod: v1.Pod,
        container_id: str = "id",
        started: bool = True,
        age: float = 0,
        phase: str = "Running",
    ) -> None:
        """Tells the manager of a running container, as the status manager does."""
        started_at = rfc3339(self.clock.now_ns() - round(age * NANOSECONDS))
        status = v1.ContainerStatus(
            name="c",
            container_id=f"containerd://{container_id}",
            started=started,
            state=v1.ContainerState(running=v1.ContainerStateRunning(started_at=started_at)),
        )
        self.manager.pod_status_changed(pod, v1.PodStatus(phase=phase, container_statuses=[status]))

    async def repeated(self, pod: v1.Pod, period: float) -> Repeating:
        """Shows a pod whose first run passes: its probe is repeated then, and waits for its next turn."""
        self.can_repeat = True
        before = len(self.repeating)
        self.manager.add_pod(pod)
        self.show(pod)
        while len(self.repeating) == before:
            await self.updates(period / 4)
        return self.repeating[-1]

    async def updates(self, seconds: float) -> list[ProbeUpdate]:
        await trio.sleep(seconds)
        told = list(self.told)
        self.told.clear()
        return told


def probe(period: int = 10, **fields: int) -> v1.Probe:
    return v1.Probe(
        exec=v1.ExecAction(command=["x"]),
        period_seconds=period,
        timeout_seconds=1,
        success_threshold=fields.get("success", 1),
        failure_threshold=fields.get("failure", 3),
        initial_delay_seconds=fields.get("delay", 0),
    )


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


async def test_many_new_pods_are_held_apart(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        crowd(world)
        await world.updates(20)
    times = sorted(time for time, _ in world.runs)
    for index, begin in enumerate(times):
        assert sum(1 for time in times[index : index + 40] if time < begin + 0.1) <= 15


async def test_unwanted_pods_are_forgotten(autojump_clock: Clock) -> None:
    world = World()
    async with world.running():
        for uid in ("a", "b"):
            world.manager.add_pod(world.pod(uid, liveness=probe()))
        world.manager.keep_only({"a"})
        assert len(world.manager) == 1


def ended(exit_code: int) -> v1.ContainerStatus:
    state = v1.ContainerState(terminated=v1.ContainerStateTerminated(exit_code=exit_code))
    return v1.ContainerStatus(name="c", container_id="containerd://id", state=state)


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


async def test_probes_that_are_due_together_wake_the_agent_seldom(autojump_clock: Clock) -> None:
    """Those of 500 pods start by sixes rather than one by one: 100 a second at 17 moments."""
    world = World()
    async with world.running():
        crowd(world)
        await world.updates(4)
    assert len(world.runs) >= 390
    assert len({time for time, _ in world.runs}) <= 75


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
