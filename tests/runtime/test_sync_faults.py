"""A runtime that fails, or only seems to: what is shown, and that nothing ever runs twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.runtime.pods import container, pod, sidecar
from tests.runtime.world import world
from trio_kubelet.common.finishing import Finishing
from trio_kubelet.observed.probes import ProbeReadings, ProbeResult
from trio_kubelet.runtime.results import Reason
from trio_kubelet.sim.faults import Kind


@pytest.mark.parametrize(
    ("method", "reason", "message"),
    [
        ("CreateContainer", Reason.CREATE_CONTAINER_ERROR, "no space left"),
        ("StartContainer", Reason.RUN_CONTAINER_ERROR, "no space left"),
        (
            "RunPodSandbox",
            Reason.CREATE_POD_SANDBOX_ERROR,
            'Failed to create sandbox for pod "web_default(uid-1)":'
            " rpc error: code = Unknown desc = no space left",
        ),
    ],
)
async def test_failures_of_the_runtime_are_shown_and_tried_again(
    tmp_path: Path, autojump_clock: MockClock, method: str, reason: Reason, message: str
) -> None:
    async with world(tmp_path) as here:
        here.fail(method, message="no space left")
        result = await here.sync(pod())
        [failure] = result.failures
        assert (failure.reason, failure.message) == (reason, message)
        assert not result.only_back_offs()
        assert str(result).startswith('failed to "')
        await here.until_running(pod(), "web")


async def test_a_config_that_cannot_be_made(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        here.configs.failure = 'configmap "x" not found'
        [failure] = (await here.sync(pod())).failures
        assert (failure.reason, failure.message) == (
            Reason.CREATE_CONTAINER_CONFIG_ERROR,
            'configmap "x" not found',
        )
        assert here.events.of("Failed")[-1].message == 'Error: configmap "x" not found'


async def test_of_a_pod_that_is_deleted_a_failed_sandbox_is_no_news(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.fail("RunPodSandbox")
        result = await here.sync(pod(), is_termination_requested=lambda: True)
        assert result.ok
        assert here.events.all == []


async def test_a_failing_cni_shows_as_event(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        here.fail("RunPodSandbox", message="plugin type=bridge failed")
        await here.sync(pod())
        [event] = here.events.of("FailedCreatePodSandBox")
        assert event.message == (
            "Failed to create pod sandbox: rpc error: code = Unknown desc = plugin type=bridge failed"
        )


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer"])
@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED"])
async def test_a_call_that_failed_but_was_executed_does_no_harm(
    tmp_path: Path, autojump_clock: MockClock, method: str, code: str
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), container("b"))
        here.fail(method, Kind.AMBIGUOUS, code=code)
        for _ in range(5):
            await here.sync(a_pod)
            await trio.sleep(1)
            assert len(set(here.running())) == len(here.running())
        assert sorted(here.running()) == ["a", "b"]
        assert len([box for box in here.sandboxes if box.ready]) == 1
        assert max(c.starts for c in here.containers) == 1


async def test_a_container_created_late_does_not_block_its_name(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A create call that was given up and carried out later: attempt 0 is then newer than attempt 1."""
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=["sh", "-c", "exit 1"]))
        for _ in range(2):
            await here.sync_ok(a_pod)
            await trio.sleep(1)
        late, early = sorted(here.containers, key=lambda c: c.config.metadata.attempt)
        late.created_ns = early.created_ns + 1
        await trio.sleep(600)
        await here.sync_ok(a_pod)
        assert sorted(c.config.metadata.attempt for c in here.containers) == [0, 1, 2]


async def test_a_container_that_was_never_started_makes_room(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.fail("StartContainer", code="UNAVAILABLE")
        await here.sync(pod())
        never_started = here.container("web").id
        await here.sync_ok(pod())
        assert here.running() == ["web"]
        assert never_started not in here.service.runtime.containers
        assert here.container("web").config.metadata.attempt == 1


async def test_a_container_that_cannot_be_removed_holds_back_its_successor(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        here.fail("StartContainer", code="UNAVAILABLE")
        await here.sync(pod())
        here.fail("RemoveContainer", message="container is in starting state")
        [failure] = (await here.sync(pod())).failures
        assert failure.reason is Reason.CREATE_CONTAINER_ERROR
        assert len(here.containers) == 1
        await here.sync_ok(pod())


async def test_a_container_that_cannot_be_killed_is_not_doubled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod()
        await here.sync_ok(a_pod)
        here.fail("StopContainer", message="shim is gone")
        readings = ProbeReadings(liveness={here.container("web").id: ProbeResult.FAILURE})
        [failure] = (await here.sync(a_pod, probes=readings)).failures
        assert failure.reason is Reason.KILL_CONTAINER_ERROR
        assert len(here.containers) == 1


@pytest.mark.parametrize("steps", range(1, 60, 3))
async def test_a_sync_that_is_cancelled_anywhere_is_made_good_by_the_next(
    tmp_path: Path, autojump_clock: MockClock, steps: int
) -> None:
    """Cancelled after so many scheduler steps: never two live containers of one name, and all run
    in the end.
    """
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), container("b"), init=(sidecar("s"),))
        for _ in range(3):
            async with trio.open_nursery() as nursery:

                async def sync_and_stop(scope: trio.CancelScope) -> None:
                    await here.sync(a_pod)
                    scope.cancel()

                nursery.start_soon(sync_and_stop, nursery.cancel_scope)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await trio.sleep(1)
            assert len(set(here.running())) == len(here.running())
        await here.until_running(a_pod, "s", "a", "b")
        assert len([box for box in here.sandboxes if box.ready]) == 1
        assert max(c.starts for c in here.containers) == 1


@pytest.mark.parametrize(("fault", "ended", "starts"), [(Kind.SLOW, 3.0, 1), (Kind.HANG, 11.0, 0)])
async def test_a_start_under_way_goes_on_when_its_pod_is_to_end(
    tmp_path: Path, autojump_clock: MockClock, fault: Kind, ended: float, starts: int
) -> None:
    """Broken off, a runtime calls the container failed, and so the pod would be. What hangs is given up."""
    async with world(tmp_path) as here:
        here.fail("StartContainer", fault, seconds=3.0)
        began = trio.current_time()
        finishing = Finishing()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(here.sync, pod(), finishing=finishing))
            await trio.sleep(1)
            finishing.hurry()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began == pytest.approx(ended, abs=0.5)
        assert here.container("web").starts == starts
