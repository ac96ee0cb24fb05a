"""Pods on a simulated runtime: started in order, restarted, repaired, adopted."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.runtime.pods import IMAGE, container, pod, sidecar
from tests.runtime.world import EPOCH_NS, world
from tests.turns import others
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS
from trio_kubelet.common.lanes import CONTAINER_FILES, Lane
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import ImageService
from trio_kubelet.observed.probes import ProbeReadings, ProbeResult
from trio_kubelet.observed.types import ContainerState
from trio_kubelet.podinfo.doors import LogDirectoryError
from trio_kubelet.runtime.doors import ContainerRequest, SyncContext
from trio_kubelet.runtime.image_pulls import ImagePullSettings
from trio_kubelet.runtime.log_links import link_name, make_links
from trio_kubelet.runtime.results import Reason, SyncAction
from trio_kubelet.sim.faults import Kind


def exec_hook(command: str) -> v1.LifecycleHandler:
    return v1.LifecycleHandler(exec=v1.ExecAction(command=["sh", "-c", command]))


async def test_a_pod_starts_with_events_and_links(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), container("b"))
        result = await here.sync(a_pod)
        assert result.ok, str(result)
        assert [r.action for r in result.results] == [
            SyncAction.KILL_POD_SANDBOX,
            SyncAction.CREATE_POD_SANDBOX,
            SyncAction.START_CONTAINER,
            SyncAction.START_CONTAINER,
        ]
        assert here.running() == ["a", "b"]
        assert here.events.reasons() == ["Pulled", "Created", "Started"] * 2
        assert [event.message for event in here.events.all[:3]] == [
            'Container image "localhost/busybox:1" already present on machine and can be accessed by the pod',
            "Container created",
            "Container started",
        ]
        assert here.events.all[0].field_path == "spec.containers{a}"
        assert (here.logs / "default_web_uid-1" / "a").is_dir()
        status = await here.status(a_pod)
        assert status.ips == (here.sandboxes[0].ip,)
        assert {c.pod_sandbox_id for c in status.containers} == {here.sandboxes[0].id}
        assert here.configs.requests[0].pod_ips == status.ips
        assert here.configs.reminded == 0
        assert (await here.sync(a_pod)).results == []
        assert here.configs.reminded == 1


async def test_of_its_own_a_start_goes_to_a_thread_for_the_links_alone(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the configs need done in files they do in their own turn; each turn costs as much as a call."""
    turns: list[object] = []
    run = Lane.run

    async def counted(lane: Lane, function: Callable[..., object], *args: object, **more: Any) -> object:
        turns.append(function)
        return await run(lane, function, *args, **more)

    async with world(tmp_path) as here:
        await here.sync_ok(pod(container("first")))  # records of images are read once
        monkeypatch.setattr(Lane, "run", counted)
        await here.sync_ok(pod(container("a"), container("b"), uid="uid-2", name="second"))
        assert turns == [make_links, make_links]  # for nobody else makes them


async def test_a_start_does_not_wait_for_its_link(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate = Lane.run, trio.Event()

    async def held_up(lane: Lane, function: Callable[..., object], *args: object, **more: Any) -> object:
        if function is make_links:
            await gate.wait()
        return await run(lane, function, *args, **more)

    monkeypatch.setattr(Lane, "run", held_up)
    hook = v1.Lifecycle(post_start=exec_hook("warm up"))
    async with world(tmp_path) as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.runtime.link_logs)
        await wait_all_tasks_blocked()
        await here.sync_ok(pod(container("a"), container("b", lifecycle=hook)))
        assert (here.running(), len(here.exec), here.links.exists()) == (["a", "b"], 1, False)
        gate.set()
        await trio.sleep(1)
        assert len(os.listdir(here.links)) == 2
        nursery.cancel_scope.cancel()


async def test_containers_of_one_image_that_come_together_ask_for_it_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        for name in ("first", "second"):
            await here.sync_ok(pod(container("a"), container("b"), uid=name, name=name))
        assert here.service.calls["ImageStatus"] == 1
        assert len(here.events.of("Pulled")) == 4
        labels = {"pull_policy": "ifnotpresent", "present_locally": "true", "pull_required": "false"}
        assert here.measured("kubelet_image_manager_ensure_image_requests_total", **labels) == 4
        await trio.sleep(1)
        await here.sync_ok(pod(container("a"), uid="third", name="third"))
        assert here.service.calls["ImageStatus"] == 2


