"""Pods end: hooks, turns, grace periods, sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.runtime.pods import container, pod, sidecar
from tests.runtime.test_gc import ALL_GONE
from tests.runtime.world import World, world
from tests.shapes import SHAPES
from tests.slowness import within_cpu
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.runtime.doors import GCPolicy
from trio_kubelet.runtime.kill_pod import HOOK_LINGERS, TerminationOrder, grace_period
from trio_kubelet.runtime.plan import KillReason
from trio_kubelet.runtime.results import Reason, SyncAction
from trio_kubelet.sim.faults import Kind

DEAF = ["sh", "-c", "trap '' TERM; sleep 100000"]


def hook(**handler: object) -> v1.Lifecycle:
    return v1.Lifecycle(pre_stop=v1.LifecycleHandler(**handler))  # type: ignore[arg-type]


def exec_hook(command: str) -> v1.Lifecycle:
    return hook(exec=v1.ExecAction(command=["sh", "-c", command]))


async def started(here: World, a_pod: v1.Pod) -> None:
    """Syncs until there is nothing more to do."""
    for _ in range(20):
        if not (await here.sync(a_pod)).results:
            return
        await trio.sleep(1)


async def ended_after(
    here: World, a_pod: v1.Pod | None, observed: v1.Pod, grace: float | None = None
) -> float:
    """Kills the pod; how many seconds that took."""
    begun = trio.current_time()
    result = await here.runtime.kill_pod(a_pod, await here.status(observed), grace)
    assert result.ok, str(result)
    assert here.running() == []
    assert not any(box.ready for box in here.sandboxes)
    return trio.current_time() - begun


def finished(here: World, name: str) -> float:
    return (here.container(name).finished_ns - here.clock.now_ns()) / NANOSECONDS + trio.current_time()


async def test_a_pod_ends_with_its_sandbox(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), container("b"))
        await started(here, a_pod)
        result = await here.runtime.kill_pod(a_pod, await here.status(a_pod))
        assert result.ok
        assert result.results[-1].action is SyncAction.KILL_POD_SANDBOX
        killed = [r.target for r in result.results if r.action is SyncAction.KILL_CONTAINER]
        assert sorted(killed) == ["a", "b"]
        messages = [event.message for event in here.events.of("Killing")]
        assert sorted(messages) == ["Stopping container a", "Stopping container b"]
        again = await here.runtime.kill_pod(a_pod, await here.status(a_pod))
        assert again.ok


@pytest.mark.parametrize(
    ("pod_grace", "override", "expected"),
    [(30, None, 30), (30, 5.0, 5), (0, None, 2), (30, 0.0, 2), (30, 1.0, 2)],
)
async def test_a_deaf_container_is_killed_after_its_grace(
    tmp_path: Path, autojump_clock: MockClock, pod_grace: int, override: float | None, expected: int
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=DEAF), termination_grace_period_seconds=pod_grace)
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod, override) == pytest.approx(expected, abs=0.1)


async def test_containers_end_side_by_side(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("a", command=DEAF), container("b", command=DEAF))
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod, 10) == pytest.approx(10, abs=0.1)


async def test_the_pre_stop_hook_is_part_of_the_grace(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=DEAF, lifecycle=exec_hook("sleep 12")))
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod) == pytest.approx(30, abs=0.1)
        assert here.exec[0][1:] == ("web", ("sh", "-c", "sleep 12"))


async def test_a_hook_that_takes_too_long_leaves_two_seconds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=DEAF, lifecycle=exec_hook("sleep 1000")))
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod, 8) == pytest.approx(10, abs=0.1)


async def test_a_hook_lives_as_long_as_its_container_and_its_end_is_told(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The grace of 8 seconds is over, the hook is left alone until the container is dead."""
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=DEAF, lifecycle=exec_hook("sleep 9")))
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod, 8) == pytest.approx(10, abs=0.1)
        assert here.events.of("FailedPreStopHook") == []  # it came to its own end after 9 seconds
    async with world(tmp_path / "again") as here:
        a_pod = pod(container("web", command=DEAF, lifecycle=exec_hook("sleep 1000")))
        await started(here, a_pod)
        await ended_after(here, a_pod, a_pod, 8)
        assert [event.message for event in here.events.of("FailedPreStopHook")] == ["PreStopHook failed"]


async def test_a_hook_that_outlives_its_container_holds_nothing_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.http.hangs = True
        get = v1.HTTPGetAction(path="/stop", port=8080, scheme="HTTP")
        a_pod = pod(container("web", lifecycle=hook(http_get=get)))
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod, 3) == pytest.approx(3 + HOOK_LINGERS, abs=0.1)


