"""Pod workers at work: graces, rejections, orphans, the same UID or name coming back, hangs and defects."""

from __future__ import annotations

import itertools

import pytest
import trio
from msgspec.structs import replace

from tests.pods.build import api_pod, make_pod
from tests.pods.fake_runtime import Happened
from tests.pods.world import NoProbes, World
from trio_kubelet.api import v1
from trio_kubelet.observed.types import PodStatus, RunningPod
from trio_kubelet.pods.status.reporter import NodeView
from trio_kubelet.pods.work import SyncReport, WorkerPeriods, due_at, pause_before_next
from trio_kubelet.pods.worker_state import Stage
from trio_kubelet.runtime.doors import SyncContext
from trio_kubelet.runtime.results import PodSyncResult
from trio_kubelet.volumes.errors import VolumeError


async def run_pod(world: World, pod: v1.Pod, source: str = "file") -> None:
    await world.add(pod, source=source)
    await world.until(lambda: pod.metadata.uid in world.runtime.alive())


def kills(world: World, uid: str) -> list[Happened]:
    return [h for h in world.runtime.log if h.uid == uid and h.what == "kill-begin"]


async def test_a_removed_pod_gets_its_own_grace_period(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod(grace=20)
    world.runtime.stop_takes[pod.metadata.uid] = 100
    async with world.running():
        await run_pod(world, pod)
        removed = trio.current_time()
        await world.remove(pod)
        await world.until(lambda: not world.runtime.alive())
    assert [h.grace for h in kills(world, pod.metadata.uid)] == [20]
    assert world.runtime.stopped_at(pod.metadata.uid) - removed == pytest.approx(20, abs=0.1)


async def test_files_of_a_pod_that_ends_for_long_are_kept_up_to_date(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grace of an hour is longer than the life of a token (kubernetes/kubernetes 122102)."""
    world, pod = World(), make_pod(grace=3600)
    world.runtime.stop_takes[pod.metadata.uid] = 1000
    renew = world.volumes.renew

    async def fails_first(pod: v1.Pod) -> None:
        monkeypatch.setattr(world.volumes, "renew", renew)
        raise RuntimeError("a defect")

    async with world.running():
        await run_pod(world, pod)
        await trio.sleep(300)
        assert world.volumes.renewed == []  # its rounds see to it
        monkeypatch.setattr(world.volumes, "renew", fails_first)
        removed = trio.current_time()
        await world.remove(pod)
        await trio.sleep(1300)
    assert world.runtime.stopped_at(pod.metadata.uid) - removed == pytest.approx(1000, abs=0.1)
    assert [round(at - removed) for at in world.volumes.renewed] == list(range(120, 1000, 60))


async def test_how_a_pod_ended_is_read_once(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time costs two lists and a status of each part; what many pods that go at once cost adds up."""
    world, pod = World(), make_pod(grace=20)
    uid, reads = pod.metadata.uid, list[float]()
    look, read = world.pleg.update_one, world.runtime.get_pod_status

    async def update_one(uid: str, *, inspect: bool = False) -> None:
        reads.append(trio.current_time())
        await look(uid, inspect=inspect)

    async def get_pod_status(uid: str, name: str, namespace: str) -> PodStatus:
        reads.append(trio.current_time())
        return await read(uid, name, namespace)

    async with world.running():
        await run_pod(world, pod)
        await trio.sleep(5)
        monkeypatch.setattr(world.pleg, "update_one", update_one)
        monkeypatch.setattr(world.runtime, "get_pod_status", get_pod_status)
        await world.remove(pod)
        await trio.sleep(5)
        assert uid not in world.runtime.pods
    assert [at >= world.runtime.stopped_at(uid) for at in reads] == [True]


async def test_what_runs_though_the_runtime_has_ended_it_is_ended_again(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its volumes stay until then, and so does its name."""
    world, pod, successor = World(), make_pod(), make_pod(uid="new")
    uid = pod.metadata.uid

    async def kill_pod(*_: object) -> PodSyncResult:
        return PodSyncResult()

    async with world.running():
        await run_pod(world, pod)
        with monkeypatch.context() as patch:
            patch.setattr(world.runtime, "kill_pod", kill_pod)
            await world.remove(pod)
            await world.add(successor)
            await trio.sleep(30)
            assert world.runtime.alive() == world.volumes.up == {uid}
        await world.until(lambda: world.runtime.alive() == world.volumes.up == {"new"}, 20)


async def test_a_pod_that_ends_is_probed_for_its_readiness_until_it_has_ended(
    autojump_clock: trio.abc.Clock,
) -> None:
    """Liveness and startup no longer count, they would end its containers before their time."""

    class Probes(NoProbes):
        def stop_liveness_and_startup(self, pod: v1.Pod) -> None:
            told.append(("liveness and startup", bool(world.runtime.alive())))

        def remove_pod(self, uid: str) -> None:
            told.append(("all", bool(world.runtime.alive())))

    told = list[tuple[str, bool]]()
    world, pod = World(probes=Probes()), make_pod(restart_policy="Never")
    world.runtime.stop_takes[pod.metadata.uid] = 5
    async with world.running():
        await run_pod(world, pod)
        world.room.workers.kill(pod)
        await world.until(lambda: world.is_finished(pod.metadata.uid))
    assert told == [("liveness and startup", True), ("all", False)]


async def test_a_pod_of_which_nothing_can_be_said_ends_nevertheless(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def generate_status(*_: object, **__: object) -> v1.PodStatus:
        raise RuntimeError("a defect")

    world, pod = World(), make_pod()
    async with world.running():
        await run_pod(world, pod)
        await trio.sleep(5)
        monkeypatch.setattr("trio_kubelet.pods.status.reporter.generate_status", generate_status)
        world.room.workers.kill(pod)
        await world.until(lambda: world.is_finished(pod.metadata.uid))
        assert not world.runtime.alive()
        assert world.status(pod).phase == "Failed"


@pytest.mark.parametrize("asked", [True, False])
async def test_that_a_sandbox_is_up_is_only_said_where_it_is_asked_for(
    autojump_clock: trio.abc.Clock, asked: bool
) -> None:
    world, pod, said = World(view=NodeView(ready_to_start=asked)), make_pod(), set[str]()

    def hear(uid: str) -> None:
        said.update(each.type for each in world.status(pod).conditions or ())

    world.room.statuses.changed.listen(hear)
    async with world.running():
        await run_pod(world, pod)
        await trio.sleep(5)
    assert ("PodReadyToStartContainers" in said) is asked
    assert "Ready" in said


async def test_a_shorter_grace_interrupts_the_kill_under_way(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(sources=("api",)), api_pod(grace=60)
    uid = pod.metadata.uid
    world.runtime.stop_takes[uid] = 1000
    async with world.running():
        await run_pod(world, pod, "api")
        deleted = replace(
            pod,
            metadata=replace(
                pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=40
            ),
        )
        await world.update(deleted, source="api")
        await trio.sleep(5)
        stopped = world.room.workers.kill(pod, grace=3, evict=True, cause="evicted")
        await stopped.wait()
    assert [h.grace for h in kills(world, uid)] == [40, 3]
    assert world.runtime.stopped_at(uid) == pytest.approx(kills(world, uid)[1].at + 3)


async def test_a_longer_grace_changes_nothing(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod(grace=10)
    world.runtime.stop_takes[pod.metadata.uid] = 1000
    async with world.running():
        await run_pod(world, pod)
        await world.remove(pod)
        await trio.sleep(1)
        await world.room.workers.kill(pod, grace=50).wait()
    assert [h.grace for h in kills(world, pod.metadata.uid)] == [10]


async def test_an_evicted_pod_says_why_it_failed(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(sources=("api",)), api_pod()
    async with world.running():
        await run_pod(world, pod, "api")
        stopped = world.room.workers.kill(
            pod,
            grace=1,
            evict=True,
            patch=lambda status: replace(status, phase="Failed", reason="Evicted", message="no memory"),
            cause="node is short of memory",
        )
        await stopped.wait()
        await trio.sleep(1)
        status = world.status(pod)
        assert (status.phase, status.reason, status.message) == ("Failed", "Evicted", "no memory")
        assert world.room.workers.should_content_be_removed(pod.metadata.uid)
        await trio.sleep(120)
        assert not world.runtime.alive()  # it stays ended, though it is still wanted


async def test_killing_a_pod_that_has_ended_is_done_at_once(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(sources=("api",)), api_pod()
    async with world.running():
        await run_pod(world, pod, "api")
        await world.room.workers.kill(pod, grace=1).wait()
        await trio.sleep(5)
        with trio.fail_after(0.001):
            await world.room.workers.kill(pod, grace=1).wait()


# Put back, edited, edited again


async def test_the_same_manifest_put_back_within_the_grace_period_starts_exactly_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    """kubernetes 104648, 113145: a static pod that came back while it ended was stuck."""
    world, pod = World(), make_pod(grace=30)
    uid = pod.metadata.uid
    world.runtime.stop_takes[uid] = 8
    async with world.running():
        await run_pod(world, pod)
        await world.remove(pod)
        await trio.sleep(2)
        await world.add(pod)
        await trio.sleep(2)
        assert "wanted again, will start anew when this one has ended" in world.stories(pod)
        await trio.sleep(60)
        assert world.runtime.alive() == {uid}
    starts = world.runtime.starts(uid)
    assert len(starts) == 2
    assert 0 < starts[1] - world.runtime.stopped_at(uid) < 1


async def test_a_failed_kill_is_tried_again_though_the_pod_is_wanted_anew(
    autojump_clock: trio.abc.Clock,
) -> None:
    """What is wanted is the next life, which would wait for ever for an end that nobody tries again."""
    world, pod = World(), make_pod(grace=2)
    uid = pod.metadata.uid
    async with world.running():
        await run_pod(world, pod)
        world.runtime.kill_errors[uid] = 3
        await world.remove(pod)
        await world.add(pod)
        await trio.sleep(60)
        assert world.runtime.alive() == {uid}
    assert len(world.runtime.starts(uid)) == 2
    assert world.events.reasons(uid) == ["FailedKillPod"] * 3


async def test_a_pod_that_runs_once_runs_again_when_it_is_put_back(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod(restart_policy="Never")
    uid = pod.metadata.uid
    async with world.running():
        await run_pod(world, pod)
        world.runtime.die(uid, 0)
        await world.until(lambda: world.is_finished(uid), 10)
        world.pleg.paused = True  # relists may be minutes apart
        await world.remove(pod)
        await world.add(pod)
        await world.until(lambda: uid in world.runtime.alive(), 10)
        world.runtime.stop_takes[uid] = 3
        await world.remove(pod)
        await trio.sleep(1)
        await world.add(pod)
        await trio.sleep(20)
        assert world.runtime.alive() == {uid}
        assert [c.restart_count for c in world.status(pod).container_statuses or ()] == [0]
    assert len(world.runtime.starts(uid)) == 3


async def test_a_mount_that_hangs_holds_up_nobody_elses_cleaning(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    original = world.volumes.tear_down

    async def tear_down(uid: str) -> None:
        if uid == "uid-stuck":
            await trio.sleep_forever()
        await original(uid)

    monkeypatch.setattr(world.volumes, "tear_down", tear_down)
    async with world.running():
        await world.add(make_pod("stuck"), make_pod("other"))
        await world.until(lambda: len(world.runtime.alive()) == 2)
        world.directories.there |= {"uid-gone"}
        await world.remove(make_pod("stuck"), make_pod("other"))
        await trio.sleep(10)
        assert world.directories.there == {"uid-stuck"}
        assert set(world.room.workers.known()) == {"uid-stuck"}


async def test_removals_that_hang_hold_up_nobody_who_is_put_back(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new life of a pod begins when the containers of the old one are removed."""
    world, pod, stuck = World(), make_pod(), [make_pod(f"stuck{number}") for number in range(20)]
    prune, hung = world.runtime.prune, {each.metadata.uid for each in stuck}

    async def prunes(status: PodStatus, container_id: str, remove_all: bool, keep: int = 1) -> None:
        if status.uid in hung:
            await trio.sleep_forever()
        await prune(status, container_id, remove_all, keep)

    monkeypatch.setattr(world.runtime, "prune", prunes)
    async with world.running():
        await world.add(pod, *stuck)
        await world.until(lambda: len(world.runtime.alive()) == 21)
        await world.remove(*stuck)
        await trio.sleep(2)
        await world.remove(pod)
        await world.add(pod)
        await world.until(lambda: len(world.runtime.starts(pod.metadata.uid)) == 2, 15)


async def test_put_back_and_taken_away_again_ends(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    world.runtime.stop_takes[pod.metadata.uid] = 5
    async with world.running():
        await run_pod(world, pod)
        await world.remove(pod)
        await world.add(pod)
        await world.remove(pod)
        await trio.sleep(60)
        assert not world.runtime.pods
        assert world.room.workers.known() == {}


async def test_of_three_edits_within_the_grace_period_only_the_last_runs(
    autojump_clock: trio.abc.Clock,
) -> None:
    """kubernetes 97722: old and new versions of a static pod ran side by side."""
    world = World()
    versions = [make_pod(uid=f"v{n}") for n in range(4)]
    world.runtime.stop_takes["v0"] = 10
    async with world.running():
        await run_pod(world, versions[0])
        for old, new in itertools.pairwise(versions):
            await world.remove(old)
            await world.add(new)
            await trio.sleep(2)
        await world.until(lambda: "v3" in world.runtime.alive())
        await trio.sleep(30)
        assert world.runtime.alive() == {"v3"}
        assert set(world.room.workers.known()) == {"v3"}
    assert world.runtime.starts("v1") == world.runtime.starts("v2") == []
    assert world.runtime.starts("v3")[0] > world.runtime.stopped_at("v0")


async def test_api_pods_of_one_name_do_not_wait_for_each_other(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("api",))
    world.runtime.stop_takes["old"] = 20
    async with world.running():
        await run_pod(world, api_pod(uid="old"), "api")
        await world.remove(api_pod(uid="old"), source="api")
        await run_pod(world, api_pod(uid="new"), "api")
        assert world.runtime.alive() == {"old", "new"}


# Orphans


async def test_an_orphan_is_ended_once_its_source_has_reported(autojump_clock: trio.abc.Clock) -> None:
    """kubernetes 112814: with the API server down, removed static pods stayed for ever."""
    world = World(sources=("file", "api"))
    world.runtime.add("static-orphan", "gone", source="file")
    world.runtime.add("api-orphan", "app", source="api")
    async with world.running():
        await trio.sleep(10)
        assert world.runtime.alive() == {"static-orphan", "api-orphan"}
        await world.add(source="file")
        await world.until(lambda: world.runtime.alive() == {"api-orphan"}, 10)
        await trio.sleep(60)
        assert world.runtime.alive() == {"api-orphan"}
        await world.add(source="api")
        await world.until(lambda: not world.runtime.alive(), 10)
    graces = {h.uid: h.grace for h in world.runtime.log if h.what == "kill-begin"}
    assert graces == {"static-orphan": None, "api-orphan": 1}, "its own, and that of one deleted by force"


async def test_an_orphan_that_cannot_be_ended_is_told_of(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("file",))
    world.runtime.add("orphan", "who", source="file")
    world.runtime.kill_errors["orphan"] = 2
    async with world.running():
        await world.add(source="file")
        await world.until(lambda: not world.runtime.alive(), 30)
    assert world.events.reasons("orphan") == ["FailedKillPod"] * 2


async def test_an_orphan_without_annotation_waits_for_all_sources(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("file", "api"))
    world.runtime.add("orphan", "who", source="")
    async with world.running():
        await world.add(source="file")
        await trio.sleep(30)
        assert world.runtime.alive() == {"orphan"}
        await world.add(source="api")
        await world.until(lambda: not world.runtime.alive(), 10)


async def test_after_a_restart_an_edited_static_pod_waits_for_its_predecessors_end(
    autojump_clock: trio.abc.Clock,
) -> None:
    world = World(sources=("file", "api"))
    world.runtime.add("old", "web", source="file")
    world.runtime.stop_takes["old"] = 1
    async with world.running():
        await world.add(make_pod(uid="new"))
        await world.until(lambda: world.runtime.alive() == {"new"}, 20)
    assert world.runtime.starts("new")[0] >= world.runtime.stopped_at("old")


async def test_an_orphan_nobody_may_end_yet_has_its_static_name_as_long_as_it_runs(
    autojump_clock: trio.abc.Clock,
) -> None:
    world = World(sources=("file", "api"))
    world.runtime.add("old", "web", source="")
    async with world.running():
        await world.add(make_pod(uid="new"))
        await trio.sleep(30)
        assert world.runtime.alive() == {"old"}
        del world.runtime.pods["old"]
        await world.until(lambda: world.runtime.alive() == {"new"}, 20)


async def test_a_pod_waits_for_none_of_its_name_that_has_ended(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.runtime.add("old", "web")
    world.runtime.die("old")
    world.runtime.pods["old"].ready = False
    async with world.running():
        await world.add(make_pod(uid="new"))
        await world.until(lambda: world.runtime.alive() == {"new"}, 0.5)


async def test_a_running_pod_of_the_same_uid_is_adopted(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    world.runtime.add(pod.metadata.uid, "web")
    world.cgroups.there.add(pod.metadata.uid)
    async with world.running():
        await world.add(pod)
        await trio.sleep(120)
    assert len(world.runtime.starts(pod.metadata.uid)) == 1
    assert not kills(world, pod.metadata.uid)


async def test_what_runs_outside_of_the_pods_cgroup_is_ended_to_start_inside(
    autojump_clock: trio.abc.Clock,
) -> None:
    world, pod = World(), make_pod()
    uid = pod.metadata.uid
    world.runtime.add(uid, "web")
    async with world.running():
        await world.add(pod)
        await world.until(lambda: len(world.runtime.starts(uid)) == 2, 20)
        assert uid in world.cgroups.there
        await trio.sleep(120)
    assert len(world.runtime.starts(uid)) == 2
    assert len(kills(world, uid)) == 1


async def test_a_pod_deleted_while_the_agent_was_away_is_ended(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("api",))
    pod = api_pod(deleted_at="2026-01-01T00:00:00Z", deletion_grace=4)
    world.runtime.add(pod.metadata.uid, "web", source="api")
    world.runtime.stop_takes[pod.metadata.uid] = 100
    async with world.running():
        await world.add(pod, source="api")
        await world.until(lambda: not world.runtime.alive(), 10)
        await world.until(lambda: world.is_finished(pod.metadata.uid))
        assert world.status(pod).phase == "Failed"
    assert [h.grace for h in kills(world, pod.metadata.uid)] == [4]


async def test_a_pod_that_was_over_before_is_only_cleaned_up(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("api",))
    pod = api_pod(status=v1.PodStatus(phase="Succeeded"))
    async with world.running():
        world.volumes.up.add(pod.metadata.uid)
        await world.add(pod, source="api")
        await world.until(lambda: world.is_finished(pod.metadata.uid), 10)
        assert world.status(pod).phase == "Succeeded"
        assert not world.volumes.up
    assert world.runtime.log == []


# Failures


async def test_a_pod_that_runs_to_its_end_stays_ended(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod(restart_policy="Never")
    async with world.running():
        await run_pod(world, pod)
        world.runtime.die(pod.metadata.uid, 3)
        await world.until(lambda: world.status(pod).phase == "Failed")
        await trio.sleep(300)
        assert world.status(pod).phase == "Failed"
        assert world.is_finished(pod.metadata.uid)
    assert len(world.runtime.starts(pod.metadata.uid)) == 1


async def test_a_failed_sync_comes_again_and_is_told(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    world.runtime.sync_errors[pod.metadata.uid] = 2
    async with world.running():
        await run_pod(world, pod)
        assert 20 <= world.runtime.starts(pod.metadata.uid)[0] <= 31
        assert any("CreatePodSandboxError" in text for text in world.stories(pod))


async def test_volumes_that_cannot_be_made_fail_only_their_pod(autojump_clock: trio.abc.Clock) -> None:
    world, bad, good = World(), make_pod("bad"), make_pod("good")
    world.volumes.failing["uid-bad"] = "volume type flocker is not supported"
    async with world.running():
        await world.add(bad)
        await run_pod(world, good)
        await trio.sleep(5)
        assert world.events.reasons("uid-bad") == ["FailedMount"]
        assert world.status(bad).phase == "Pending"


async def test_a_failed_kill_is_tried_again_soon(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await run_pod(world, pod)
        world.runtime.kill_errors[pod.metadata.uid] = 3
        removed = trio.current_time()
        await world.remove(pod)
        await world.until(lambda: not world.runtime.alive())
        assert trio.current_time() - removed < 1.6 * (1 + 2 + 4) + 1
        assert world.events.reasons(pod.metadata.uid) == ["FailedKillPod"] * 3


async def test_a_failed_kill_is_tried_again_for_a_pod_that_is_wanted_again(
    autojump_clock: trio.abc.Clock,
) -> None:
    world, pod = World(), make_pod()
    async with world.running():
        await run_pod(world, pod)
        world.runtime.kill_errors[pod.metadata.uid] = 3
        await world.remove(pod)
        await world.add(pod)
        await trio.sleep(15)
        assert world.runtime.alive() == {pod.metadata.uid}
    assert len(world.runtime.starts(pod.metadata.uid)) == 2


async def test_a_busy_mount_holds_back_only_the_end_of_its_pod(autojump_clock: trio.abc.Clock) -> None:
    world, pod = World(), make_pod(uid="a")
    world.volumes.busy.add("a")
    async with world.running():
        await run_pod(world, pod)
        await world.remove(pod)
        await world.add(make_pod(uid="b"))
        await trio.sleep(20)
        assert world.runtime.alive() == set()
        report = {r.uid: r for r in world.room.workers.report()}
        assert report["a"].stage == "terminated"
        assert report["a"].last_error == "device is busy"
        assert report["b"].waits_for == "a"
        world.volumes.busy.clear()
        await world.until(lambda: world.runtime.alive() == {"b"}, 20)


async def test_a_hanging_worker_is_seen_and_holds_up_nobody(autojump_clock: trio.abc.Clock) -> None:
    world, stuck = World(periods=WorkerPeriods(stuck=60)), make_pod("stuck")
    world.runtime.hang.add("uid-stuck")
    async with world.running():
        await world.add(stuck)
        await run_pod(world, make_pod("other"))
        await trio.sleep(100)
        first = world.room.workers.report()[0]
        assert (first.pod, first.stage) == ("default/stuck", "syncing")
        assert first.busy is not None
        assert first.busy > 99
        assert world.registry.get_sample_value("trio_kubelet_stuck_pod_workers") == 1
        assert any("has been busy for" in text for text in world.stories(stuck))
        await world.remove(stuck)
        await world.until(lambda: world.room.workers.get("uid-stuck") is None, 10)


async def test_a_pod_whose_node_has_too_many_volumes_is_refused_for_good(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEP-4876: its controller makes another one, which is scheduled elsewhere."""
    world, pod = World(sources=("api",)), api_pod()
    text = "unmounted volumes=[c], unattached volumes=[c], failed to process volumes=[]: timed out"
    tried = 0

    async def refused(pod: v1.Pod) -> None:
        nonlocal tried
        tried += 1
        raise VolumeError(text, rejection="VolumeAttachmentLimitExceeded")

    monkeypatch.setattr(world.volumes, "set_up", refused)
    async with world.running():
        await world.add(pod, source="api")
        await trio.sleep(1)
        status = world.status(pod)
        assert (status.phase, status.reason) == ("Failed", "VolumeAttachmentLimitExceeded")
        assert status.message == f"Pod was rejected: {text}"
        await trio.sleep(300)
        assert tried == 1
        assert not world.runtime.alive()
        assert world.registry.get_sample_value(
            "kubelet_admission_rejections_total", {"reason": "VolumeAttachmentLimitExceeded"}
        )


async def test_a_defect_in_a_sync_stays_inside_its_pod(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, pod = World(), make_pod("bad")
    original = world.volumes.set_up

    async def defective(pod: v1.Pod) -> None:
        if pod.metadata.name == "bad":
            raise KeyError("surprise")
        await original(pod)

    monkeypatch.setattr(world.volumes, "set_up", defective)
    async with world.running():
        await world.add(pod)
        await run_pod(world, make_pod("good"))
        await trio.sleep(1)
        report = {r.uid: r for r in world.room.workers.report()}
        assert report["uid-bad"].last_error == "unexpected KeyError: 'surprise'"
        monkeypatch.setattr(world.volumes, "set_up", original)
        await world.until(lambda: "uid-bad" in world.runtime.alive())


@pytest.mark.parametrize(
    ("stage", "report", "failures", "expected"),
    [
        (Stage.SYNCING, SyncReport(), 0, (60, 90)),
        (Stage.SYNCING, SyncReport(error="x"), 1, (10, 15)),
        (Stage.SYNCING, SyncReport(error="x", transient=True), 1, (1, 1.5)),
        (Stage.SYNCING, SyncReport(retry_at_ns=25_000_000_000), 0, (20, 20)),
        (Stage.SYNCING, SyncReport(retry_at_ns=1), 0, (0, 0)),
        (Stage.SYNCING, SyncReport(retry_at_ns=10**15), 0, (60, 60)),
        (Stage.TERMINATING, SyncReport(error="x"), 1, (1, 1.5)),
        (Stage.TERMINATED, SyncReport(error="x"), 4, (8, 12)),
        (Stage.TERMINATED, SyncReport(error="x"), 40, (10, 15)),
    ],
)
def test_when_a_worker_comes_round_again(
    stage: Stage, report: SyncReport, failures: int, expected: tuple[float, float]
) -> None:
    now, periods = 5_000_000_000, WorkerPeriods()
    low, high = (pause_before_next(stage, report, failures, now, periods, part) for part in (0.0, 1.0))
    assert (low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("report", "pause", "expected"),
    [
        (SyncReport(), 61.2, 72.0),
        (SyncReport(), 0.5, 10.8),  # a short period is meant as it stands
        (SyncReport(error="x"), 11.0, 21.3),
        (SyncReport(retry_at_ns=1), 20.0, 30.3),  # the end of a back-off
    ],
)
def test_rounds_of_idle_pods_begin_with_a_full_second(
    report: SyncReport, pause: float, expected: float
) -> None:
    assert due_at(10.3, pause, report) == pytest.approx(expected)


async def test_what_an_interrupted_sync_started_is_ended_with_grace(autojump_clock: trio.abc.Clock) -> None:
    """Without runtime events the status was one without the container that had just been started."""
    world, pod = World(), make_pod(grace=20)
    uid = pod.metadata.uid
    sync, kill = world.runtime.sync_pod, world.runtime.kill_pod
    seen: list[int] = []

    async def starts_and_goes_on(pod: v1.Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
        await sync(pod, status, context)
        await trio.sleep_forever()
        raise AssertionError

    async def kill_pod(
        pod: v1.Pod | None, running: RunningPod | PodStatus, grace_override: float | None = None
    ) -> PodSyncResult:
        seen.append(len(running.containers))
        return await kill(pod, running, grace_override)

    world.runtime.sync_pod = starts_and_goes_on  # type: ignore[method-assign]
    world.runtime.kill_pod = kill_pod  # type: ignore[method-assign]
    async with world.running():
        world.pleg.paused = True
        await world.add(pod)
        await world.until(lambda: uid in world.runtime.alive())
        await world.remove(pod)
        await world.until(lambda: not world.runtime.alive())
    assert seen == [1]


async def test_a_defect_met_at_a_pod_is_an_event_of_it(autojump_clock: trio.abc.Clock) -> None:
    world, bad, good = World(), make_pod("bad"), make_pod("good")
    set_up = world.volumes.set_up

    async def choke(pod: v1.Pod) -> None:
        if pod.metadata.name == "bad":
            raise RecursionError("too deep")
        await set_up(pod)

    world.volumes.set_up = choke  # type: ignore[method-assign]
    async with world.running():
        await world.add(bad, good)
        await world.until(lambda: world.runtime.alive() == {good.metadata.uid})
        told = [text for uid, reason, text in world.events.all if reason == "FailedSync"]
        assert told == ["error syncing pod: unexpected RecursionError: too deep"]
        await world.remove(bad)
        await world.until(lambda: world.room.workers.get(bad.metadata.uid) is None)


async def test_what_cannot_be_said_of_a_pod_does_not_keep_it_from_ending(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, pod = World(), make_pod(grace=5)
    async with world.running():
        await run_pod(world, pod)

        def choke(*args: object, **kwargs: object) -> v1.PodStatus:
            raise OverflowError("too much")

        monkeypatch.setattr("trio_kubelet.pods.status.reporter.generate_status", choke)
        await world.remove(pod)
        await world.until(lambda: world.room.workers.get(pod.metadata.uid) is None)
    assert not world.runtime.alive()
