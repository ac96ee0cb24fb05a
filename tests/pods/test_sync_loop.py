"""The sync loop: order, bursts, a runtime in error, probes, deadlines."""

from __future__ import annotations

import io
from collections.abc import Collection

import trio
import trio.lowlevel
from msgspec.structs import replace

from tests.pods.admit_all import Few
from tests.pods.build import api_pod, make_pod
from tests.pods.small_node import running_pod
from tests.pods.world import NoProbes, World
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common import log as logging
from trio_kubelet.observed.probes import ProbeKind, ProbeReadings, ProbeResult, ProbeUpdate, ProbeView
from trio_kubelet.observed.types import PodLifecycleEvent, PodLifecycleEventType
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate


async def test_additions_start_oldest_first(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("api",))
    pods = [api_pod(f"p{n}", created_at=rfc3339(n * 10**9)) for n in (3, 1, 2)]
    async with world.running():
        await world.add(*pods, source="api")
        await trio.sleep(1)
        assert list(world.room.workers.known()) == ["uid-p1", "uid-p2", "uid-p3"]


async def test_while_the_runtime_is_in_error_nothing_is_synced_but_events_are_taken(
    autojump_clock: trio.abc.Clock,
) -> None:
    """kubernetes 72482: a full event channel and an unhealthy PLEG blocked each other."""
    world, pod = World(capacity=1), make_pod()
    async with world.running():
        await running_pod(world, pod)
        world.health.runtime = "container runtime is down"
        await trio.sleep(2)
        syncs = world.runtime.syncs
        new = make_pod("new")
        await world.add(new)
        for _ in range(20):
            world.runtime.die("uid-web")
            world.pleg.relist()
            world.runtime.pods["uid-web"].containers[-1].state = (
                world.runtime.pods["uid-web"].containers[0].state
            )
        await trio.sleep(30)
        assert world.pleg.waiting() == 0
        assert world.runtime.syncs == syncs
        assert world.room.workers.get("uid-new") is None
        back = trio.current_time()
        world.health.runtime = None
        await world.until(lambda: world.runtime.alive() == {"uid-web", "uid-new"}, 10)
        assert trio.current_time() - back <= 6  # the longest pause is 5 s


async def test_no_event_is_lost_while_the_consumer_is_paused(autojump_clock: trio.abc.Clock) -> None:
    """kubernetes 103732: events that did not fit into the channel never came back."""
    world = World(capacity=10)
    pods = [make_pod(f"p{n}") for n in range(100)]
    async with world.running():
        await world.add(*pods)
        await world.until(lambda: len(world.runtime.alive()) == 100)
        await trio.sleep(2)
        world.health.runtime = "down for a moment"
        await trio.sleep(1)
        for pod in pods:
            world.runtime.die(pod.metadata.uid)
        await trio.sleep(3)
        assert not world.runtime.alive()
        world.health.runtime = None
        await world.until(lambda: len(world.runtime.alive()) == 100, 20)
    assert all(len(world.runtime.starts(pod.metadata.uid)) == 2 for pod in pods)