async def test_after_a_pull_an_image_is_asked_for_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        pulled = container("b", image_pull_policy="Always")
        await here.sync_ok(pod(container("a"), pulled, container("c"), container("d")))
        assert here.service.calls["ImageStatus"] == 3  # of a, after the pull, of c


async def test_an_image_that_goes_between_two_containers_is_pulled_in_the_next_round(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), container("b"))
        config = here.configs.container_config

        async def image_goes(
            pod: v1.Pod, container: v1.Container, request: ContainerRequest
        ) -> cri.ContainerConfig:
            if container.name == "b":
                here.service.runtime.images.remove(IMAGE)
            return await config(pod, container, request)

        with monkeypatch.context() as patched:
            patched.setattr(here.configs, "container_config", image_goes)
            failed = (await here.sync(a_pod)).results[-1]
        assert (failed.target, failed.reason) == ("b", Reason.CREATE_CONTAINER_ERROR)
        assert (here.running(), here.service.calls.get("PullImage", 0)) == (["a"], 0)
        await here.sync_ok(a_pod)
        assert (here.running(), here.service.calls["PullImage"]) == (["a", "b"], 1)


async def test_a_log_directory_that_cannot_be_made_is_told_in_the_kubelets_words(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(pod: v1.Pod, attempt: int) -> None:
        raise LogDirectoryError("mkdir /logs: not a directory")

    async with world(tmp_path) as here:
        monkeypatch.setattr(here.configs, "sandbox_config", fails)
        result = await here.sync(pod())
        failed = result.results[-1]
        assert (failed.action, failed.reason) == (
            SyncAction.CREATE_POD_SANDBOX,
            Reason.CREATE_POD_SANDBOX_ERROR,
        )
        assert failed.message == (
            'Failed to create log directory for pod "web_default(uid-1)": mkdir /logs: not a directory'
        )
        [event] = here.events.all
        assert event.message == "Failed to create pod sandbox: mkdir /logs: not a directory"


async def test_after_a_reboot_a_container_counts_on_from_its_logs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        log = here.logs / "default_web_uid-1" / "web" / "4.log"
        log.parent.mkdir(parents=True)
        log.touch()
        await here.sync_ok(pod())
        assert here.container("web").config.metadata.attempt == 5
        assert here.container("web").log_path == str(log.parent / "5.log")


def test_the_links_name_is_cut_to_what_a_file_name_may_be() -> None:
    name = link_name("x" * 253, "ns", "c", "0" * 64)
    assert len(name) == 255
    assert name.endswith(".log")
    assert link_name("p", "ns", "c", "id") == "p_ns_c-id.log"


async def test_the_link_names_pod_and_container(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=["sh", "-c", "echo hello; sleep 1000"]))
        await here.sync_ok(a_pod)
        [link] = os.listdir(here.links)
        assert link == f"web_default_web-{here.container('web').id}.log"
        assert os.readlink(here.links / link) == here.container("web").log_path


async def test_init_containers_run_in_order_before_the_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(
            container("web"),
            init=(
                container("one", command=["sleep", "3"]),
                sidecar("side"),
                container("two", command=["sleep", "3"]),
            ),
        )
        await here.sync_ok(a_pod)
        assert here.running() == ["one"]
        await trio.sleep(1)
        assert (await here.sync(a_pod)).results == []
        await trio.sleep(3)
        await here.sync_ok(a_pod)
        assert here.running() == ["side"]
        await here.sync_ok(a_pod)
        assert here.running() == ["side", "two"]
        await trio.sleep(4)
        await here.sync_ok(a_pod)
        assert here.running() == ["side", "web"]


