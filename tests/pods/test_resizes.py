"""Other resources for a running pod: granted, waited for, refused for good."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from tests.pods.build import make_pod
from tests.pods.small_node import asking, running_pod, small_node
from tests.pods.world import FakeSets, World
from trio_kubelet.api import v1
from trio_kubelet.pods.admission.admitter import Admit, Postpone, Preempt
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.resize.allocation import allocation_of
from trio_kubelet.pods.resize.checkpoint import ACTUATED, ALLOCATED, encode
from trio_kubelet.pods.resize.rules import ResizeRules
from trio_kubelet.pods.status.conditions import find
from trio_kubelet.pods.status.resources import pod_requests


def granted(world: World) -> object:
    return world.status(make_pod("web")).allocated_resources


def pending(world: World) -> tuple[str, str] | None:
    found = find(world.status(make_pod("web")).conditions, "PodResizePending")
    return None if found is None else (found.reason, found.message.partition(": ")[2])


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
        for _ in range(2):  # another change of it meanwhile ends nobody again
            await world.update(asking("web", "1500m", source="api", spec=critical), source="api")
            await trio.sleep(2.5)
        assert granted(world) == {"cpu": "500m"}
        assert world.events.reasons("uid-victim").count("Preempting") == 1
        await world.until(lambda: granted(world) == {"cpu": "1500m"}, 10)
        await trio.sleep(2)
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


async def test_a_pod_that_ended_long_ago_makes_no_room_again(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    pressures: set[str] = set()
    world = World(admitter=small_node(tmp_path, pressures=pressures), sources=("api",))
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api"), "api")
        await running_pod(world, asking("job", "100m", source="api", restart_policy="Never"), "api")
        world.runtime.die("uid-job", 0)
        await trio.sleep(5)
        pressures.add("DiskPressure")
        await world.update(asking("web", "1", source="api"), source="api")
        await trio.sleep(10)
        assert pending(world) == ("Deferred", "[DiskPressure]. ")
        pressures.clear()
        await trio.sleep(300)
        assert granted(world) == {"cpu": "1"}
    accepted = "kubelet_pod_deferred_accepted_resizes_total"
    assert world.registry.get_sample_value(accepted, {"retry_trigger": "periodic_retry"}) == 1


async def test_that_the_node_does_not_declare_what_a_resize_needs_is_told(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    declared = ["InPlacePodVerticalScalingInitContainers"]
    world = World(admitter=small_node(tmp_path, declared=declared), sources=("api",))

    def limited(cpu: str, init_cpu: str = "1") -> v1.Pod:
        init = v1.Container(
            name="init", image="i", resources=v1.ResourceRequirements(limits={"cpu": init_cpu})
        )
        spec = {"resources": v1.ResourceRequirements(limits={"cpu": cpu}), "init_containers": [init]}
        return make_pod("web", source="api", spec=spec)

    def told() -> list[str]:
        wanted = "FailedNodeDeclaredFeaturesCheck"
        return [message for _, reason, message in world.events.all if reason == wanted]

    async with world.running():
        await world.add(limited("500m"), source="api")
        await world.update(limited("500m", "2"), source="api")
        await trio.sleep(1)
        assert told() == []
        await world.update(limited("1", "2"), source="api")
        await trio.sleep(1)
        missing = "InPlacePodLevelResourcesVerticalScaling"
        assert told() == [f"Pod requires node features that are not available: {missing}"]


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


def granted_before(directory: Path, file: str = ALLOCATED, **cpu: str) -> None:
    """Leaves what an agent before granted to pods, by their names."""
    before = {f"uid-{name}": allocation_of(asking(name, amount)) for name, amount in cpu.items()}
    (directory / file).write_bytes(encode(before))


async def test_a_pod_runs_on_with_what_it_was_granted_after_a_restart(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    granted_before(tmp_path, web="500m")
    world = World(admitter=small_node(tmp_path), sources=("api",))
    async with world.running():
        await running_pod(world, asking("other", "1", source="api"), "api")
        await running_pod(world, asking("web", "1900m", source="api"), "api")
        await trio.sleep(1)
        assert granted(world) == {"cpu": "500m"}
        assert pending(world) is not None


async def test_what_a_pod_asked_for_while_no_agent_ran_is_made_at_once(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    granted_before(tmp_path, web="500m")
    world = World(admitter=small_node(tmp_path), sources=("api",))
    world.runtime.add("uid-web", "web", source="api")
    world.cgroups.there.add("uid-web")
    async with world.running():
        await trio.sleep(5)  # the runtime has been looked at, and has no news for another round
        await world.add(asking("web", "800m", source="api"), source="api")
        await trio.sleep(1)
        assert granted(world) == {"cpu": "800m"}
        assert world.events.reasons("uid-web") == ["ResizeStarted", "ResizeCompleted"]


async def test_nobody_is_given_what_a_pod_has_that_is_still_to_come(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    granted_before(tmp_path, web="500m", other="1")
    world = World(admitter=small_node(tmp_path), sources=("api", "file"))
    for name in ("web", "other", "static"):
        world.runtime.add(f"uid-{name}", name, source="file" if name == "static" else "api")
        world.cgroups.there.add(f"uid-{name}")
    async with world.running():
        await trio.sleep(5)
        web, other = asking("web", "1400m", source="api"), asking("other", "1", source="api")
        await world.add(web, other, source="api")
        await trio.sleep(5)
        assert pending(world) is None  # nobody was asked: a source has not told of its pods
        await world.add(asking("static", "100m"), source="file")
        await trio.sleep(5)
        assert world.status(other).phase == "Running"
        assert granted(world) == {"cpu": "500m"}
        assert pending(world) == ("Deferred", "cpu, requested: 1400, used: 1100, capacity: 2000")


async def test_a_resize_that_fails_is_told_once_and_as_of_when_it_began(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))

    def progress() -> v1.PodCondition | None:
        return find(world.status(make_pod("web")).conditions, "PodResizeInProgress")

    async with world.running():
        await running_pod(world, asking("web", "500m", source="api", generation=1), "api")
        world.runtime.resize_errors["uid-web"] = "busy"
        await world.update(asking("web", "800m", source="api", generation=2), source="api")
        await trio.sleep(30)
        first = progress()
        assert first is not None
        assert (first.reason, first.message, first.observed_generation) == ("Error", "busy", 2)
        assert first.last_probe_time
        assert first.last_transition_time
        assert world.events.reasons("uid-web") == ["ResizeStarted", "ResizeError"]
        spec = {"active_deadline_seconds": 10_000}
        await world.update(asking("web", "800m", source="api", generation=3, spec=spec), source="api")
        world.runtime.resize_errors["uid-web"] = "still busy"
        await trio.sleep(200)
        second = progress()
        assert second is not None
        assert (second.message, second.observed_generation) == ("still busy", 2)
        assert (second.last_probe_time or "") > first.last_probe_time
        assert second.last_transition_time == first.last_transition_time
        del world.runtime.resize_errors["uid-web"]
        await trio.sleep(200)
        assert progress() is None
        told = [(reason, message.rpartition('"generation":')[2]) for _, reason, message in world.events.all]
    assert told == [
        ("ResizeStarted", "2}"),
        ("ResizeError", '2,"error":"busy"}'),
        ("ResizeError", '2,"error":"still busy"}'),
        ("ResizeCompleted", "2}"),
    ]


def has(world: World) -> object:
    resources = world.status(make_pod("web")).resources
    return resources.requests if resources is not None else None


def progress(world: World) -> tuple[str, str] | None:
    found = find(world.status(make_pod("web")).conditions, "PodResizeInProgress")
    return None if found is None else (found.reason, found.message)


async def test_a_pod_shows_what_it_has_as_long_as_a_resize_fails(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api"), "api")
        assert (granted(world), has(world)) == ({"cpu": "500m"}, {"cpu": "500m"})
        world.runtime.resize_errors["uid-web"] = "below current usage"
        await world.update(asking("web", "800m", source="api"), source="api")
        for _ in range(3):
            await trio.sleep(100)
            assert (granted(world), has(world)) == ({"cpu": "800m"}, {"cpu": "500m"})
            assert progress(world) == ("Error", "below current usage")
            assert pending(world) is None
        # Back to what it has, of which there is nothing to do; then to something that can be made.
        del world.runtime.resize_errors["uid-web"]
        for cpu in ("500m", "600m"):
            await world.update(asking("web", cpu, source="api"), source="api")
            await trio.sleep(5)
            assert (granted(world), has(world)) == ({"cpu": cpu}, {"cpu": cpu})
            assert progress(world) is None
        assert world.events.reasons("uid-web") == [
            *("ResizeStarted", "ResizeError", "ResizeStarted", "ResizeCompleted"),
            *("ResizeStarted", "ResizeCompleted"),
        ]


def with_one_that_ends(cpu: str) -> v1.Pod:
    """Beside the container that asks for CPUs, one that is over soon."""
    pod = asking("large", cpu, source="api", restart_policy="OnFailure")
    assert pod.spec.containers is not None
    pod.spec.containers.append(v1.Container(name="once", image="i"))
    return pod


async def test_what_a_pod_was_to_lose_is_nobody_elses_while_it_has_it(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api"), "api")
        await running_pod(world, with_one_that_ends("1500m"), "api")
        world.runtime.die("uid-large", exit_code=0)
        await trio.sleep(2)
        world.runtime.resize_errors["uid-large"] = "below current usage"
        await world.update(with_one_that_ends("800m"), source="api")
        await trio.sleep(1)
        assert world.status(make_pod("large")).allocated_resources == {"cpu": "800m"}
        await world.update(asking("web", "1", source="api"), source="api")
        late = asking("late", "300m", source="api")
        await world.add(late, source="api")
        await trio.sleep(1)
        assert pending(world) == ("Deferred", "cpu, requested: 1000, used: 1500, capacity: 2000")
        assert world.status(late).reason == "OutOfcpu"
        del world.runtime.resize_errors["uid-large"]
        await world.until(lambda: granted(world) == {"cpu": "1"}, 300)
        assert pending(world) is None
        accepted = "kubelet_pod_deferred_accepted_resizes_total"
        assert world.registry.get_sample_value(accepted, {"retry_trigger": "pod_resized"}) == 1


async def test_a_resize_that_fails_is_known_after_a_restart(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """The pod's cgroup stays as it was until the resize is made."""
    granted_before(tmp_path, web="800m")
    granted_before(tmp_path, ACTUATED, web="500m")
    world = World(admitter=small_node(tmp_path), sources=("api",))
    world.runtime.add("uid-web", "web", source="api")
    ensured: list[object] = []

    class Cgroups(FakeSets):
        async def ensure(self, pod: v1.Pod, *, running: Collection[str] = (), new: bool = False) -> bool:
            ensured.append(pod_requests(pod)["cpu"])
            return await super().ensure(pod, running=running, new=new)

    cgroups = world.cgroups = Cgroups()
    cgroups.there.add("uid-web")
    world = World(admitter=small_node(tmp_path), sources=("api",), node=world)
    world.runtime.resize_errors["uid-web"] = "below current usage"
    async with world.running():
        await world.add(asking("web", "800m", source="api"), source="api")
        await trio.sleep(100)
        assert (granted(world), has(world)) == ({"cpu": "800m"}, {"cpu": "500m"})
        assert set(ensured) == {"500m"}
        del world.runtime.resize_errors["uid-web"]
        await trio.sleep(200)
        assert (granted(world), has(world)) == ({"cpu": "800m"}, {"cpu": "800m"})
        await world.update(asking("web", "500m", source="api"), source="api")
        await trio.sleep(5)
        assert (granted(world), has(world)) == ({"cpu": "500m"}, {"cpu": "500m"})


