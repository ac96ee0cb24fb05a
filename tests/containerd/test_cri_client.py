"""The agent's CRI client against real runtimes: without the event call (1.6), with it (1.7), with more
(2.1).
"""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, wait_until
from tests.containerd.test_harness import run_web
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.doors import EVERYTHING_DIRTY
from trio_kubelet.cri.errors import DeadlineExceeded, NotFound, Unavailable, Unimplemented
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.grpc.errors import Code


async def ready(runtime: RuntimeService) -> None:
    """Waits for a runtime that was just started again."""
    with trio.fail_after(60):
        while True:
            try:
                await runtime.version()
                return
            except Unavailable:
                await trio.sleep(0.05)


@pytest.mark.parametrize("direct", [False, True], ids=["grpclib", "direct"])
@pytest.mark.parametrize("new_node", ["1.6", "1.7", "2.1"], indirect=True)
async def test_calls_and_lists(new_node: NewNode, direct: bool) -> None:
    calls: list[tuple[str, Code]] = []

    def note(method: str, seconds: float, code: Code) -> None:
        calls.append((method, code))

    async with new_node() as node:
        endpoint = node.layout.endpoint
        async with open_cri(endpoint, direct=direct, on_call=note) as (runtime, images):
            assert (await runtime.version()).runtime_name == "containerd"
            assert len((await runtime.status(verbose=True)).status.conditions) >= 2
            sandbox_id, container_id = await run_web(node)
            for _ in range(3):
                listed = await runtime.list_containers()
                assert [(c.id, c.pod_sandbox_id, c.state) for c in listed] == [
                    (container_id, sandbox_id, cri.CONTAINER_RUNNING)
                ]
                assert [s.id for s in await runtime.list_pod_sandboxes()] == [sandbox_id]
            assert (await runtime.container_status(container_id)).status.started_at > 0
            assert (await runtime.exec_sync(container_id, ["sh", "-c", "echo hi; exit 3"], 5)) == (
                b"hi\n",
                b"",
                3,
            )
            with pytest.raises(NotFound):
                await runtime.container_status("missing")
            assert (await runtime.container_stats(container_id)).memory.working_set_bytes.value > 0
            assert any(image.pinned or image.repo_tags for image in await images.list_images())
            assert not (await images.image_status(cri.ImageSpec(image="missing"))).HasField("image")
            await runtime.stop_container(container_id, 1)
            await runtime.remove_pod_sandbox(sandbox_id)
            assert await runtime.list_containers() == []
    unimplemented = [method for method, code in calls if code is Code.UNIMPLEMENTED]
    assert len(unimplemented) == len(set(unimplemented)), "a missing method is asked for once"


@pytest.mark.parametrize("new_node", ["1.7", "2.1"], indirect=True)
async def test_events_come_at_once(new_node: NewNode) -> None:
    async with (
        new_node() as node,
        open_cri(node.layout.endpoint) as (runtime, _),
        runtime.container_events() as events,
    ):
        _, container_id = await run_web(node)
        await trio.sleep(0.5)
        begin = trio.current_time()
        await node.kill_container(container_id)
        with trio.fail_after(30):
            while True:
                event = await anext(events)
                assert event is not EVERYTHING_DIRTY
                if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
                    break
        assert trio.current_time() - begin < 3.0 * PATIENCE
        assert event.container_id == container_id
        assert event.containers_statuses[0].exit_code == 137
        assert event.pod_sandbox_status.metadata.uid == "x"


async def test_the_event_stream_ends_with_the_runtime_and_can_be_opened_again(new_node: NewNode) -> None:
    async with new_node() as node, open_cri(node.layout.endpoint) as (runtime, _):
        async with runtime.container_events() as events:
            await node.restart_containerd(signal.SIGKILL)
            with trio.fail_after(30), pytest.raises(Unavailable):
                await anext(events)
        await ready(runtime)
        async with runtime.container_events() as events:
            await run_web(node)
            with trio.fail_after(30):
                assert await anext(events) is not EVERYTHING_DIRTY


@pytest.mark.parametrize("new_node", ["1.6"], indirect=True)
async def test_a_runtime_without_events_says_so(new_node: NewNode) -> None:
    async with (
        new_node() as node,
        open_cri(node.layout.endpoint) as (runtime, _),
        runtime.container_events() as events,
    ):
        with trio.fail_after(60), pytest.raises(Unimplemented):
            await anext(events)


def stopped(pid: int | None) -> bool:
    """Whether no thread of a process runs or can run."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread that has just ended
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states == {"T"}


async def test_a_hung_runtime_meets_the_deadline(new_node: NewNode) -> None:
    async with new_node() as node, open_cri(node.layout.endpoint, request_timeout=5.0) as (runtime, _):
        await runtime.version()
        node.containerd.kill(signal.SIGSTOP)
        try:
            # Each of its threads stops by itself: until the last has, an answer may come.
            await wait_until(lambda: stopped(node.containerd.pid), 20, "all of containerd has stopped")
            with trio.fail_after(60), pytest.raises(DeadlineExceeded):
                await runtime.list_containers_raw()
        finally:
            node.containerd.kill(signal.SIGCONT)
        await runtime.version()
