"""The sync loop: order, bursts, a runtime in error, probes, deadlines, admission, resizes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest
import trio
import trio.lowlevel
from msgspec.structs import replace

from tests.pods.admit_all import Few
from tests.pods.build import api_pod, make_pod
from tests.pods.world import World
from trio_kubelet.api import v1
from trio_kubelet.api.timestamps import rfc3339
from trio_kubelet.pleg.events import PodLifecycleEvent, PodLifecycleEventType
from trio_kubelet.pods.allocation import FILE_NAME, AllocationStore, allocation_of
from trio_kubelet.pods.conditions import find
from trio_kubelet.pods.doors import NoProbes, ProbeKind, ProbeUpdate, ProbeView
from trio_kubelet.pods.fit import NodeFacts
from trio_kubelet.pods.node_admitter import NodeAdmitter
from trio_kubelet.pods.resize_admission import NO_RULES, ResizeRules
from trio_kubelet.pods.sysctls import SysctlAllowlist
from trio_kubelet.runtime.ports import ProbeReadings, ProbeResult
from trio_kubelet.sources.types import PodOperation, PodUpdate


async def running_pod(world: World, pod: v1.Pod, source: str = "file") -> None:
    await world.add(pod, source=source)
    await world.until(lambda: pod.metadata.uid in world.runtime.alive())
    await trio.sleep(0.5)


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
        await world.pleg.tell(PodLifecycleEvent("uid-web", PodLifecycleEventType.POD_SYNC, ""))
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
        self.readiness: dict[str, ProbeResult] = {}
        self.liveness: dict[str, ProbeResult] = {}
        self.kept: Collection[str] = ()
        self._send, self._receive = trio.open_memory_channel[ProbeUpdate](10)

    def view(self) -> ProbeView:
        return ProbeView(active=True, readiness=self.readiness)

    def readings(self) -> ProbeReadings:
        return ProbeReadings(liveness=self.liveness)

    def updates(self) -> trio.MemoryReceiveChannel[ProbeUpdate]:
        return self._receive

    def keep_only(self, uids: Collection[str]) -> None:
        self.kept = set(uids)

    async def say(self, kind: ProbeKind, uid: str, container_id: str, result: ProbeResult) -> None:
        await self._send.send(ProbeUpdate(kind, uid, container_id, result))


async def test_probe_results_show_at_once_and_sync_the_pod(autojump_clock: trio.abc.Clock) -> None:
    probes = ScriptedProbes()
    world = World(probes=probes)
    pod = make_pod(containers=[v1.Container(name="c", image="i", readiness_probe=v1.Probe())])
    async with world.running():
        await running_pod(world, pod)
        assert not is_ready(world, pod)
        container_id = world.runtime.pods["uid-web"].containers[0].id
        probes.readiness[container_id] = ProbeResult.SUCCESS
        syncs = world.runtime.syncs
        await probes.say(ProbeKind.READINESS, "uid-web", container_id, ProbeResult.SUCCESS)
        await trio.testing.wait_all_tasks_blocked()
        assert is_ready(world, pod)
        await trio.sleep(0.1)
        assert world.runtime.syncs == syncs + 1
        await probes.say(ProbeKind.LIVENESS, "uid-web", container_id, ProbeResult.SUCCESS)
        await trio.sleep(0.1)
        assert world.runtime.syncs == syncs + 1  # a good liveness probe changes nothing
        await probes.say(ProbeKind.LIVENESS, "uid-web", container_id, ProbeResult.FAILURE)
        await trio.sleep(0.1)
        assert world.runtime.syncs == syncs + 2
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


def small_node(
    tmp_path: Path, resizes: ResizeRules = NO_RULES, pressures: Collection[str] = ()
) -> NodeAdmitter:
    facts = NodeFacts(name="n", allocatable={"cpu": "2", "memory": "4Gi", "pods": "110"})
    store = AllocationStore(str(tmp_path))
    store.load()
    return NodeAdmitter(
        lambda: facts, SysctlAllowlist([]), store, pressures=lambda: pressures, resizes=resizes
    )


def asking(name: str, cpu: str, **kwargs: object) -> v1.Pod:
    resources = v1.ResourceRequirements(requests={"cpu": cpu})
    container = v1.Container(name="c", image="i", resources=resources)
    return make_pod(name, containers=[container], **kwargs)  # type: ignore[arg-type]


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


# Other resources for a running pod


async def test_a_resize_is_granted_or_waits_for_room(autojump_clock: trio.abc.Clock, tmp_path: Path) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))
    neighbour = asking("neighbour", "1", source="api")
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api"), "api")
        await running_pod(world, neighbour, "api")
        await world.update(asking("web", "800m", source="api"), source="api")
        await trio.sleep(1)
        assert world.status(neighbour).allocated_resources == {"cpu": "1"}
        assert granted(world) == {"cpu": "800m"}
        assert world.events.reasons("uid-web") == ["ResizeStarted", "ResizeCompleted"]
        third = asking("third", "100m", source="api")
        await running_pod(world, third, "api")
        await world.update(asking("web", "1500m", source="api"), source="api")
        await trio.sleep(1)
        assert granted(world) == {"cpu": "800m"}
        assert pending(world) == ("Deferred", "cpu, requested: 1500, used: 1100, capacity: 2000")
        await world.remove(third, source="api")
        await trio.sleep(1)
        assert pending(world) == ("Deferred", "cpu, requested: 1500, used: 1000, capacity: 2000")
        assert world.events.reasons("uid-web").count("ResizeDeferred") == 1
        await world.update(asking("web", "9", source="api"), source="api")
        await trio.sleep(1)
        assert pending(world) == ("Deferred", "cpu, requested: 9000, used: 1000, capacity: 2000")
        await world.update(asking("web", "1500m", source="api"), source="api")
        await world.remove(neighbour, source="api")
        await trio.sleep(1)
        assert granted(world) == {"cpu": "1500m"}
        assert pending(world) is None
    assert len(world.runtime.starts("uid-web")) == 1


async def test_a_critical_pod_has_more_when_its_victims_have_ended(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))
    critical = {"priority": 2_000_000_000}
    world.runtime.stop_takes["uid-victim"] = 8
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api", spec=critical), "api")
        await running_pod(world, asking("victim", "1", source="api"), "api")
        await world.update(asking("web", "1500m", source="api", spec=critical), source="api")
        await trio.sleep(5)
        assert granted(world) == {"cpu": "500m"}
        assert "Preempting" in world.events.reasons("uid-victim")
        await world.until(lambda: granted(world) == {"cpu": "1500m"}, 10)
        assert pending(world) is None
        assert world.status(make_pod("victim")).reason == "Preempting"
        assert world.events.reasons("uid-web") == ["ResizeStarted", "ResizeCompleted"]
    assert len(world.runtime.starts("uid-web")) == 1


async def test_a_resize_is_tried_again_when_the_node_has_recovered(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """Nobody tells of that: no pod came, went or changed."""
    pressures = {"DiskPressure"}
    admitter = small_node(tmp_path, pressures=pressures)
    web = asking("web", "500m", source="api")
    admitter.granted(web)
    world = World(admitter=admitter, sources=("api",))
    async with world.running():
        await running_pod(world, web, "api")
        await world.update(asking("web", "1", source="api"), source="api")
        await trio.sleep(10)
        assert pending(world) == ("Deferred", "[DiskPressure]. ")
        pressures.clear()
        await trio.sleep(100)
        assert granted(world) == {"cpu": "500m"}
        assert world.registry.get_sample_value("kubelet_pod_pending_resizes", {"reason": "deferred"}) == 1
        labels = {"resource": "cpu", "requirement": "requests", "operation": "increase"}
        assert world.registry.get_sample_value("kubelet_container_requested_resizes_total", labels) == 1
        await trio.sleep(120)
        assert granted(world) == {"cpu": "1"}
        assert pending(world) is None
        accepted = "kubelet_pod_deferred_accepted_resizes_total"
        assert world.registry.get_sample_value(accepted, {"retry_trigger": "periodic_retry"}) == 1
        assert world.registry.get_sample_value("kubelet_pod_pending_resizes", {"reason": "deferred"}) is None


async def test_what_can_never_be_had_is_not_asked_for_again(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path, ResizeRules(pod_level=False)), sources=("api",))

    def limited(cpu: str) -> v1.Pod:
        spec = {"resources": v1.ResourceRequirements(limits={"cpu": cpu})}
        return make_pod("web", source="api", spec=spec)

    async with world.running():
        await running_pod(world, limited("500m"), "api")
        await world.update(limited("1"), source="api")
        await trio.sleep(1)
        found = find(world.status(make_pod("web")).conditions, "PodResizePending")
        assert found is not None
        assert found.reason == "Infeasible"
        assert found.message == "InPlacePodLevelResourcesVerticalScaling is disabled"
        await running_pod(world, asking("other", "1", source="api"), "api")
        await world.remove(asking("other", "1", source="api"), source="api")
        await trio.sleep(1)
        assert world.events.reasons("uid-web") == ["ResizeInfeasible"]
        infeasible = "kubelet_pod_infeasible_resizes_total"
        assert world.registry.get_sample_value(infeasible, {"reason_detail": "plr_feature_gate_off"}) == 1
        await world.update(limited("500m"), source="api")
        await trio.sleep(1)
        assert pending(world) is None


async def test_of_two_that_wait_for_room_the_weightier_one_gets_it(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """Guaranteed before burstable, though that one has waited longer; priority before either."""

    def sized(name: str, cpu: str, priority: int = 0) -> v1.Pod:
        amounts = {"cpu": cpu, "memory": "1Mi"}
        resources = v1.ResourceRequirements(requests=amounts, limits=amounts if name == "sure" else None)
        container = v1.Container(name="c", image="i", resources=resources)
        return make_pod(name, containers=[container], source="api", spec={"priority": priority})

    for priority, first in ((0, "sure"), (5, "burst")):
        world = World(admitter=small_node(tmp_path / str(priority)), sources=("api",))
        leaving = asking("leaving", "600m", source="api")
        async with world.running():
            for pod in (leaving, asking("other", "600m", source="api")):
                await running_pod(world, pod, "api")
            for pod in (sized("burst", "400m", priority), sized("sure", "400m")):
                await running_pod(world, pod, "api")
            for pod in (sized("burst", "900m", priority), sized("sure", "900m")):
                await world.update(pod, source="api")
                await trio.sleep(1)
            await world.remove(leaving, source="api")
            await trio.sleep(1)
            larger = [
                name
                for name in ("burst", "sure")
                if (world.status(make_pod(name)).allocated_resources or {})["cpu"] == "900m"
            ]
            assert larger == [first]


async def test_a_resize_gets_the_room_of_a_pod_that_ran_its_course(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """It is not removed: whoever started it wants to see how it ended."""
    world = World(admitter=small_node(tmp_path), sources=("api",))
    job = asking("job", "1", source="api", restart_policy="Never")
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api"), "api")
        await running_pod(world, job, "api")
        await world.update(asking("web", "1500m", source="api"), source="api")
        await trio.sleep(1)
        assert granted(world) == {"cpu": "500m"}
        world.runtime.die("uid-job", 0)
        await trio.sleep(5)
        assert world.status(job).phase == "Succeeded"
        assert granted(world) == {"cpu": "1500m"}
        assert pending(world) is None


def granted(world: World) -> object:
    return world.status(make_pod("web")).allocated_resources


def pending(world: World) -> tuple[str, str] | None:
    found = find(world.status(make_pod("web")).conditions, "PodResizePending")
    return None if found is None else (found.reason, found.message.partition(": ")[2])


async def test_a_pod_runs_on_with_what_it_was_granted_after_a_restart(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    before = {"uid-web": allocation_of(asking("web", "500m", source="api"))}
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(before))
    world = World(admitter=small_node(tmp_path), sources=("api",))
    async with world.running():
        await running_pod(world, asking("other", "1", source="api"), "api")
        await running_pod(world, asking("web", "1900m", source="api"), "api")
        await trio.sleep(1)
        assert granted(world) == {"cpu": "500m"}
        assert pending(world) is not None