async def test_a_failed_init_container_backs_off_and_holds_back_the_pod(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(init=(container("one", command=["sh", "-c", "exit 3"]),))
        await here.sync_ok(a_pod)
        await trio.sleep(1)
        await here.sync_ok(a_pod)  # the first restart is immediate
        await trio.sleep(1)
        result = await here.sync(a_pod)
        assert [r.reason for r in result.start_results()] == [Reason.CRASH_LOOP_BACK_OFF]
        assert "web" not in {c.config.metadata.name for c in here.containers}
        # Only the newest dead one is kept.
        assert len(here.containers) == 1
        await trio.sleep(12)
        await here.sync_ok(a_pod)
        assert len([c for c in here.containers if c.config.metadata.name == "one"]) == 2


async def test_crash_loop_back_off(tmp_path: Path, autojump_clock: MockClock) -> None:
    """10 s doubling to 5 minutes; a container that ran for long enough starts anew."""
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=["sleep", "1"]))
        await here.sync_ok(a_pod)
        waits: list[int] = []
        for _ in range(8):
            await trio.sleep(2)
            result = await here.sync(a_pod)
            if result.ok:
                waits.append(0)
                continue
            [failed] = result.failures
            finished = here.container("web").finished_ns
            assert failed.retry_at_ns is not None
            waits.append((failed.retry_at_ns - finished) // NANOSECONDS)
            assert result.only_back_offs()
            assert result.retry_at_ns() == failed.retry_at_ns
            await trio.sleep((failed.retry_at_ns - here.clock.now_ns()) / NANOSECONDS)
            await here.sync_ok(a_pod)
        assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
        assert failed.message == ("back-off 5m0s restarting failed container=web pod=web_default(uid-1)")
        event = here.events.of("BackOff")[-1]
        assert event.message == "Back-off restarting failed container web in pod web_default(uid-1)"
        assert (event.type, event.field_path) == ("Warning", "spec.containers{web}")


async def test_restart_counts_go_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=["sh", "-c", "exit 1"]))
        for expected in (0, 1):
            await here.sync_ok(a_pod)
            await trio.sleep(1)
            newest = (await here.status(a_pod)).container_status("web")
            assert newest is not None
            assert newest.restart_count == expected
            assert newest.exit_code == 1


async def test_a_container_runs_on_while_its_neighbour_fails(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("bad", image="localhost/missing:1"), container("good"))
        result = await here.sync(a_pod)
        assert here.running() == ["good"]
        assert [(r.target, r.reason) for r in result.start_results()] == [
            ("bad", Reason.ERR_IMAGE_PULL),
            ("good", None),
        ]
        assert here.events.of("Failed")[-1].message == "Error: ErrImagePull"


async def test_the_sandbox_is_announced_before_images_are_pulled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        pulls: list[int] = []

        async def ready() -> None:
            await trio.lowlevel.checkpoint()
            pulls.append(here.service.calls.get("PullImage", 0))

        await here.sync(pod(container("web", image="localhost/other:1")), on_sandbox_ready=ready)
        assert pulls == [0]
        assert here.service.calls["PullImage"] == 1


async def test_a_dead_sandbox_is_replaced_with_all_in_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(init=(container("one", command=["true"]),))
        await here.until_running(a_pod, "web")
        here.service.runtime.sandbox_dies(here.sandboxes[0], here.service.now_ns())
        await trio.sleep(1)
        result = await here.sync(a_pod)
        assert result.ok, str(result)
        assert here.events.of("SandboxChanged")[0].message == (
            "Pod sandbox changed, it will be killed and re-created."
        )
        await here.until_running(a_pod, "web")
        assert sorted(box.config.metadata.attempt for box in here.sandboxes) == [0, 1]
        # Initialization was done anew, and its earlier container is gone.
        assert len([c for c in here.containers if c.config.metadata.name == "one"]) == 1


async def test_init_containers_run_in_the_next_sandbox_whatever_the_clock_said(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It may be set back between a sandbox and its containers, at a boot, say: those of the sandbox before
    passed for the present one's, so that the pod's init containers were left out.
    """
    async with world(tmp_path) as here:
        a_pod = pod(init=(sidecar("side"), container("one", command=["true"])))
        for attempt in range(3):
            await here.until_running(a_pod, "side", "web")
            for name in ("side", "one", "web"):
                assert here.container(name).config.metadata.attempt == attempt, name
            for each in here.containers:
                each.created_ns, each.listed = each.created_ns - 3600 * NANOSECONDS, None
            status = await here.status(a_pod)
            [ready] = [box for box in here.sandboxes if box.ready]
            assert {c.pod_sandbox_id for c in status.containers if c.state.name == "RUNNING"} == {ready.id}
            here.service.runtime.sandbox_dies(ready, here.service.now_ns())
            await trio.sleep(60)


async def test_init_containers_are_counted_on_in_the_next_sandbox(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Their earlier containers were removed, so all but the first began anew with 0."""
    async with world(tmp_path) as here:
        inits = (container("one", command=["true"]), sidecar("side"), container("two", command=["true"]))
        a_pod = pod(init=inits)
        for attempt in range(3):
            await here.until_running(a_pod, "side", "web")
            for name in ("one", "side", "two", "web"):
                assert here.container(name).config.metadata.attempt == attempt, name
            [ready] = [box for box in here.sandboxes if box.ready]
            here.service.runtime.sandbox_dies(ready, here.service.now_ns())
            await trio.sleep(60)


@pytest.mark.parametrize(("later", "waits"), [(0.3, False), (7, True)])
async def test_a_start_into_a_sandbox_that_is_being_stopped_is_no_crash(
    tmp_path: Path, autojump_clock: MockClock, later: float, waits: bool
) -> None:
    """Its containers end first; only then it is not ready any more."""
    async with world(tmp_path) as here:
        a_pod = pod(container("web"))
        await here.until_running(a_pod, "web")

        def all_end() -> None:
            here.service.runtime.kill(here.container("web").id, here.service.now_ns())

        all_end()
        await here.sync_ok(a_pod)
        all_end()
        await trio.sleep(10.5)
        await here.sync_ok(a_pod)  # started once more where it was; the next start would wait for 20 s
        await trio.sleep(later)
        here.service.runtime.sandbox_dies(here.sandboxes[0], here.service.now_ns())
        result = await here.sync(a_pod)
        assert [each.reason for each in result.failures] == [Reason.CRASH_LOOP_BACK_OFF] * waits
        assert here.running() == ["web"] * (not waits)


async def test_a_finished_pod_is_ended(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=["true"]), policy="Never")
        await here.sync_ok(a_pod)
        await trio.sleep(1)
        await here.sync_ok(a_pod)
        assert [box.ready for box in here.sandboxes] == [False]
        result = await here.sync(a_pod)
        assert result.ok
        assert len(here.sandboxes) == 1