async def test_a_kill_that_is_begun_again_ends_the_hook_and_tells(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", lifecycle=hook(sleep=v1.SleepAction(seconds=20))))
        await started(here, a_pod)
        status = await here.status(a_pod)
        with trio.move_on_after(5):
            await here.runtime.kill_pod(a_pod, status, None)
        assert len(here.events.of("FailedPreStopHook")) == 1
        assert here.metrics.sleep_hooks_cut_short._value.get() == 1
        assert await ended_after(here, a_pod, a_pod, 1) < 3


async def test_a_kill_that_is_begun_again_sleeps_for_what_is_left(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It slept from the beginning, for all of the shorter grace, of which the container then had nothing."""
    async with world(tmp_path) as here:
        a_pod = pod(container("web", lifecycle=hook(sleep=v1.SleepAction(seconds=20))))
        await started(here, a_pod)
        status = await here.status(a_pod)
        with trio.move_on_after(15):
            await here.runtime.kill_pod(a_pod, status, None)
        assert await ended_after(here, a_pod, a_pod, 10) == pytest.approx(5, abs=0.1)


async def test_a_hook_sleeps_no_longer_than_its_container_runs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """kubernetes 134338: the pod stayed until the hook had slept."""
    async with world(tmp_path) as here, trio.open_nursery() as nursery:
        a_pod = pod(container("web", lifecycle=hook(sleep=v1.SleepAction(seconds=25))))
        await started(here, a_pod)
        nursery.start_soon(here.runtime.kill_pod, a_pod, await here.status(a_pod), 30)
        await trio.sleep(2.5)
        await here.cri.stop_container(here.container("web").id, 0)
        await trio.sleep(1)
        assert [each.state for each in here.sandboxes] == [cri.SANDBOX_NOTREADY]


async def test_no_hook_without_grace(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", lifecycle=exec_hook("sleep 5")))
        await started(here, a_pod)
        await ended_after(here, a_pod, a_pod, 0)
        assert here.exec == []


async def test_a_failed_hook_is_an_event_and_the_container_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", lifecycle=exec_hook("exit 1")))
        await started(here, a_pod)
        await ended_after(here, a_pod, a_pod)
        [event] = here.events.of("FailedPreStopHook")
        assert (event.type, event.message, event.field_path) == (
            "Warning",
            "PreStopHook failed",
            "spec.containers{web}",
        )


@pytest.mark.parametrize(
    ("seconds", "override", "ended"),
    [(6, None, 6), (0, None, 0), (6, 4.0, 4), (6, 0.0, 0)],
    ids=["in time", "zero", "cut short", "no grace"],
)
async def test_a_sleep_hook(
    tmp_path: Path, autojump_clock: MockClock, seconds: int, override: float | None, ended: int
) -> None:
    """It is part of the grace; one that is cut short is no failure of the hook."""
    async with world(tmp_path) as here:
        a_pod = pod(container("web", lifecycle=hook(sleep=v1.SleepAction(seconds=seconds))))
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod, override) == pytest.approx(ended, abs=0.1)
        assert here.events.of("FailedPreStopHook") == []


async def test_a_sleep_of_zero_leaves_the_whole_grace(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=DEAF, lifecycle=hook(sleep=v1.SleepAction(seconds=0))))
        await started(here, a_pod)
        assert await ended_after(here, a_pod, a_pod, 10) == pytest.approx(10, abs=0.1)


async def test_an_http_hook_goes_to_the_pods_address(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        get = v1.HTTPGetAction(path="/stop?now=1", port="admin", scheme="HTTP")
        ports = [v1.ContainerPort(name="admin", container_port=8080)]
        a_pod = pod(container("web", ports=ports, lifecycle=hook(http_get=get)))
        await started(here, a_pod)
        address = here.sandboxes[0].ip
        await ended_after(here, a_pod, a_pod)
        [request] = here.http.requests
        assert request.url == f"http://{address}:8080/stop?now=1"
        assert request.headers == (("User-Agent", "kube-lifecycle/1.36"), ("Accept", "*/*"))


async def test_sidecars_end_last_and_in_reverse(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        slow = ["sh", "-c", "trap '' TERM; sleep 100000"]
        a_pod = pod(
            container("a", command=slow, lifecycle=exec_hook("sleep 4")),
            container("b"),
            init=(sidecar("s1"), container("i", command=["true"]), sidecar("s2")),
            termination_grace_period_seconds=10,
        )
        await started(here, a_pod)
        assert sorted(here.running()) == ["a", "b", "s1", "s2"]
        took = await ended_after(here, a_pod, a_pod)
        assert took == pytest.approx(10, abs=0.1)
        assert finished(here, "b") < finished(here, "a") <= finished(here, "s2") <= finished(here, "s1")


async def test_a_deaf_container_does_not_hold_up_sidecars_for_ever(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), init=(sidecar("s", command=DEAF),), termination_grace_period_seconds=5)
        await started(here, a_pod)
        here.fail("StopContainer", Kind.HANG)
        status = await here.status(a_pod)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.runtime.kill_pod, a_pod, status)
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        # One of both stops hangs; the other container has had its turn nevertheless.
        assert len(here.running()) <= 1


async def test_an_orphan_ends_as_its_annotations_say(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(
            container("web", command=DEAF, lifecycle=exec_hook("sleep 3")), termination_grace_period_seconds=9
        )
        await started(here, a_pod)
        assert await ended_after(here, None, a_pod) == pytest.approx(9, abs=0.1)
        assert here.exec[0][1:] == ("web", ("sh", "-c", "sleep 3"))
        assert here.events.of("Killing")[0].field_path == "spec.containers{web}"


async def test_orphans_from_a_list(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await started(here, pod())
        [found] = await here.runtime.get_pods()
        assert (found.uid, found.name, [c.name for c in found.containers]) == ("uid-1", "web", ["web"])
        assert (await here.runtime.kill_pod(None, found, 1)).ok
        assert await here.runtime.get_pods() == []
        assert len(await here.runtime.get_pods(all=True)) == 1


async def test_a_shorter_grace_while_a_pod_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=DEAF, lifecycle=exec_hook("sleep 2")))
        await started(here, a_pod)
        status = await here.status(a_pod)
        begun = trio.current_time()
        with trio.move_on_after(5):
            await here.runtime.kill_pod(a_pod, status, 1000)
        result = await here.runtime.kill_pod(a_pod, status, 3)
        assert result.ok
        assert trio.current_time() - begun == pytest.approx(8, abs=0.1)
        # The hook had run to its end and was not run again.
        assert len(here.exec) == 1


@pytest.mark.parametrize("collected", [False, True])
async def test_which_hooks_have_ended_is_forgotten_with_their_containers(
    tmp_path: Path, autojump_clock: MockClock, collected: bool
) -> None:
    """Of a container that the runtime has lost it is seen by the hook that is run again."""
    async with world(tmp_path) as here:
        others = [container(f"k{number}") for number in range(100)]
        a_pod = pod(container("web", lifecycle=exec_hook("sleep 2")), *others)
        await started(here, a_pod)
        status = await here.status(a_pod)
        here.fail("StopContainer", count=101)
        assert not (await here.runtime.kill_pod(a_pod, status)).ok
        here.service.lose_state()
        if collected:
            await here.runtime.garbage_collect(GCPolicy(), ALL_GONE, all_sources_ready=True)
        assert (await here.runtime.kill_pod(a_pod, status)).ok
        assert bool(here.events.of("FailedPreStopHook")) is collected


async def test_what_cannot_be_stopped_is_reported_and_its_sandbox_still_stopped(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod()
        await started(here, a_pod)
        here.fail("StopContainer", message="shim is gone")
        result = await here.runtime.kill_pod(a_pod, await here.status(a_pod))
        [failure] = result.failures
        assert (failure.reason, failure.target) == (Reason.KILL_CONTAINER_ERROR, "web")
        assert not here.sandboxes[0].ready
        here.fail("StopPodSandbox", message="network is gone")
        result = await here.runtime.kill_pod(a_pod, await here.status(a_pod))
        assert [r.reason for r in result.failures] == [Reason.KILL_POD_SANDBOX_ERROR]


async def test_a_hung_stop_has_an_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(termination_grace_period_seconds=5)
        await started(here, a_pod)
        here.fail("StopContainer", Kind.HANG)
        begun = trio.current_time()
        result = await here.runtime.kill_pod(a_pod, await here.status(a_pod))
        assert [r.reason for r in result.failures] == [Reason.KILL_CONTAINER_ERROR]
        assert trio.current_time() - begun == pytest.approx(125, abs=1)


async def test_a_container_that_is_gone_already_is_fine(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod()
        await started(here, a_pod)
        status = await here.status(a_pod)
        here.service.lose_state()
        assert (await here.runtime.kill_pod(a_pod, status)).ok
        assert (await here.runtime.kill_pod(None, status)).ok


PROBE = v1.Probe(termination_grace_period_seconds=3)


@pytest.mark.parametrize(
    ("reason", "deletion", "expected"),
    [
        (KillReason.NONE, None, 30),
        (KillReason.LIVENESS_PROBE, None, 3),
        (KillReason.STARTUP_PROBE, None, 30),
        (KillReason.LIVENESS_PROBE, 11, 11),
    ],
)
def test_grace_period(reason: KillReason, deletion: int | None, expected: int) -> None:
    a_pod = pod(container("web", liveness_probe=PROBE))
    metadata = msgspec.structs.replace(a_pod.metadata, deletion_grace_period_seconds=deletion)
    assert a_pod.spec.containers is not None
    assert (
        grace_period(msgspec.structs.replace(a_pod, metadata=metadata), a_pod.spec.containers[0], reason)
        == expected
    )


def test_grace_period_of_a_pod_that_names_none() -> None:
    a_pod = pod(termination_grace_period_seconds=None)
    assert a_pod.spec.containers is not None
    assert grace_period(a_pod, a_pod.spec.containers[0], KillReason.NONE) == 2


@given(st.lists(st.booleans(), max_size=5), st.integers(1, 3), st.data())
def test_containers_end_in_order(kinds: list[bool], regular: int, data: st.DataObject) -> None:
    """Every running container gets its turn: a sidecar after the regular ones and the next sidecar."""
    init = tuple(sidecar(f"s{i}") if side else container(f"i{i}") for i, side in enumerate(kinds))
    a_pod = pod(*(container(f"c{i}") for i in range(regular)), init=init)
    names = [c.name for c in (*init, *(a_pod.spec.containers or ()))]
    running = data.draw(st.lists(st.sampled_from(names), unique=True))
    seconds = {name: data.draw(st.integers(0, 3)) for name in running}
    ended = trio.run(order_of_end, a_pod, seconds, clock=MockClock(autojump_threshold=0))
    assert sorted(ended) == sorted(running)
    sidecars = [name for name in names if name.startswith("s") and name in running]
    assert [name for name in ended if name.startswith("s")] == sidecars[::-1]
    if sidecars:
        assert not [name for name in ended[ended.index(sidecars[-1]) :] if name.startswith("c")]


async def order_of_end(a_pod: v1.Pod, seconds: Mapping[str, float]) -> list[str]:
    """Names of running containers as they end, each so long after it was its turn."""
    order, ended = TerminationOrder(a_pod, seconds), list[str]()

    async def end(name: str) -> None:
        assert await order.wait_for_turn(name, 1000) < 1000
        await trio.sleep(seconds[name])
        order.ended(name)
        ended.append(name)

    async with trio.open_nursery() as nursery:
        for name in seconds:
            nursery.start_soon(end, name)
    return ended


async def test_thousands_of_containers_end_without_holding_up_others() -> None:
    """Each sidecar waited for each container: millions of turns."""
    side, regular = (tuple(make(f"{make.__name__}{i}") for i in range(1000)) for make in (sidecar, container))
    for _ in within_cpu(2.0):
        ended = await order_of_end(pod(*regular, init=side), {c.name: 0 for c in (*side, *regular)})
        assert len(ended) == 2000


async def test_containers_of_one_pod_are_told_to_end_in_turns(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A pod may have thousands: one turn for all would be seconds."""
    killing: list[int] = []
    async with world(tmp_path) as here, trio.open_nursery() as nursery:
        a_pod = pod(*(container(f"c{i}") for i in range(100)))
        await started(here, a_pod)

        async def watch() -> None:
            while True:
                killing.append(len(here.events.of("Killing")))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(watch)
        await here.runtime.kill_pod(a_pod, await here.status(a_pod), None)
        nursery.cancel_scope.cancel()
    assert len(here.events.of("Killing")) == 100
    assert max(after - before for before, after in pairwise(killing)) < 10


async def test_whatever_a_hook_raises_the_pod_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:

        async def get(request: object) -> None:
            raise UnicodeError("label too long")

        here.http.get = get  # type: ignore[method-assign]
        lifecycle = hook(http_get=v1.HTTPGetAction(path="/", port=80, host="a..b"))
        a_pod = pod(container("a", lifecycle=lifecycle), container("b"))
        await started(here, a_pod)
        await ended_after(here, a_pod, a_pod)
        assert here.events.of("FailedPreStopHook")


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_ending_a_container_raises_the_others_end(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """It is a kill that failed; its sandbox is stopped nevertheless, and the next attempt ends it."""
    async with world(tmp_path) as here:
        a_pod = pod(container("bad"), container("good"))
        await started(here, a_pod)
        bad, stop = here.container("bad").id, RuntimeService.stop_container

        async def stops(self: RuntimeService, container_id: str, timeout_s: int) -> None:
            if container_id == bad:
                raise SHAPES[shape]()
            await stop(self, container_id, timeout_s)

        with monkeypatch.context() as patch:
            patch.setattr(RuntimeService, "stop_container", stops)
            result = await here.runtime.kill_pod(a_pod, await here.status(a_pod))
        [failure] = result.failures
        assert (failure.reason, failure.target) == (Reason.KILL_CONTAINER_ERROR, "bad")
        assert not any(box.ready for box in here.sandboxes)
        await ended_after(here, a_pod, a_pod)
