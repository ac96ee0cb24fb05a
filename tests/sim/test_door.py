"""The simulated runtime through the CRI door, on virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from trio_kubelet.common.clock import TrioClock
from trio_kubelet.cri.connect import CRIServices
from trio_kubelet.cri.doors import EVERYTHING_DIRTY, ContainerEvent
from trio_kubelet.cri.errors import CRIError, DeadlineExceeded, NotFound, Unavailable, Unimplemented, Unknown
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.sim.door import sim_services
from trio_kubelet.sim.faults import Fault, Faults, Kind, random_script
from trio_kubelet.sim.populate import Population, container_config, sandbox_config
from trio_kubelet.sim.runtime import SimRuntime
from trio_kubelet.sim.service import SimService

EPOCH_NS = 1_700_000_000_000_000_000
POD = sandbox_config(1, "uid-1")


@asynccontextmanager
async def simulated(*faults: Fault, **options: Any) -> AsyncIterator[tuple[CRIServices, SimService]]:
    service = SimService(SimRuntime(), TrioClock(EPOCH_NS), faults=Faults(list(faults)), **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield sim_services(service), service
        nursery.cancel_scope.cancel()


def config(*command: str, env: Mapping[str, str] | None = None) -> cri.ContainerConfig:
    made = container_config("c", POD)
    made.image.image = made.image.user_specified_image = "app"
    made.command.extend(command)
    made.envs.extend(cri.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items())
    return made


async def started(services: CRIServices, made: cri.ContainerConfig) -> str:
    await services.images.pull_image(cri.ImageSpec(image="app"))
    sandboxes = await services.runtime.list_pod_sandboxes()
    sandbox_id = sandboxes[0].id if sandboxes else await services.runtime.run_pod_sandbox(POD)
    container_id = await services.runtime.create_container(sandbox_id, made, POD)
    await services.runtime.start_container(container_id)
    return container_id


async def status(services: CRIServices, container_id: str) -> cri.ContainerStatus:
    return (await services.runtime.container_status(container_id)).status


async def test_a_container_runs_as_long_as_its_command_says(autojump_clock: object) -> None:
    async with simulated() as (services, _):
        container_id = await started(services, config("sh", "-c", "sleep 5; exit 3"))
        assert (await status(services, container_id)).state == cri.CONTAINER_RUNNING
        await trio.sleep(5.1)
        found = await status(services, container_id)
        assert (found.state, found.exit_code, found.reason) == (cri.CONTAINER_EXITED, 3, "Error")
        assert found.finished_at - found.started_at == 5_000_000_000
        assert found.image.image == "docker.io/library/app:latest"
        assert found.image_ref.startswith("docker.io/library/app@sha256:")


@pytest.mark.parametrize(
    ("env", "grace", "seconds", "code"),
    [
        ({}, 30, 0, 143),
        ({"SIM_TERM_SECONDS": "4", "SIM_TERM_EXIT_CODE": "0"}, 30, 4, 0),
        ({"SIM_TERM_SECONDS": "40"}, 30, 30, 137),
        ({"SIM_IGNORE_TERM": "1"}, 10, 10, 137),
        ({"SIM_IGNORE_TERM": "1"}, 0, 0, 137),
    ],
)
async def test_stop_waits_for_the_end(
    autojump_clock: object, env: dict[str, str], grace: int, seconds: float, code: int
) -> None:
    async with simulated() as (services, _):
        container_id = await started(services, config(env=env))
        begin = trio.current_time()
        await services.runtime.stop_container(container_id, grace)
        assert trio.current_time() - begin == pytest.approx(seconds, abs=0.01)
        assert (await status(services, container_id)).exit_code == code


async def test_a_second_stop_with_less_grace_shortens_the_first(autojump_clock: object) -> None:
    async with simulated() as (services, _), trio.open_nursery() as nursery:
        container_id = await started(services, config(env={"SIM_IGNORE_TERM": "1"}))
        nursery.start_soon(services.runtime.stop_container, container_id, 100)
        await trio.sleep(1)
        await services.runtime.stop_container(container_id, 2)
        assert trio.current_time() < 10


async def test_reserved_names_and_what_is_gone(autojump_clock: object) -> None:
    async with simulated() as (services, _):
        runtime = services.runtime
        container_id = await started(services, config())
        with pytest.raises(Unknown, match='failed to reserve container name "c_sim-1_default_uid-1_0"'):
            await started(services, config())
        with pytest.raises(Unknown, match="failed to reserve sandbox name"):
            await runtime.run_pod_sandbox(POD)
        await runtime.remove_container(container_id)
        await runtime.remove_container(container_id)
        await runtime.stop_container(container_id, 1)
        with pytest.raises(NotFound):
            await runtime.container_status(container_id)
        assert await started(services, config()) != container_id


async def test_a_sandbox_takes_everything_with_it(autojump_clock: object) -> None:
    async with simulated() as (services, _):
        container_id = await started(services, config())
        (sandbox,) = await services.runtime.list_pod_sandboxes()
        assert (await services.runtime.pod_sandbox_status(sandbox.id)).status.network.ip.startswith("127.")
        await services.runtime.stop_pod_sandbox(sandbox.id)
        found = (await services.runtime.pod_sandbox_status(sandbox.id)).status
        assert (found.state, found.network.ip) == (cri.SANDBOX_NOTREADY, "")
        assert (await status(services, container_id)).exit_code == 137
        await services.runtime.remove_pod_sandbox(sandbox.id)
        assert await services.runtime.list_pod_sandboxes() == []
        assert await services.runtime.list_containers() == []


async def test_filters_and_raw_lists_agree_with_the_decoded_ones(autojump_clock: object) -> None:
    async with simulated() as (services, service):
        Population(service.runtime).add_pods(30, 4, EPOCH_NS)
        runtime = services.runtime
        everything = await runtime.list_containers()
        assert len(everything) == 120
        raw = b"".join(await runtime.list_containers_raw())
        assert list(cri.ListContainersResponse.FromString(raw).containers) == everything
        pod = everything[0].pod_sandbox_id
        found = await runtime.list_containers(cri.ContainerFilter(pod_sandbox_id=pod))
        assert {c.pod_sandbox_id for c in found} == {pod}
        assert len(found) == 4
        assert await runtime.list_containers(cri.ContainerFilter(pod_sandbox_id="none")) == []
        exited = cri.ContainerStateValue(state=cri.CONTAINER_EXITED)
        await runtime.stop_container(everything[7].id, 0)
        assert [c.id for c in await runtime.list_containers(cri.ContainerFilter(state=exited))] == [
            everything[7].id
        ]
        named = cri.PodSandboxFilter(label_selector={"io.kubernetes.pod.name": "sim-3"})
        assert [s.metadata.name for s in await runtime.list_pod_sandboxes(named)] == ["sim-3"]


async def test_streaming_lists_are_used_and_given_up_where_missing(autojump_clock: object) -> None:
    calls: list[str] = []
    service = SimService(SimRuntime(), TrioClock(EPOCH_NS))
    Population(service.runtime).add_pods(110, 10, EPOCH_NS)
    services = sim_services(
        service, on_call=lambda method, seconds, code: calls.append(f"{method} {code.name}")
    )
    assert [
        len(cri.ListContainersResponse.FromString(m).containers)
        for m in await services.runtime.list_containers_raw()
    ] == [1000, 100]
    service.unimplemented = frozenset({"StreamContainers"})
    for _ in range(2):
        (message,) = await services.runtime.list_containers_raw()
        assert len(cri.ListContainersResponse.FromString(message).containers) == 1100
    assert calls == [
        "StreamContainers OK",
        "StreamContainers UNIMPLEMENTED",
        "ListContainers OK",
        "ListContainers OK",
    ]
    service.generation += 1  # another connection may have another runtime behind it
    service.unimplemented = frozenset()
    await services.runtime.list_containers_raw()
    assert calls[-1] == "StreamContainers OK"


async def collect(
    services: CRIServices, act: Callable[[], Any], count: int, capacity: int = 1000
) -> list[ContainerEvent]:
    seen = []
    async with services.runtime.container_events(capacity) as events:
        await act()
        with trio.move_on_after(1000):
            async for event in events:
                seen.append(event)
                if len(seen) == count:
                    break
    return seen


async def test_events_tell_the_life_of_a_pod(autojump_clock: object) -> None:
    async with simulated() as (services, _):

        async def live() -> None:
            container_id = await started(services, config("sleep", "1"))
            await trio.sleep(2)
            await services.runtime.remove_container(container_id)

        seen = await collect(services, live, 6)
        kinds = [e.container_event_type for e in seen if e is not EVERYTHING_DIRTY]
        assert kinds == [0, 1, 0, 1, 2, 3]
        stopped = seen[4]
        assert stopped is not EVERYTHING_DIRTY
        assert stopped.created_at == stopped.containers_statuses[0].finished_at
        assert stopped.pod_sandbox_status.metadata.uid == "uid-1"


async def test_a_full_event_queue_says_that_everything_is_dirty(autojump_clock: object) -> None:
    async with simulated() as (services, service):

        async def too_much() -> None:
            Population(service.runtime).add_pods(2, 1, EPOCH_NS)

        seen = await collect(services, too_much, 3, capacity=5)
        assert seen[0] is EVERYTHING_DIRTY
        assert [e.container_event_type for e in seen[1:] if e is not EVERYTHING_DIRTY] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Kind.DROP, [1, 0, 1]), (Kind.DOUBLE, [0, 0, 1, 0, 1]), (Kind.REORDER, [1, 0, 0, 1])],
)
async def test_event_faults(autojump_clock: object, kind: Kind, expected: list[int]) -> None:
    fault = Fault(kind, "GetContainerEvents", count=1)
    async with simulated(fault) as (services, service):

        async def two_pods() -> None:
            Population(service.runtime).add_pods(2, 0, EPOCH_NS)

        seen = await collect(services, two_pods, len(expected))
        assert [e.container_event_type for e in seen if e is not EVERYTHING_DIRTY] == expected


async def test_a_shared_event_queue_keeps_old_events_and_splits_new_ones(autojump_clock: object) -> None:
    async with simulated(shared_events=True) as (services, service):
        Population(service.runtime).add_pods(1, 0, EPOCH_NS)
        runtime = services.runtime
        async with runtime.container_events() as first, runtime.container_events() as second:
            assert [(await event_from(first)).container_event_type for _ in range(2)] == [0, 1]
            service.runtime.run_sandbox(sandbox_config(7, "u7"), "", EPOCH_NS)
            kinds = {(await event_from(stream)).container_event_type for stream in (first, second)}
            assert kinds == {0, 1}


async def event_from(stream: AsyncIterator[ContainerEvent]) -> cri.ContainerEventResponse:
    with trio.fail_after(20):
        event = await anext(stream)
    assert event is not EVERYTHING_DIRTY
    return event


async def test_late_events_come_and_ended_streams_end(autojump_clock: object) -> None:
    late = Fault(Kind.LATE, "GetContainerEvents", count=1, seconds=30)
    async with simulated(late) as (services, service):
        begin = trio.current_time()

        async def pods() -> None:
            Population(service.runtime).add_pods(1, 0, EPOCH_NS)

        seen = await collect(services, pods, 2)
        assert [e.container_event_type for e in seen if e is not EVERYTHING_DIRTY] == [1, 0]
        assert trio.current_time() - begin == 30
        async with services.runtime.container_events() as events:
            service.faults.add(Fault(Kind.END, "GetContainerEvents", code="UNAVAILABLE"))
            service.runtime.run_sandbox(sandbox_config(9, "u9"), "", EPOCH_NS)
            with pytest.raises(Unavailable):
                await anext(aiter(events))


async def test_a_runtime_without_events_says_so_at_the_first_step(autojump_clock: object) -> None:
    async with (
        simulated(unimplemented=frozenset({"GetContainerEvents"})) as (services, _),
        services.runtime.container_events() as events,
    ):
        with pytest.raises(Unimplemented):
            await anext(aiter(events))


async def test_call_faults(autojump_clock: object) -> None:
    faults = (
        Fault(Kind.SLOW, "Version", count=1, seconds=7),
        Fault(Kind.FAIL, "Version", count=1, code="RESOURCE_EXHAUSTED", message="no"),
        Fault(Kind.AMBIGUOUS, "RunPodSandbox", count=1, code="DEADLINE_EXCEEDED"),
        Fault(Kind.HANG, "Status", count=1),
        Fault(Kind.HUGE, "ListPodSandbox", size=1 << 20),
    )
    async with simulated(*faults) as (services, _):
        runtime = services.runtime
        await runtime.version()
        assert trio.current_time() == 7
        with pytest.raises(CRIError, match="code = ResourceExhausted desc = no"):
            await runtime.version()
        with pytest.raises(DeadlineExceeded):
            await runtime.run_pod_sandbox(POD)
        assert len(await runtime.list_pod_sandboxes()) == 1
        assert sum(map(len, await runtime.list_pod_sandboxes_raw())) > 1 << 20
        begin = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="context deadline exceeded"):
            await runtime.status()
        assert trio.current_time() - begin == 120
        await runtime.status()


@pytest.mark.parametrize("lose", [False, True])
async def test_restarts_keep_or_lose_the_state(autojump_clock: object, lose: bool) -> None:
    async with simulated() as (services, service), trio.open_nursery() as nursery:
        container_id = await started(services, config(env={"SIM_IGNORE_TERM": "1"}))
        generation = service.generation

        async def interrupted() -> None:
            with pytest.raises(Unavailable):
                await services.runtime.stop_container(container_id, 60)

        nursery.start_soon(interrupted)
        async with services.runtime.container_events() as events:
            await trio.sleep(1)
            nursery.start_soon(service.restart, 5, lose)
            with pytest.raises(Unavailable):
                await anext(aiter(events))
        with pytest.raises(Unavailable):
            await services.runtime.version()
        await trio.sleep(6)
        left = await services.runtime.list_containers()
        assert [c.id for c in left] == ([] if lose else [container_id])
        assert service.generation == generation + 1
        if not lose:  # the signal was sent before the runtime went, and the kill is still to come
            await trio.sleep(60)
            assert (await status(services, container_id)).exit_code == 137


async def test_exec(autojump_clock: object) -> None:
    async with simulated() as (services, _):
        runtime = services.runtime
        container_id = await started(services, config("sleep", "100"))
        result = await runtime.exec_sync(container_id, ["sh", "-c", "echo hello; exit 4"])
        assert result == (b"hello\n", b"", 4)
        with pytest.raises(DeadlineExceeded, match="timeout 2s exceeded"):
            await runtime.exec_sync(container_id, ["sleep", "5"], 2)
        url = await runtime.exec(cri.ExecRequest(container_id=container_id, cmd=["sh"], tty=True))
        assert url.startswith("http://")
        await trio.sleep(100)
        with pytest.raises(Unknown, match="CONTAINER_EXITED"):
            await runtime.exec_sync(container_id, ["true"])


async def test_images(autojump_clock: object) -> None:
    async with simulated() as (services, _):
        images = services.images
        reference = await images.pull_image(cri.ImageSpec(image="nginx:1.27"))
        found = (await images.image_status(cri.ImageSpec(image="docker.io/library/nginx:1.27"))).image
        assert found.id == reference
        assert [i.pinned for i in await images.list_images()] == [True, False]
        with pytest.raises(NotFound, match="failed to resolve reference"):
            await images.pull_image(cri.ImageSpec(image="example.com/missing"))
        with pytest.raises(Unknown, match="authorization failed"):
            await images.pull_image(cri.ImageSpec(image="example.com/denied/x"))
        begin = trio.current_time()
        await images.pull_image(cri.ImageSpec(image="slow-9"))
        assert trio.current_time() - begin == 9
        used = (await images.image_fs_info()).image_filesystems[0].used_bytes.value
        await images.remove_image(cri.ImageSpec(image=reference))
        assert not (await images.image_status(cri.ImageSpec(image="nginx:1.27"))).HasField("image")
        assert (await images.image_fs_info()).image_filesystems[0].used_bytes.value == used - found.size


async def test_stats_grow(autojump_clock: object) -> None:
    async with simulated() as (services, _):
        container_id = await started(services, config())
        await trio.sleep(10)
        before = (await services.runtime.container_stats(container_id)).cpu.usage_core_nano_seconds.value
        await trio.sleep(10)
        (after,) = await services.runtime.list_container_stats()
        assert after.cpu.usage_core_nano_seconds.value == pytest.approx(2 * before, rel=0.01)


async def test_a_failed_start_leaves_its_reason(autojump_clock: object) -> None:
    async with simulated() as (services, _):
        with pytest.raises(Unknown, match="OCI runtime create failed"):
            await started(services, config(env={"SIM_START_ERROR": 'exec: "nope": not found'}))
        (container,) = await services.runtime.list_containers()
        found = await status(services, container.id)
        assert (found.exit_code, found.reason, found.state) == (128, "StartError", cri.CONTAINER_EXITED)


@pytest.mark.parametrize("seed", range(20))
async def test_after_a_bad_day_everything_works_again(autojump_clock: object, seed: int) -> None:
    async with simulated(*random_script(seed, share=0.2)) as (services, service):

        async def worker(number: int) -> None:
            """Starts and removes a pod over and over, as well as the day allows."""
            for attempt in range(8):
                pod = sandbox_config(number, f"u{number}", attempt)
                with contextlib.suppress(CRIError):
                    await services.images.pull_image(cri.ImageSpec(image="app"))
                    sandbox_id = await services.runtime.run_pod_sandbox(pod)
                    container_id = await services.runtime.create_container(
                        sandbox_id, config("sleep", "9"), pod
                    )
                    await services.runtime.start_container(container_id)
                    await services.runtime.stop_container(container_id, 5)
                    await services.runtime.remove_pod_sandbox(sandbox_id)

        async def listener() -> None:
            while True:
                with contextlib.suppress(CRIError):
                    async with services.runtime.container_events() as events:
                        async for _ in events:
                            pass
                await trio.sleep(1)

        async with trio.open_nursery() as workers:
            workers.start_soon(listener)
            async with trio.open_nursery() as pods:
                for number in range(5):
                    pods.start_soon(worker, number)
            workers.cancel_scope.cancel()
        service.faults.clear()
        await trio.sleep(60)
        assert service.is_up
        assert service.events.subscribers == 0
        assert all(c.starts <= 1 for c in service.runtime.containers.values())
        for sandbox in await services.runtime.list_pod_sandboxes():
            await services.runtime.remove_pod_sandbox(sandbox.id)
        assert await services.runtime.list_containers() == []