async def test_a_resize_of_a_pod_that_does_not_run_is_told_as_made_and_made_when_it_does(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """What starts has what it was granted; the cgroup, made before, has it in the next round."""
    world = World(admitter=small_node(tmp_path), sources=("api",))
    async with world.running():
        world.runtime.sync_errors["uid-web"] = 3
        await world.add(asking("web", "500m", source="api"), source="api")
        await trio.sleep(1)
        await world.update(asking("web", "800m", source="api"), source="api")
        await world.until(lambda: "uid-web" in world.runtime.alive())
        await trio.sleep(5)
        assert (granted(world), has(world), progress(world)) == ({"cpu": "800m"}, {"cpu": "800m"}, None)
        assert any("ResizePodInPlace" in text for text in world.stories(make_pod("web")))


async def test_a_round_by_what_a_pod_had_before_completes_no_resize(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    world = World(admitter=small_node(tmp_path), sources=("api",))
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api"), "api")
        world.runtime.start_takes = 5.0
        world.runtime.die("uid-web")
        await trio.sleep(2)  # its round starts it again, and is not over
        await world.update(asking("web", "800m", source="api"), source="api")
        await trio.sleep(60)
        told = [message for _, reason, message in world.events.all if reason == "ResizeCompleted"]
    assert len(told) == 1
    assert '"800m"' in told[0]


async def test_a_resize_is_told_in_one_order_and_with_its_amounts(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """The kubelet's own conditions come after those of a resize, and its grant is one write."""
    world = World(admitter=small_node(tmp_path), sources=("api",))
    told: list[tuple[list[str], object, object]] = []

    def note(uid: str) -> None:
        status = world.room.statuses.get(uid)
        assert status is not None
        has = status.resources.requests if status.resources is not None else None
        told.append(([c.type for c in status.conditions or ()], status.allocated_resources, has))

    own = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
    async with world.running():
        web = asking("web", "500m", source="api")
        await running_pod(world, web, "api")
        world.room.statuses.changed.listen(note)
        await world.update(asking("web", "9", source="api"), source="api")
        await trio.sleep(1)
        assert told == [(["PodResizePending", *own], {"cpu": "500m"}, {"cpu": "500m"})]
        told.clear()
        await world.update(asking("web", "1500m", source="api"), source="api")
        await trio.sleep(1)
    assert told == [
        (["PodResizeInProgress", *own], {"cpu": "1500m"}, {"cpu": "500m"}),
        (["PodResizeInProgress", *own], {"cpu": "1500m"}, {"cpu": "1500m"}),
        (own, {"cpu": "1500m"}, {"cpu": "1500m"}),
    ]


def choke(monkeypatch: pytest.MonkeyPatch, admitter: NodeAdmitter, uid: str) -> None:
    """From now on what one pod asks for makes the code raise."""
    resize = admitter.resize

    def chokes(pod: v1.Pod, others: Others) -> Admit | Postpone | Preempt:
        if pod.metadata.uid == uid:
            raise RecursionError("too deep")
        return resize(pod, others)

    monkeypatch.setattr(admitter, "resize", chokes)


async def test_a_defect_met_at_a_pod_that_waits_for_room_stays_with_it(
    autojump_clock: trio.abc.Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitter = small_node(tmp_path)
    world = World(admitter=admitter, sources=("api",))
    async with world.running():
        await running_pod(world, asking("web", "1", source="api"), "api")
        await running_pod(world, asking("other", "500m", source="api"), "api")
        await world.update(asking("web", "9", source="api"), source="api")
        await trio.sleep(1)
        choke(monkeypatch, admitter, "uid-web")
        await world.update(asking("other", "600m", source="api"), source="api")
        await trio.sleep(600)
        assert world.status(make_pod("other")).allocated_resources == {"cpu": "600m"}
        assert granted(world) == {"cpu": "1"}
        assert world.runtime.alive() == {"uid-web", "uid-other"}
        assert "FailedSync" in world.events.reasons("uid-web")


async def test_a_defect_met_at_a_pod_for_which_others_have_ended_stays_with_it(
    autojump_clock: trio.abc.Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitter = small_node(tmp_path)
    world = World(admitter=admitter, sources=("api",))
    critical = {"priority": 2_000_000_000}
    world.runtime.stop_takes["uid-victim"] = 8
    async with world.running():
        await running_pod(world, asking("web", "500m", source="api", spec=critical), "api")
        await running_pod(world, asking("victim", "1", source="api"), "api")
        await world.update(asking("web", "1500m", source="api", spec=critical), source="api")
        await trio.sleep(1)
        choke(monkeypatch, admitter, "uid-web")
        await world.update(asking("web", "1600m", source="api", spec=critical), source="api")
        await trio.sleep(60)
        assert granted(world) == {"cpu": "500m"}
        assert world.runtime.alive() == {"uid-web"}
        assert "FailedSync" in world.events.reasons("uid-web")


async def test_a_pod_that_comes_to_ask_for_no_quantity_counts_as_it_did_and_can_be_deleted(
    autojump_clock: trio.abc.Clock, tmp_path: Path
) -> None:
    """Whoever counts what pods ask for could not: an eviction manager ended no pod any more."""
    world = World(admitter=small_node(tmp_path), sources=("api",))
    async with world.running():
        await running_pod(world, asking("web", "1", source="api"), "api")
        broken = asking("web", "1..0", source="api")
        await world.update(broken, source="api")
        await world.update(replace(broken, status=v1.PodStatus(phase="Running")), source="api")
        await trio.sleep(60)
        (active,) = world.room.handler.active_pods()
        assert allocation_of(active) == allocation_of(asking("web", "1"))
        assert "FailedSync" in world.events.reasons("uid-web")
        going = replace(
            broken.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=1
        )
        await world.update(replace(broken, metadata=going), source="api")
        await world.until(lambda: not world.runtime.alive(), 10)
