"""Rounds that take long: what is said of their pods meanwhile, and how they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import groupby

import pytest
import trio

from tests.pods.build import api_pod, make_pod
from tests.pods.fake_runtime import RuntimePod
from tests.pods.observed import SECOND
from tests.pods.small_node import running_pod
from tests.pods.world import NoProbes, World
from trio_kubelet.api import v1
from trio_kubelet.observed.types import ContainerState, PodStatus
from trio_kubelet.runtime.doors import SyncContext
from trio_kubelet.runtime.results import PodSyncResult, Reason, SyncAction


def after_start(
    world: World,
    container: str,
    then: Callable[[RuntimePod], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container of that name has this happen to it before its start is over."""
    start = world.runtime._start

    async def starts(kept: RuntimePod, name: str, status: PodStatus, result: PodSyncResult) -> None:
        await start(kept, name, status, result)
        if name == container:
            await then(kept)

    monkeypatch.setattr(world.runtime, "_start", starts)


async def test_a_pod_is_told_of_while_a_hook_of_it_hangs(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other containers run and die; the one whose hook it is has not started until that has ended."""
    world, pod = World(), make_pod(containers=[v1.Container(name=name) for name in ("one", "hooked")])
    goes_on = trio.Event()

    async def hook(kept: RuntimePod) -> None:
        world.runtime.in_hook[pod.metadata.uid] = kept.containers[-1].id
        await goes_on.wait()
        del world.runtime.in_hook[pod.metadata.uid]

    after_start(world, "hooked", hook, monkeypatch)

    def states() -> list[str]:
        found = []
        for each in world.status(pod).container_statuses or ():
            state = each.state
            reason = state.waiting.reason if state.waiting else state.terminated and "terminated"
            found.append(f"{each.name} {reason or 'running'} {each.ready}")
        return sorted(found)

    async with world.running():
        await world.add(pod)
        await trio.sleep(25)
        assert states() == ["hooked ContainerCreating False", "one running True"]
        first = world.runtime.pods["uid-web"].containers[0]
        first.state, first.exit_code = ContainerState.EXITED, 3
        await trio.sleep(12)
        assert states() == ["hooked ContainerCreating False", "one terminated False"]
        assert world.status(pod).phase == "Pending"
        goes_on.set()
        await world.until(lambda: states() == ["hooked running True", "one running True"])


async def test_a_container_that_is_being_created_is_not_told_of(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that is slow to answer shows it, and that it does not run: its startup probe would fail, and
    it would be ended as soon as it runs.
    """
    world, pod = World(), make_pod(containers=[v1.Container(name=name) for name in ("one", "slow")])
    goes_on = trio.Event()

    async def answer(kept: RuntimePod) -> None:
        kept.containers[-1].state = ContainerState.CREATED
        await goes_on.wait()
        kept.containers[-1].state = ContainerState.RUNNING

    after_start(world, "slow", answer, monkeypatch)

    def ids() -> list[str]:
        return sorted(each.name for each in world.status(pod).container_statuses or () if each.container_id)

    async with world.running():
        await world.add(pod)
        await trio.sleep(25)
        assert ids() == ["one"]
        goes_on.set()
        await world.until(lambda: ids() == ["one", "slow"])


async def test_a_round_that_takes_long_ends_with_its_pod(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told to have failed counts no longer towards what the node has, so its containers must not run
    on until a hook has ended.
    """
    world = World(sources=("api",))
    containers = [v1.Container(name=name) for name in ("one", "hooked")]
    pod, start = api_pod(containers=containers, spec={"active_deadline_seconds": 60}), world.runtime._start

    async def starts(kept: RuntimePod, name: str, status: PodStatus, result: PodSyncResult) -> None:
        if name == "hooked":
            await trio.sleep_forever()
        await start(kept, name, status, result)

    monkeypatch.setattr(world.runtime, "_start", starts)
    async with world.running():
        await world.add(pod)
        await trio.sleep(50)
        assert world.runtime.alive() == {pod.metadata.uid}
        await world.until(lambda: world.is_finished(pod.metadata.uid), 30)
        assert world.status(pod).phase == "Failed"
        assert world.status(pod).reason == "DeadlineExceeded"
        assert not world.runtime.alive()
        assert world.events.reasons(pod.metadata.uid).count("DeadlineExceeded") == 1


async def test_a_pod_that_ends_as_its_time_is_up_has_its_grace(autojump_clock: trio.abc.Clock) -> None:
    """That takes long, too, and is not begun anew for its time being up still."""
    world = World(sources=("api",))
    pod = api_pod(spec={"active_deadline_seconds": 20})
    uid = pod.metadata.uid
    world.runtime.stop_takes[uid] = 60
    async with world.running():
        await world.add(pod)
        await world.until(lambda: world.is_finished(uid), 80)
    assert [(each.what, round(each.at, -1)) for each in world.runtime.log if each.what != "start"] == [
        ("kill-begin", 20),
        ("stop", 50),
    ]


async def test_a_pod_is_not_over_while_a_round_starts_what_it_has_ended_itself(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container with another image, which takes its time, of a pod that does not restart."""
    world, pod = World(), make_pod(restart_policy="Never")
    async with world.running():
        await running_pod(world, pod)

        async def starts_anew(pod: v1.Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
            kept, result = world.runtime.pods[pod.metadata.uid], PodSyncResult()
            kept.containers[-1].state = ContainerState.EXITED
            result.add(SyncAction.KILL_CONTAINER, "c")
            await trio.sleep(60)
            await world.runtime._start(kept, "c", status, result)
            monkeypatch.undo()
            return result

        monkeypatch.setattr(world.runtime, "sync_pod", starts_anew)
        await world.update(pod)
        await trio.sleep(50)
        assert world.status(pod).phase == "Running"
        await trio.sleep(30)
        assert world.status(pod).phase == "Running"
        assert world.runtime.alive() == {pod.metadata.uid}


async def test_why_a_container_waits_is_told_beside_how_the_others_are_by_then(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round began before another one died, of which was told meanwhile: that one does not run again."""
    world, pod = World(), make_pod(containers=[v1.Container(name=name) for name in ("waits", "dies")])
    shown = list[tuple[bool, bool]]()

    def look(uid: str) -> None:
        waits, dies = sorted(world.status(pod).container_statuses or (), key=lambda each: -len(each.name))
        shown.append((waits.state.waiting is not None, dies.state.running is not None))

    async with world.running():
        await running_pod(world, pod)
        waits, dies = world.runtime.pods["uid-web"].containers

        async def holds_back(pod: v1.Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
            await trio.sleep(30)
            result = PodSyncResult()
            reason, retry_at_ns = Reason.CRASH_LOOP_BACK_OFF, world.clock.now_ns() + 60 * SECOND
            result.add(SyncAction.START_CONTAINER, "waits", reason, "back-off", retry_at_ns)
            return result

        monkeypatch.setattr(world.runtime, "sync_pod", holds_back)
        world.room.statuses.changed.listen(look)
        waits.state, waits.exit_code = ContainerState.EXITED, 1
        await trio.sleep(5)
        dies.state, dies.exit_code = ContainerState.EXITED, 1
        await trio.sleep(60)
        assert [step for step, _ in groupby(shown)] == [(False, True), (False, False), (True, False)]


async def test_of_a_pod_that_was_put_back_the_earlier_life_is_not_told(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its round waits until what is left of that is removed, which may take long."""
    world, pod, goes_on = World(), make_pod(), trio.Event()
    prune = world.runtime.prune

    async def prunes(status: PodStatus, container_id: str, remove_all: bool, keep: int = 1) -> None:
        await goes_on.wait()
        await prune(status, container_id, remove_all, keep)

    monkeypatch.setattr(world.runtime, "prune", prunes)
    async with world.running():
        await running_pod(world, pod)
        await world.remove(pod)
        await trio.sleep(40)
        await world.add(pod)
        await trio.sleep(25)
        assert world.room.statuses.get(pod.metadata.uid) is None
        goes_on.set()
        await trio.sleep(20)
        (shown,) = world.status(pod).container_statuses or []
        assert shown.state.running is not None
        assert shown.restart_count == 0


async def test_a_pod_that_cannot_be_told_of_keeps_no_other_from_it(autojump_clock: trio.abc.Clock) -> None:
    told = list[str]()

    class Probes(NoProbes):
        def pod_status_changed(self, pod: v1.Pod, status: v1.PodStatus) -> None:
            told.append(pod.metadata.name)
            if pod.metadata.name == "bad" and told.count("bad") > 1:
                raise RuntimeError("a defect")

    world, pods = World(probes=Probes()), [make_pod(name) for name in ("bad", "good")]
    world.runtime.hang |= {pod.metadata.uid for pod in pods}
    async with world.running():
        await world.add(*pods)
        await world.until(lambda: len(world.runtime.hang) == world.runtime.syncs)
        for pod in pods:
            world.runtime.add(pod.metadata.uid, pod.metadata.name)
        await trio.sleep(25)
        assert (told.count("bad"), told.count("good")) == (3, 3)


async def test_what_a_round_has_begun_and_does_not_end_is_given_up_when_that_is_broken_off(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is when the pod is removed, and when the agent ends."""
    world, gone, stays = World(), make_pod("gone"), make_pod("stays")

    async def creates_slowly(pod: v1.Pod, status: PodStatus, context: SyncContext) -> PodSyncResult:
        await context.finishing.let_finish(partial(trio.sleep, 600), 5)
        return PodSyncResult()

    monkeypatch.setattr(world.runtime, "sync_pod", creates_slowly)
    async with world.running():
        await world.add(gone, stays)
        await trio.sleep(1)
        await world.remove(gone)
        await world.until(lambda: world.room.workers.get(gone.metadata.uid) is None, 20)
        ends = trio.current_time()
    assert trio.current_time() - ends < 20