async def test_a_removed_container_is_no_reason_to_sync(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await running_pod(world, pod)
        syncs = world.runtime.syncs
        await world.pleg.tell(PodLifecycleEvent("uid-web", PodLifecycleEventType.CONTAINER_REMOVED, "x"))
        await trio.sleep(0.5)
        assert world.runtime.syncs == syncs
        await world.pleg.tell(PodLifecycleEvent("uid-web", PodLifecycleEventType.CONTAINER_CHANGED, ""))
        await trio.sleep(0.5)
        assert world.runtime.syncs == syncs + 1


async def test_containers_that_were_removed_to_start_anew_start_at_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    """No event asks for the round that starts them: all that happens is that they go."""
    rule = v1.ContainerRestartRule(
        action="RestartAllContainers",
        exit_codes=v1.ContainerRestartRuleOnExitCodes(operator="In", values=[7]),
    )
    container = v1.Container(name="c", restart_policy="Never", restart_policy_rules=[rule])
    world, pod = World(), make_pod(containers=[container])
    async with world.running():
        await running_pod(world, pod)
        world.runtime.die("uid-web", exit_code=7)
        died = trio.current_time()
        await world.until(lambda: len(world.runtime.starts("uid-web")) == 2, 30)
        assert world.runtime.starts("uid-web")[1] - died < 3


async def test_that_a_container_waits_to_be_restarted_is_shown_at_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await running_pod(world, pod)
        for _ in range(2):  # after the first time it starts at once
            world.runtime.die("uid-web")
            await trio.sleep(3)
        [container] = world.status(pod).container_statuses or []
        assert container.state.waiting is not None
        assert container.state.waiting.reason == "CrashLoopBackOff"


async def test_the_events_of_a_start_are_one_round(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await running_pod(world, pod)
        syncs = world.runtime.syncs
        started = PodLifecycleEventType.CONTAINER_STARTED
        await world.pleg.tell(*(PodLifecycleEvent("uid-web", started, f"c{n}") for n in range(3)))
        await trio.sleep(0.5)
        assert world.runtime.syncs == syncs + 1


async def test_dead_containers_are_pruned_when_another_one_dies(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await running_pod(world, pod)
        world.runtime.die("uid-web")
        await trio.sleep(2)
        assert "prune uid-web False" in world.runtime.calls
        await world.remove(pod)
        await trio.sleep(2)
        assert "prune uid-web True" in world.runtime.calls


async def test_reconcile_syncs_readiness_and_prunes_evicted_pods(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("api",))
    gates = [v1.PodReadinessGate(condition_type="lb")]
    pod = api_pod(spec={"readiness_gates": gates})
    async with world.running():
        await running_pod(world, pod, "api")
        assert not is_ready(world, pod)
        syncs = world.runtime.syncs
        conditions = [
            v1.PodCondition(type="lb", status="True"),
            v1.PodCondition(type="Ready", status="False", message="x"),
        ]
        [container] = world.status(pod).container_statuses or []
        status = v1.PodStatus(phase="Running", conditions=conditions, container_statuses=[container])
        await reconcile(world, replace(pod, status=status))
        await trio.sleep(0.5)
        assert world.runtime.syncs == syncs + 1
        assert is_ready(world, pod)
        await reconcile(world, replace(pod, status=v1.PodStatus(phase="Failed", reason="Evicted")))
        await trio.sleep(0.5)
        assert "prune uid-web True" in world.runtime.calls


def is_ready(world: World, pod: v1.Pod) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in world.status(pod).conditions or ())


async def reconcile(world: World, pod: v1.Pod) -> None:
    await world.updates.send(PodUpdate(PodOperation.RECONCILE, "api", (pod,)))


class ScriptedProbes(NoProbes):
    """A prober whose verdicts the test gives."""

    def __init__(self) -> None:
        super().__init__()
        self.readiness: dict[str, ProbeResult] = {}
        self.liveness: dict[str, ProbeResult] = {}
        self.kept: Collection[str] = ()

    def view(self) -> ProbeView:
        return ProbeView(active=True, readiness=self.readiness)

    def readings(self) -> ProbeReadings:
        return ProbeReadings(liveness=self.liveness)

    def keep_only(self, uids: Collection[str]) -> None:
        self.kept = set(uids)

    def say(self, kind: ProbeKind, uid: str, container_id: str, result: ProbeResult) -> None:
        self.verdicts.tell(ProbeUpdate(kind, uid, container_id, result))


async def test_probe_results_show_at_once_and_but_for_readiness_sync_the_pod(
    autojump_clock: trio.abc.Clock,
) -> None:
    probes = ScriptedProbes()
    world = World(probes=probes)
    pod = make_pod(containers=[v1.Container(name="c", image="i", readiness_probe=v1.Probe())])
    async with world.running():
        await running_pod(world, pod)
        assert not is_ready(world, pod)
        container_id = world.runtime.pods["uid-web"].containers[0].id
        probes.readiness[container_id] = ProbeResult.SUCCESS
        syncs = world.runtime.syncs
        probes.say(ProbeKind.READINESS, "uid-web", container_id, ProbeResult.SUCCESS)
        await trio.testing.wait_all_tasks_blocked()
        assert is_ready(world, pod)
        await trio.sleep(0.1)
        assert world.runtime.syncs == syncs
        probes.say(ProbeKind.LIVENESS, "uid-web", container_id, ProbeResult.SUCCESS)
        await trio.sleep(0.1)
        assert world.runtime.syncs == syncs  # a good liveness probe changes nothing
        shown = world.status(pod)
        probes.say(ProbeKind.LIVENESS, "uid-web", container_id, ProbeResult.FAILURE)
        await trio.sleep(0.1)
        assert world.runtime.syncs == syncs + 1
        assert world.status(pod) == shown  # to readiness a round has nothing to add
        probes.readiness[container_id] = ProbeResult.FAILURE
        probes.say(ProbeKind.READINESS, "uid-web", container_id, ProbeResult.FAILURE)
        await trio.testing.wait_all_tasks_blocked()
        assert not is_ready(world, pod)
        assert world.runtime.syncs == syncs + 1
        await trio.sleep(3)
        assert probes.kept == {"uid-web"}
        assert "liveness probe: failure" in world.stories(pod)


async def test_a_pod_past_its_active_deadline_fails(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(sources=("api",)), api_pod(spec={"active_deadline_seconds": 30})
    async with world.running():
        await running_pod(world, pod, "api")
        await trio.sleep(25)
        assert world.status(pod).phase == "Running"
        await trio.sleep(8)
        status = world.status(pod)
        assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")
        assert not world.runtime.alive()
        await trio.sleep(120)
        assert world.status(pod).reason == "DeadlineExceeded"


async def test_a_pod_whose_time_is_up_while_it_ends_is_told_of(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(sources=("api",)), api_pod(spec={"active_deadline_seconds": 1000}, grace=30)
    world.runtime.stop_takes["uid-web"] = 8
    async with world.running():
        await running_pod(world, pod, "api")
        metadata = replace(
            pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=30
        )
        pod = replace(pod, metadata=metadata)
        await world.update(pod, source="api")
        await trio.sleep(3)
        metadata = replace(metadata, deletion_grace_period_seconds=20)
        pod = replace(pod, metadata=metadata, spec=replace(pod.spec, active_deadline_seconds=1))
        await world.update(pod, source="api")
        await world.until(lambda: world.is_finished("uid-web"), 20)
        assert world.status(pod).reason == "DeadlineExceeded"
        assert world.events.reasons("uid-web").count("DeadlineExceeded") == 1


async def test_the_loop_reports_a_round_that_takes_too_long(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with world.running():
        await trio.sleep(10)
        assert world.room.loop.healthy() is None
        world.health.runtime = "down"
        await trio.sleep(400)
        assert world.room.loop.healthy() == "sync Loop took longer than expected"


async def test_the_room_ends_when_its_updates_end(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with trio.open_nursery() as nursery:
        await nursery.start(world.pleg.run)
        nursery.start_soon(world.run_room, nursery.cancel_scope)
        await world.add(make_pod())
        await trio.sleep(1)
        world.updates.close()
    assert world.runtime.alive() == {"uid-web"}


async def test_the_numbers_of_pods(autojump_clock: trio.abc.Clock) -> None:
    world = World(admitter=Few(), sources=("file",))
    world.runtime.add("orphan", "gone")
    world.runtime.stop_takes["orphan"] = 60
    async with world.running():
        await world.add(*(make_pod(f"p{n}") for n in range(3)))
        await trio.sleep(5)

    def sample(name: str, **labels: str) -> float | None:
        return world.registry.get_sample_value(name, labels)

    assert sample("kubelet_desired_pods", static="true") == 3
    assert sample("kubelet_active_pods", static="true") == 2
    assert sample("kubelet_working_pods", lifecycle="sync", config="desired", static="true") == 2
    assert sample("kubelet_orphaned_runtime_pods_total") == 1
    assert sample("kubelet_admission_rejections_total", reason="OutOfpods") == 1


async def test_the_lines_an_operator_looks_for(autojump_clock: trio.abc.Clock) -> None:
    probes, pod, said = ScriptedProbes(), make_pod(), io.StringIO()
    world = World(probes=probes)
    logging.configure(stream=said, verbosity=4)
    try:
        async with world.running():
            await running_pod(world, pod)
            container_id = world.runtime.pods["uid-web"].containers[0].id
            probes.say(ProbeKind.READINESS, "uid-web", container_id, ProbeResult.SUCCESS)
            probes.say(ProbeKind.LIVENESS, "uid-none", container_id, ProbeResult.FAILURE)
            await trio.sleep(200)
            world.pleg.relist()
            world.runtime.gc_errors.append("no")
            await trio.sleep(100)
        logging.flush()
    finally:
        logging.configure()
    lines = said.getvalue()
    for words in (
        '"SyncLoop ADD" source="file" pods=["default/web"]',
        '"SyncLoop (probe)" probe="readiness" status="ready" pod="default/web"',
        '"SyncLoop (probe): ignore irrelevant update" probe="liveness" status="unhealthy"',
        '"SyncLoop (SYNC) pods" total=1 pods=["default/web"]',
        '"SyncLoop (housekeeping)"',
        '"SyncLoop (housekeeping) end" duration=',
        '"Container garbage collection succeeded"',
        '"Container garbage collection failed"',
    ):
        assert words in lines, words