async def test_a_failed_probe_ends_and_restarts_a_container(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        probe = v1.Probe(termination_grace_period_seconds=7)
        a_pod = pod(container("web", liveness_probe=probe, command=["sh", "-c", "trap '' TERM; sleep 1000"]))
        await here.sync_ok(a_pod)
        first = here.container("web").id
        begun = trio.current_time()
        readings = ProbeReadings(liveness={first: ProbeResult.FAILURE})
        result = await here.sync(a_pod, probes=readings)
        assert result.ok, str(result)
        assert trio.current_time() - begun == pytest.approx(7, abs=0.1)
        assert here.events.of("Killing")[0].message == (
            "Container web failed liveness probe, will be restarted"
        )
        assert here.running() == ["web"]
        assert here.container("web").id != first


async def test_post_start_hook(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        hooked = container("web", lifecycle=v1.Lifecycle(post_start=exec_hook("sleep 5")))
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.sync_ok, pod(hooked, container("next")))
            await trio.sleep(3)
            assert here.runtime.starting("uid-1") == here.container("web").id
        assert not here.runtime.starting("uid-1")
        assert here.exec[0][1:] == ("web", ("sh", "-c", "sleep 5"))
        # The next container waits for the hook.
        assert here.container("next").started_ns - EPOCH_NS >= round((begun + 5) * NANOSECONDS)


@pytest.mark.parametrize("lifecycle", [None, v1.Lifecycle(post_start=exec_hook("sleep 5"))])
async def test_a_container_has_not_started_before_that_is_answered(
    tmp_path: Path, autojump_clock: MockClock, lifecycle: v1.Lifecycle | None
) -> None:
    """A runtime that takes its time to answer has started it: it would be told to run, probed, and ended by
    its startup probe, all before its start is over.
    """
    async with world(tmp_path) as here:
        here.fail("StartContainer", Kind.SLOW, seconds=6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.sync_ok, pod(container("web", lifecycle=lifecycle)))
            await trio.sleep(5)
            assert here.container("web").started_ns
            assert here.runtime.starting("uid-1") == here.container("web").id
            assert not here.exec
            nursery.cancel_scope.cancel()
        assert not here.runtime.starting("uid-1")


async def test_a_failed_post_start_hook_kills(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        hooked = container("web", lifecycle=v1.Lifecycle(post_start=exec_hook("exit 4")))
        [failure] = (await here.sync(pod(hooked))).failures
        assert failure.reason is Reason.POST_START_HOOK_ERROR
        assert failure.message.startswith(
            'Exec lifecycle hook ([sh -c exit 4]) for Container "web" in Pod "web_default(uid-1)" failed'
            " - error: command 'sh -c exit 4' exited with 4: "
        )
        assert here.running() == []
        assert [event.message for event in here.events.of("FailedPostStartHook")] == ["PostStartHook failed"]
        assert [event.message for event in here.events.of("Killing")] == ["FailedPostStartHook"]


async def test_all_containers_restart_when_a_rule_asks_for_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        rule = v1.ContainerRestartRule(
            action="RestartAllContainers",
            exit_codes=v1.ContainerRestartRuleOnExitCodes(operator="In", values=[7]),
        )
        cause = container("a", command=["sh", "-c", "sleep 2; exit 7"], restart_policy="Never")
        cause.restart_policy_rules = [rule]
        a_pod = pod(cause, container("b"), policy="Never")
        await here.sync_ok(a_pod)
        await trio.sleep(3)
        result = await here.sync(a_pod, restart_all_containers=True)
        assert [(r.action, r.target) for r in result.results] == [
            (SyncAction.REMOVE_CONTAINER, "b"),
            (SyncAction.REMOVE_CONTAINER, "a"),
        ]
        assert here.containers == []
        await here.sync_ok(a_pod)
        assert here.running() == ["a", "b"]
        # The count goes on: the logs of the removed ones are still there.
        assert len(here.sandboxes) == 1


async def test_ephemeral_containers_look_into_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        debug = v1.EphemeralContainer(name="debug", image="localhost/busybox:1", target_container_name="web")
        lost = v1.EphemeralContainer(name="lost", image="localhost/busybox:1", target_container_name="nobody")
        result = await here.sync(pod(ephemeral_containers=[debug, lost]))
        assert here.configs.requests[-1].target_container_id == here.container("web").id
        [failure] = result.failures
        assert (failure.reason, failure.message) == (
            Reason.CREATE_CONTAINER_CONFIG_ERROR,
            "unable to find target container nobody",
        )
        assert here.running() == ["web", "debug"]


async def test_image_volumes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        volumes = [
            v1.Volume(
                name="data", image=v1.ImageVolumeSource(reference="localhost/data:1", pull_policy="Always")
            ),
            v1.Volume(name="gone", image=v1.ImageVolumeSource(reference="localhost/missing:1")),
        ]
        good = container("good", volume_mounts=[v1.VolumeMount(name="data", mount_path="/data")])
        bad = container("bad", volume_mounts=[v1.VolumeMount(name="gone", mount_path="/gone")])
        result = await here.sync(pod(bad, good, volumes=volumes))
        assert [(r.target, r.reason) for r in result.start_results()] == [
            ("bad", Reason.ERR_IMAGE_PULL),
            ("good", None),
        ]
        assert here.configs.requests[-1].image_volumes["data"].user_specified_image == "localhost/data:1"


@pytest.mark.parametrize(("by_handler", "handler"), [(False, ""), (True, "runc")])
async def test_images_are_those_of_the_runtime_class_with_the_gate(
    by_handler: bool, handler: str, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[tuple[str, str]] = set()
    image_status = ImageService.image_status

    async def note(self: ImageService, image: cri.ImageSpec) -> cri.ImageStatusResponse:
        asked.add((image.image, image.runtime_handler))
        return await image_status(self, image)

    monkeypatch.setattr(ImageService, "image_status", note)
    async with world(tmp_path, pulls=ImagePullSettings(by_handler=by_handler)) as here:
        source = v1.ImageVolumeSource(reference="localhost/data:1", pull_policy="Always")
        web = container("web", volume_mounts=[v1.VolumeMount(name="data", mount_path="/data")])
        a_pod = pod(web, volumes=[v1.Volume(name="data", image=source)])
        a_pod.spec.runtime_class_name = "runc"
        await here.sync_ok(a_pod)
        assert asked == {("localhost/data:1", handler), (web.image, handler)}
        assert here.configs.requests[-1].image_volumes["data"].runtime_handler == handler


async def test_annotations_in_too_many_image_volumes(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each volume and each mount has all annotations: a manifest of a megabyte became gigabytes."""
    async with world(tmp_path) as here:
        source = v1.ImageVolumeSource(reference="localhost/data:1", pull_policy="IfNotPresent")
        volumes = [v1.Volume(name=f"v{number}", image=source) for number in range(8)]
        mounts = [v1.VolumeMount(name=volume.name, mount_path=f"/{volume.name}") for volume in volumes]
        a_pod = pod(container("web", volume_mounts=mounts), container("other"), volumes=volumes)
        a_pod.metadata.annotations = {"a": "x" * (1 << 20)}
        failed, started = (await here.sync(a_pod)).start_results()
        assert (failed.target, failed.reason, failed.message) == (
            "web",
            Reason.CREATE_CONTAINER_CONFIG_ERROR,
            "the pod's annotations, in 16 image volumes and mounts, have more than 16777216 characters",
        )
        assert (started.target, started.reason) == ("other", None)
        a_pod.metadata.annotations = {"a": "x" * ((1 << 20) - 1)}
        await here.until_running(a_pod, "web", "other")


async def test_containers_of_another_agent_are_adopted(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Labels, annotations and hash are those of a kubelet: nothing is restarted, nothing is made anew."""
    async with world(tmp_path) as here:
        a_pod = pod(container("a"), container("b"), init=(container("i", command=["true"]),))
        await here.until_running(a_pod, "a", "b")
        ids = {c.id for c in here.containers}
        successor = here.another_runtime()
        observed = await successor.get_pod_status("uid-1", "web", "default")
        assert (await successor.sync_pod(a_pod, observed, SyncContext())).results == []
        assert {c.id for c in here.containers} == ids


@pytest.mark.parametrize("path", ["/dev/termination-log", "tmp/./last", "//words"])
async def test_termination_messages_are_part_of_the_status(
    path: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as here:
        command = ["sh", "-c", "sleep 2; exit 1"]
        a_pod = pod(container("web", command=command, termination_message_path=path))
        await here.sync_ok(a_pod)
        (here.messages / "web-0").write_text("out of cheese")
        await trio.sleep(3)
        newest = (await here.status(a_pod)).container_status("web")
        assert newest is not None
        assert (newest.state, newest.message) == (ContainerState.EXITED, "out of cheese")


async def test_a_message_is_read_for_its_container_alone(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither others' messages nor readers of the pod's logs hold it up, nor does it hold up those."""
    owners: list[object] = []
    run = Lane.run

    async def seen(lane: Lane, function: Callable[..., object], *args: object, **more: Any) -> object:
        if lane is CONTAINER_FILES:
            owners.append(more.get("owner"))
        return await run(lane, function, *args, **more)

    async with world(tmp_path) as here:
        a_pod = pod(container("web", command=["sh", "-c", "exit 1"]))
        await here.sync_ok(a_pod)
        await trio.sleep(1)
        monkeypatch.setattr(Lane, "run", seen)
        await here.status(a_pod)
        assert owners == [here.containers[0].id]


async def test_containers_that_cannot_start_are_gone_through_in_turns(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Of one whose image has no valid name it is known at once; of thousands that is no one turn."""
    async with world(tmp_path) as here:
        await here.sync(pod(container("c0", image="A")))
        async with others() as turns:
            result = await here.sync(pod(*(container(f"c{i}", image="A") for i in range(100))))
        assert len([each for each in result.results if each.reason is Reason.INVALID_IMAGE_NAME]) == 100
        assert turns.count >= 100


async def test_images_of_volumes_are_gone_through_in_turns(tmp_path: Path, autojump_clock: MockClock) -> None:
    told: list[int] = []
    names = [f"v{i}" for i in range(100)]
    mounts = [v1.VolumeMount(name=name, mount_path=f"/{name}") for name in names]
    volumes = [
        v1.Volume(name=name, image=v1.ImageVolumeSource(reference="A", pull_policy="Never")) for name in names
    ]

    async with world(tmp_path) as here, trio.open_nursery() as nursery:

        async def watch() -> None:
            while True:
                told.append(len(here.events.all))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(watch)
        await here.sync(pod(container("a", volume_mounts=mounts), volumes=volumes))
        nursery.cancel_scope.cancel()
    assert len(here.events.of("InspectFailed")) == len(here.events.of("Failed")) == 100
    told.append(len(here.events.all))
    assert max(after - before for before, after in pairwise(told)) < 10


async def test_the_end_of_the_log_stands_in_for_a_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as here:
        talker = container(
            "web",
            command=["sh", "-c", "echo one; echo two; exit 1"],
            termination_message_policy="FallbackToLogsOnError",
        )
        await here.sync_ok(pod(talker))
        await trio.sleep(1)
        newest = (await here.status(pod(talker))).container_status("web")
        assert newest is not None
        assert newest.message == "one\ntwo\n"


async def test_a_clock_that_is_set_back_makes_no_second_container(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """kubernetes 45942, 134153: the dead one of before stayed the newest, its successor was not seen."""
    async with world(tmp_path) as here:
        await here.sync_ok(pod())
        await here.cri.stop_container(here.container("web").id, 0)
        here.clock.set_back(3600)
        for _ in range(3):
            await here.sync_ok(pod())
            await trio.sleep(70)
        assert here.running() == ["web"]
        newest = (await here.status(pod())).container_status("web")
        assert newest is not None
        assert newest.state is ContainerState.RUNNING
