"""Housekeeping: what nobody wants any more goes, what cannot is counted, an idle node is left alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from functools import partial

import pytest
import trio

from tests.pods.admit_all import AdmitAll
from tests.pods.build import make_pod
from tests.pods.small_node import running_pod
from tests.pods.world import World
from trio_kubelet.pods.cleaner import STEP_DEADLINE
from trio_kubelet.runtime.doors import GCPolicy


async def test_directories_and_cgroups_of_unknown_pods_go_once_all_sources_have_reported(
    autojump_clock: trio.abc.Clock,
) -> None:
    world = World(sources=("file", "another of manifests", "api"))
    of_api, of_manifest = "d8e2b1c0-5f1e-4a5c-9f3d-2b7c6a1e0f42", "0cc175b9c0f1b6a831c399e269772661"
    for left in (world.directories.there, world.cgroups.there):
        left |= {of_api, of_manifest, "uid-web"}
    world.volumes.up |= {of_api, of_manifest}
    async with world.running():
        await trio.sleep(20)
        assert of_manifest in world.directories.there
        await world.add(make_pod(), source="file")
        await trio.sleep(40)
        assert of_manifest in world.directories.there, "the other source may want it"
        await world.add(source="another of manifests")
        await trio.sleep(5)
        assert world.directories.there == world.cgroups.there == world.volumes.up == {of_api, "uid-web"}
        await world.add(source="api")
        await trio.sleep(5)
        assert world.directories.there == world.cgroups.there == world.volumes.up == {"uid-web"}


async def test_a_pod_that_comes_while_its_cgroup_is_removed_starts_afterwards(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs in a cgroup is ended with it, and that is all that is left of an earlier life of the pod."""
    world, pod, under_way, goes_on = World(), make_pod(), trio.Event(), trio.Event()
    world.cgroups.there.add(pod.metadata.uid)
    remove = world.cgroups.remove

    async def remove_slowly(uid: str) -> None:
        under_way.set()
        await goes_on.wait()
        await remove(uid)

    monkeypatch.setattr(world.cgroups, "remove", remove_slowly)
    async with world.running():
        await world.add()
        await under_way.wait()
        await world.add(pod)
        await trio.sleep(5)
        assert not world.runtime.alive()
        goes_on.set()
        await world.until(lambda: world.runtime.alive() == {pod.metadata.uid})
        assert world.cgroups.there == {pod.metadata.uid}


async def test_what_cannot_be_removed_has_no_garbage_collected(autojump_clock: trio.abc.Clock) -> None:
    """Each time all containers of the node are listed; once in a minute that is done anyway."""
    world, pod = World(), make_pod()
    uid = pod.metadata.uid
    async with world.running():
        await running_pod(world, pod)
        world.volumes.busy.add("stuck")
        world.directories.there.add("stuck")
        began = len(world.runtime.calls)
        for _ in range(50):
            world.room.loop.keep_house_now()
            await trio.sleep(1)
        assert world.runtime.calls[began:].count("gc") <= 1
        await world.remove(pod)
        await world.until(lambda: uid not in world.runtime.pods, 5)


async def test_directories_that_do_not_go_are_counted(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("file",))

    def counted() -> tuple[float | None, ...]:
        name = "kubelet_orphan_pod_cleaned_volumes"
        return tuple(world.registry.get_sample_value(name + end) for end in ("", "_errors"))

    world.directories.there |= {"gone", "stuck"}
    world.volumes.busy.add("stuck")
    async with world.running():
        assert counted() == (0, 0)
        await world.add()
        await world.until(lambda: counted() == (2, 0))
        await world.until(lambda: counted() == (1, 1))
        assert world.directories.there == {"stuck"}
        world.volumes.busy.clear()
        await world.until(lambda: counted() == (0, 0), seconds=120)
        assert not world.directories.there


