"""Pods from the sync loop to their admission: refused, waiting for devices or victims, deleted meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.lowlevel
from msgspec.structs import replace

from tests.pods.admit_all import AdmitAll, Few
from tests.pods.build import api_pod, make_pod
from tests.pods.small_node import asking, running_pod, small_node
from tests.pods.world import World
from trio_kubelet.api import v1
from trio_kubelet.pods.admission.admitter import Admit, Decision
from trio_kubelet.pods.admission.allocating import Allocating, NothingToAllocate
from trio_kubelet.pods.admission.fit import NodeFacts
from trio_kubelet.pods.admission.node_admitter import NodeAdmitter
from trio_kubelet.pods.admission.occupancy import Others
from trio_kubelet.pods.admission.sysctls import SysctlAllowlist
from trio_kubelet.pods.resize.allocation import AllocationStore


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
