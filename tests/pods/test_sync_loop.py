"""The sync loop: order, bursts, a runtime in error, probes, deadlines, admission."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from msgspec.structs import replace

from tests.pods.admit_all import AdmitAll, Few
from tests.pods.build import api_pod, make_pod
from tests.pods.small_node import asking, running_pod, small_node
from tests.pods.world import NoProbes, World
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.common import log as logging
from trio_kubelet.observed.probes import ProbeKind, ProbeReadings, ProbeResult, ProbeUpdate, ProbeView
from trio_kubelet.observed.types import PodLifecycleEvent, PodLifecycleEventType
from trio_kubelet.podinfo.updates import PodOperation, PodUpdate
from trio_kubelet.pods.admission.admitter import Admit, Decision
from trio_kubelet.pods.admission.allocating import Allocating, NothingToAllocate
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist
from trio_kubelet.pods.resize.allocation import AllocationStore


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


# Admission


async def test_a_refused_pod_is_shown_failed_and_never_started(autojump_clock: trio.abc.Clock) -> None:
    world = World(admitter=Few())
    pods = [make_pod(f"p{n}") for n in range(3)]
    async with world.running():
        await world.add(*pods)
        await trio.sleep(200)
        status = world.status(pods[2])
        assert (status.phase, status.reason, status.message) == (
            "Failed",
            "OutOfpods",
            "Pod was rejected: full",
        )
        assert world.runtime.alive() == {"uid-p0", "uid-p1"}
        assert world.events.reasons("uid-p2") == ["OutOfpods"]
        await world.update(pods[2])
        await trio.sleep(10)
        assert world.runtime.alive() == {"uid-p0", "uid-p1"}
        await world.remove(pods[2])
        await trio.sleep(1)
        assert world.room.statuses.get("uid-p2") is None


@pytest.mark.parametrize("runs", [True, False])
async def test_what_a_pod_has_that_is_refused_after_a_restart_goes(
    runs: bool, autojump_clock: trio.abc.Clock
) -> None:
    """What still runs is ended; of one that ended with the machine there are volumes left."""
    world, pod = World(), make_pod()
    async with world.running():
        await running_pod(world, pod)
    if not runs:
        world.runtime.die("uid-web")
        world.runtime.pods["uid-web"].ready = False
    for number in range(2):
        world.runtime.add(f"uid-p{number}", f"p{number}")
    after = World(node=world, admitter=Few())
    others = {"uid-p0", "uid-p1"}
    async with after.running():
        await after.add(make_pod("p0"), make_pod("p1"))
        await after.add(pod)
        await trio.sleep(30)
        assert after.status(pod).reason == "OutOfpods"
        assert after.runtime.alive() == others
        assert after.volumes.up == after.cgroups.there == after.directories.there == others


async def test_a_pod_that_is_refused_while_it_runs_does_not_start_again_when_there_is_room(
    autojump_clock: trio.abc.Clock,
) -> None:
    world = World(admitter=Few(), sources=("api",))
    pods = [api_pod(f"p{n}") for n in range(3)]
    world.runtime.add("uid-p2", "p2", source="api")
    world.runtime.stop_takes["uid-p2"] = 60
    async with world.running():
        await world.add(*pods, source="api")
        await world.until(lambda: world.room.workers.get("uid-p2") is not None)
        await world.remove(pods[0], source="api")
        await world.until(lambda: "uid-p2" not in world.runtime.alive())
        await trio.sleep(200)
        assert world.runtime.alive() == {"uid-p1"}
        assert (world.status(pods[2]).phase, world.status(pods[2]).reason) == ("Failed", "OutOfpods")
        assert world.events.reasons("uid-p2") == ["OutOfpods"]
        metadata = replace(pods[2].metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        await world.update(replace(pods[2], metadata=metadata), source="api")
        await world.until(lambda: world.is_finished("uid-p2"), 10)


async def test_a_refused_pod_of_the_api_server_can_be_deleted(autojump_clock: trio.abc.Clock) -> None:
    world = World(admitter=Few(), sources=("api",))
    pods = [api_pod(f"p{n}") for n in range(3)]
    async with world.running():
        await world.add(*pods, source="api")
        await trio.sleep(5)
        metadata = replace(pods[2].metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        await world.update(replace(pods[2], metadata=metadata), source="api")
        await world.until(lambda: world.is_finished("uid-p2"), 10)
        assert world.status(pods[2]).phase == "Failed"


async def test_a_refused_pod_that_is_deleted_takes_no_room(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """kubernetes 135296: others were refused for want of what it had asked for."""
    world = World(admitter=small_node(tmp_path), sources=("api",))
    greedy, modest = asking("greedy", "1000", source="api"), asking("modest", "1", source="api")
    async with world.running():
        await world.add(greedy, source="api")
        await trio.sleep(1)
        assert world.status(greedy).reason == "OutOfcpu"
        metadata = replace(greedy.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        await world.update(replace(greedy, metadata=metadata), source="api")
        await world.add(modest, source="api")
        await world.until(lambda: "uid-modest" in world.runtime.alive(), 10)


async def test_a_pod_that_has_failed_takes_its_room_until_it_has_stopped(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))
    web, early, late = (asking(name, "1500m", source="api") for name in ("web", "early", "late"))
    world.runtime.stop_takes["uid-web"] = 8
    async with world.running():
        await running_pod(world, web, "api")
        stopped = world.room.workers.kill(web, patch=lambda status: replace(status, phase="Failed"))
        await trio.sleep(2)
        assert world.status(web).phase == "Failed"
        await world.add(early, source="api")
        await trio.sleep(1)
        assert world.status(early).reason == "OutOfcpu"
        await stopped.wait()
        await trio.sleep(1)
        await running_pod(world, late, "api")


async def test_a_critical_pod_starts_when_its_victims_have_ended(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("file", "api"))
    victim = asking("victim", "1500m", source="api")
    critical = asking("critical", "1")
    world.runtime.stop_takes["uid-victim"] = 8
    async with world.running():
        await world.add(source="file")
        await running_pod(world, victim, "api")
        await world.add(critical)
        await trio.sleep(6)
        assert world.runtime.alive() == {"uid-victim"}
        await world.until(lambda: world.runtime.alive() == {"uid-critical"}, 10)
        status = world.status(victim)
        assert (status.phase, status.reason) == ("Failed", "Preempting")
        target = [c for c in status.conditions or () if c.type == "DisruptionTarget"]
        assert [(c.status, c.reason) for c in target] == [("True", "TerminationByKubelet")]
        assert world.registry.get_sample_value("kubelet_preemptions", {"preemption_signal": "cpu"}) == 1
    assert world.runtime.starts("uid-critical")[0] >= world.runtime.stopped_at("uid-victim")


async def test_a_victim_that_does_not_stop_delays_the_critical_pod_only_so_long(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("file", "api"))
    victim = asking("victim", "1500m", source="api", grace=20)
    async with world.running():
        await world.add(source="file")
        await running_pod(world, victim, "api")
        world.runtime.kill_errors["uid-victim"] = 10**6
        asked = trio.current_time()
        await world.add(asking("critical", "1"))
        await world.until(lambda: "uid-critical" in world.runtime.alive(), 60)
        assert trio.current_time() - asked == pytest.approx(30, abs=0.5)
        assert "ExceededGracePeriod" in world.events.reasons("uid-victim")


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


class Chokes(AdmitAll):
    """What pods of a name ask for makes admission raise something."""

    def admit(self, pod: v1.Pod, others: Others) -> Decision:
        if "bad" in pod.metadata.name:
            raise OverflowError("too much")
        return Admit()

    def actuated(self, uid: str) -> None:
        pass

    def as_granted(self, pod: v1.Pod) -> v1.Pod:
        if "worse" in pod.metadata.name:
            raise RecursionError("too deep")
        return pod


async def test_a_defect_met_while_admitting_a_pod_refuses_that_pod(autojump_clock: trio.abc.Clock) -> None:
    world, bad, good = World(admitter=Chokes()), make_pod("bad"), make_pod("good")
    worse = make_pod("worse")
    async with world.running():
        await world.add(bad, worse, good)
        await world.until(lambda: good.metadata.uid in world.runtime.alive())
        status = world.status(bad)
        assert (status.phase, status.reason) == ("Failed", "UnexpectedAdmissionError")
        assert "OverflowError: too much" in status.message
        await trio.sleep(60)  # housekeeping misses its worker
        assert "FailedSync" in world.events.reasons(worse.metadata.uid)
        await world.update(bad, worse, good)
        await world.remove(bad, worse)
        await world.until(lambda: world.room.pods.get(bad.metadata.uid) is None)
        assert world.runtime.alive() == {good.metadata.uid}


async def test_a_pod_that_asks_for_no_quantity_is_refused(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    """Only a broken API server gives one out; the agent ended of it, and of the next one that was started."""
    world, broken, sound = (
        World(admitter=small_node(tmp_path)),
        asking("broken", "1..0"),
        asking("sound", "1"),
    )
    async with world.running():
        await world.add(broken, sound)
        await trio.sleep(60)
        status = world.status(broken)
        assert (status.phase, status.reason) == ("Failed", "UnexpectedAdmissionError")
        assert world.runtime.alive() == {sound.metadata.uid}


async def test_a_moment_of_creation_that_is_none_counts_as_none(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with world.running():
        odd = make_pod("odd")
        odd.metadata.creation_timestamp = "10000-01-01T00:00:00Z"
        await world.add(odd, make_pod("good"))
        await world.until(lambda: world.runtime.alive() == {"uid-odd", "uid-good"})


class Giver:
    """Gives to pods called `slow` when it is told to; to `none` it cannot."""

    def __init__(self) -> None:
        self.may = trio.Event()
        self.given: list[str] = []

    def concerns(self, pod: v1.Pod) -> bool:
        return pod.metadata.name in ("slow", "none")

    def passes(self, pod: v1.Pod) -> None:
        pass

    async def allocate(self, pod: v1.Pod) -> tuple[str, str] | None:
        await self.may.wait()
        self.given.append(pod.metadata.name)
        return ("UnexpectedAdmissionError", "no devices") if pod.metadata.name == "none" else None

    def world(self, directory: Path) -> World:
        """Pods on a small node on which it gives devices."""
        allocating = Allocating(self)
        return World(admitter=small_node(directory, allocating=allocating), allocating=allocating)


async def test_a_pod_that_is_given_devices_first_holds_up_no_other(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    giver = Giver()
    world = giver.world(tmp_path)
    async with world.running():
        await world.add(make_pod("slow"), make_pod("none"), make_pod("plain"))
        await trio.sleep(5)
        assert list(world.room.workers.known()) == ["uid-plain"]
        giver.may.set()
        await trio.sleep(5)
        assert sorted(world.room.workers.known()) == ["uid-plain", "uid-slow"]
        status = world.room.statuses.get("uid-none")
        assert status is not None
        assert (status.phase, status.reason) == ("Failed", "UnexpectedAdmissionError")
        changed = replace(make_pod("slow"), metadata=replace(make_pod("slow").metadata, labels={"a": "b"}))
        await world.update(changed)
        await trio.sleep(1)
        worker = world.room.workers.get("uid-slow")
        assert worker is not None
        assert worker.pod == changed, "it waits for nothing any more"
        await world.remove(make_pod("slow"))
        await trio.sleep(60)
        await world.add(make_pod("slow"))
        await trio.sleep(5)
        assert giver.given.count("slow") == 2, "what it had was others' in between"
        assert "uid-slow" in world.room.workers.known()


async def test_a_pod_that_waits_for_devices_keeps_what_is_left_of_it(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    """Dead containers say after a restart how often and why it ended, and their logs are there to be read."""
    giver = Giver()
    world = giver.world(tmp_path)
    for name in ("slow", "left"):
        world.runtime.add(f"uid-{name}", name)
        world.runtime.die(f"uid-{name}")
    async with world.running():
        await world.add(make_pod("slow"), make_pod("none"), make_pod("plain"))
        await trio.sleep(180)
        assert list(world.room.workers.known()) == ["uid-plain"]
        assert world.runtime.observe("uid-left") is None
        seen = world.runtime.observe("uid-slow")
        assert seen is not None
        assert seen.containers
        giver.may.set()
        await world.until(lambda: "uid-slow" in world.runtime.alive())
        assert world.room.workers.should_content_be_removed("uid-none"), "it was refused"


def deleted(pod: v1.Pod) -> v1.Pod:
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))


async def test_a_pod_deleted_while_it_waits_for_devices_ends_at_once_and_without_them(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    giver = Giver()
    allocating = Allocating(giver)
    admitter = small_node(tmp_path, allocating=allocating)
    world, pod = World(sources=("api",), admitter=admitter, allocating=allocating), api_pod("slow")
    async with world.running():
        await world.add(pod, source="api")
        await trio.sleep(5)
        await world.update(deleted(pod), source="api")
        await world.until(lambda: world.is_finished("uid-slow"), 1)
        giver.may.set()
        await trio.sleep(60)
        assert not giver.given
        assert not world.runtime.starts("uid-slow")


async def test_a_deleted_pod_that_an_agent_finds_is_given_no_devices(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    allocating = Allocating(Giver())
    admitter = small_node(tmp_path, allocating=allocating)
    world = World(sources=("api",), admitter=admitter, allocating=allocating)
    async with world.running():
        await world.add(deleted(api_pod("slow")), source="api")
        await world.until(lambda: world.is_finished("uid-slow"), 1)


async def test_a_critical_pod_deleted_while_its_victims_end_does_not_wait_for_them(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))
    critical = asking("critical", "1", source="api", spec={"priority": 2_000_000_000})
    world.runtime.stop_takes["uid-victim"] = 8
    async with world.running():
        await running_pod(world, asking("victim", "1500m", source="api"), "api")
        await world.add(critical, source="api")
        await trio.sleep(2)
        await world.update(deleted(critical), source="api")
        await world.until(lambda: world.is_finished("uid-critical"), 1)
        assert world.runtime.alive() == {"uid-victim"}
        await trio.sleep(60)
        assert not world.runtime.starts("uid-critical")


async def test_a_node_is_looked_at_anew_before_a_pod_is_refused_for_its_labels(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    known, there, looks = {"zone": "old"}, {"zone": "old"}, list[float]()

    async def look() -> None:
        await trio.sleep(1)
        looks.append(trio.current_time())
        known.update(there)

    facts = NodeFacts(name="n", allocatable={"pods": "9"}, labels=known)
    store = AllocationStore(str(tmp_path))
    store.load()
    allocating = Allocating(NothingToAllocate())
    admitter = NodeAdmitter(
        node=lambda: facts, sysctls=SysctlAllowlist([]), allocations=store, allocating=allocating, look=look
    )
    world = World(admitter=admitter, allocating=allocating)
    async with world.running():
        await world.add(make_pod("plain"), make_pod("fits", spec={"node_selector": {"zone": "old"}}))
        await trio.sleep(5)
        assert looks == []
        there["zone"] = "new"
        await world.add(
            make_pod("early", spec={"node_selector": {"zone": "new"}}),
            make_pod("wrong", spec={"node_selector": {"zone": "none"}}),
        )
        await trio.sleep(0.5)
        assert sorted(world.room.workers.known()) == ["uid-fits", "uid-plain"], "nobody else waits for it"
        await trio.sleep(5)
        assert sorted(world.room.workers.known()) == ["uid-early", "uid-fits", "uid-plain"]
        status = world.room.statuses.get("uid-wrong")
        assert status is not None
        assert (status.phase, status.reason) == ("Failed", "NodeAffinity")
        await trio.sleep(120)
        assert len(looks) == 2