async def test_a_failed_collection_of_garbage_is_an_event_of_the_node(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with world.running():
        world.runtime.gc_errors = ["no answer", "disk is broken"]
        await trio.sleep(61)
        first, second = (f"rpc error: code = Unavailable desc = {text}" for text in world.runtime.gc_errors)
        assert world.events.all == [("", "ContainerGCFailed", f"[{first}, {second}]")]
        world.runtime.gc_errors = ["no answer"]
        await trio.sleep(61)
        assert world.events.all[1:] == [("", "ContainerGCFailed", first)]
        world.runtime.gc_errors = []
        await trio.sleep(120)
        assert len(world.events.all) == 2


async def test_the_classes_of_service_follow_the_active_pods(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with world.running():
        await world.add(make_pod("a"), make_pod("b"))
        await trio.sleep(61)
        assert world.cgroups.classes == [{"a", "b"}]
        world.cgroups.classes_fail = True
        await world.remove(make_pod("a"))
        await trio.sleep(120)
        assert world.cgroups.classes == [{"a", "b"}, {"b"}, {"b"}]


async def test_it_is_told_whether_all_pods_are_known(autojump_clock: trio.abc.Clock) -> None:
    world = World(sources=("file", "api"))
    async with world.running():
        await world.add(make_pod("a"))
        await trio.sleep(61)
        assert world.cgroups.classes == [{"a"}]
        assert not world.cgroups.all_known
        await world.add(source="api")
        await trio.sleep(60)
        assert world.cgroups.all_known


async def test_an_idle_node_is_left_alone(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    async with world.running():
        await world.add(*(make_pod(f"p{n}") for n in range(20)))
        await trio.sleep(5)
        world.runtime.calls.clear()
        syncs = world.runtime.syncs
        await trio.sleep(50)
        assert "get_pods" not in world.runtime.calls
        assert world.runtime.syncs == syncs


async def test_hung_unmounts_hold_up_nobody_else_and_are_told(
    autojump_clock: trio.abc.Clock, capfd: pytest.CaptureFixture[str]
) -> None:
    world = World()
    hung = {f"hung{number}" for number in range(20)}
    tear_down = world.volumes.tear_down

    async def hang(uid: str) -> None:
        if uid in hung:
            await trio.sleep_forever()
        await tear_down(uid)

    world.volumes.tear_down = hang  # type: ignore[method-assign]
    world.directories.there |= hung
    async with world.running():
        await world.add()
        await trio.sleep(40)  # all of them are being removed
        world.directories.there.add("good")
        world.room.loop.keep_house_now()
        await world.until(lambda: "good" not in world.directories.there, seconds=10)
        await trio.sleep(STEP_DEADLINE)
        assert capfd.readouterr().err.count("Cleaning up after a pod hangs") >= len(hung)


async def test_what_cannot_be_removed_is_told_once_and_again_when_the_cause_is_another(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """kubernetes 60987: a line with every housekeeping for each directory filled the log."""
    world, code = World(), errno.EBUSY
    remove = world.directories.remove

    async def refused(uid: str) -> None:
        if code:
            raise OSError(code, os.strerror(code), f"/pods/{uid}")
        await remove(uid)

    def told() -> int:
        return capfd.readouterr().err.count("Failed to clean up after a pod")

    monkeypatch.setattr(world.directories, "remove", refused)
    world.directories.there |= {"left0", "left1"}
    async with world.running():
        await world.add()
        await trio.sleep(600)
        assert told() == 2
        code = errno.EROFS
        await trio.sleep(600)
        assert told() == 2
        code = 0
        await world.until(lambda: not world.directories.there, seconds=60)
        code = errno.EROFS
        world.directories.there.add("left0")
        await trio.sleep(600)
        assert told() == 1


async def test_a_look_at_the_node_that_fails_is_told_once(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    world, code = World(), errno.EIO
    find = world.directories.pods

    async def fails() -> Collection[str]:
        if code:
            raise OSError(code, os.strerror(code), "/pods")
        return await find()

    def told() -> int:
        return capfd.readouterr().err.count("Failed cleaning pods")

    monkeypatch.setattr(world.directories, "pods", fails)
    async with world.running():
        await world.add()
        for code in (errno.EIO, errno.EACCES, 0, errno.EACCES):
            await trio.sleep(100)
            assert told() == (1 if code else 0)
            world.room.loop.keep_house_now()


async def test_a_defect_met_while_cleaning_up_stays_with_its_pod(autojump_clock: trio.abc.Clock) -> None:
    world = World()
    world.directories.there |= {"bad", "good"}
    tear_down = world.volumes.tear_down

    async def choke(uid: str) -> None:
        if uid == "bad":
            raise UnicodeError("label too long")
        await tear_down(uid)

    world.volumes.tear_down = choke  # type: ignore[method-assign]
    async with world.running():
        await world.add()
        await world.until(lambda: world.directories.there == {"bad"})


def _runs(world: World, uid: str) -> bool:
    return uid in world.runtime.alive()


async def test_so_many_dead_containers_stay_as_the_policy_says(autojump_clock: trio.abc.Clock) -> None:
    """--maximum-dead-containers-per-container; one stays in any case."""
    for limit, stay in ((3, 3), (0, 1), (-1, 1)):
        world, pod = World(gc_policy=GCPolicy(max_per_pod_container=limit)), make_pod()
        uid = pod.metadata.uid
        async with world.running():
            await world.add(pod)
            for _ in range(6):
                await world.until(partial(_runs, world, uid))
                world.runtime.die(uid, exit_code=0)
                await trio.sleep(30)
            await trio.sleep(30)
            dead = [c for c in world.runtime.pods[uid].containers if c.exit_code == 0 and c.finished]
            assert len(dead) == stay


async def test_a_pod_that_ended_while_a_source_was_away_is_known_to_be_gone(
    autojump_clock: trio.abc.Clock,
) -> None:
    """By that its sandboxes and logs are removed; those of pods nobody has told of yet stay."""
    world, pod = World(sources=("file", "api")), make_pod()
    workers = world.room.workers
    async with world.running():
        await world.add(pod)
        await world.until(partial(_runs, world, "uid-web"))
        await world.remove(pod)
        await world.until(lambda: workers.get("uid-web") is None)
        assert workers.should_content_be_removed("uid-web")
        assert not workers.should_content_be_removed("uid-of-the-api")


async def test_what_pods_were_granted_that_went_while_no_agent_ran_is_forgotten(
    autojump_clock: trio.abc.Clock,
) -> None:
    kept: list[set[str]] = []

    class Remembers(AdmitAll):
        def keep_only(self, uids: Collection[str]) -> None:
            kept.append(set(uids))

    world = World(sources=("file", "api"), admitter=Remembers())
    async with world.running():
        await world.add(make_pod(), source="file")
        await trio.sleep(40)
        assert kept == []  # whose pods the other source has is not known
        await world.add(source="api")
        await trio.sleep(40)
        assert kept
        assert kept[-1] == {"uid-web"}
