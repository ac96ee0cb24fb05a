"""The runtime room against a real containerd: what it starts, ends, rotates and removes is looked
at from outside.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, RUNNING, Node, wait_until
from tests.runtime.pods import container, pod, sidecar
from tests.runtime.world import Configs, Events
from trio_kubelet.api import v1
from trio_kubelet.common.clock import NANOSECONDS, SystemClock
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.observed.types import ContainerState
from trio_kubelet.runtime.doors import GCPolicy, SyncContext
from trio_kubelet.runtime.log_rotation import RotationSettings
from trio_kubelet.runtime.pod_runtime import PodRuntime, RuntimeSettings
from trio_kubelet.runtime.results import PodSyncResult, Reason
from trio_kubelet.standalone.images import BUSYBOX_IMAGE

TALK = "trap 'exit 0' TERM; while :; do echo 0123456789012345678901234567890123456789; sleep 0.1; done"
DEAF = "trap '' TERM; touch /deaf; while :; do sleep 1; done"


class NodeConfigs(Configs):
    """As in the simulation, under the node's own cgroup."""

    def __init__(self, logs: str, messages: Path, cgroup_root: str) -> None:
        super().__init__(logs, messages)
        self._cgroup_root = cgroup_root

    async def sandbox_config(self, pod: v1.Pod, attempt: int) -> cri.PodSandboxConfig:
        config = await super().sandbox_config(pod, attempt)
        config.linux.cgroup_parent = self._cgroup_root
        return config


class Room:
    """A pod runtime on a real node."""

    def __init__(self, node: Node, runtime: PodRuntime, events: Events, links: Path, logs: Path) -> None:
        self.node = node
        self.runtime = runtime
        self.events = events
        self.links = links
        self.logs = logs

    async def status(self, a_pod: v1.Pod) -> Any:
        meta = a_pod.metadata
        return await self.runtime.get_pod_status(meta.uid, meta.name, meta.namespace)

    async def sync(self, a_pod: v1.Pod) -> PodSyncResult:
        return await self.runtime.sync_pod(a_pod, await self.status(a_pod), SyncContext())

    async def until(self, a_pod: v1.Pod, *names: str) -> None:
        """Syncs until exactly these containers run."""
        with trio.fail_after(120):
            while True:
                result = await self.sync(a_pod)
                assert result.ok or result.only_back_offs(), str(result)
                running = [c.metadata.name for c in await self.node.containers(state=RUNNING)]
                if sorted(running) == sorted(names):
                    return
                await trio.sleep(0.2)


@asynccontextmanager
async def room(node: Node, directory: Path) -> AsyncIterator[Room]:
    logs, links, messages = directory / "pods", directory / "containers", directory / "messages"
    messages.mkdir()
    events = Events()
    async with open_cri(node.layout.endpoint) as (runtime, images):
        settings = RuntimeSettings(
            pod_logs_dir=str(logs),
            container_logs_dir=str(links),
            rotation=RotationSettings(max_size=500, max_files=3, interval=0.3),
        )
        yield Room(
            node,
            PodRuntime(
                runtime=runtime,
                images=images,
                configs=NodeConfigs(str(logs), messages, node.layout.cgroup_root),
                recorder=events,
                clock=SystemClock(),
                settings=settings,
            ),
            events,
            links,
            logs,
        )


def shell(name: str, script: str, **fields: Any) -> v1.Container:
    return container(name, image=BUSYBOX_IMAGE, command=["sh", "-c", script], **fields)


class AllGone:
    """Every pod is gone."""

    def is_termination_requested(self, uid: str) -> bool:
        return True

    def should_content_be_removed(self, uid: str) -> bool:
        return True

    def should_runtime_be_removed(self, uid: str) -> bool:
        return True


async def test_a_life(new_node: NewNode, tmp_path: Path) -> None:
    """Init container, sidecar, hooks, crash and restart, the end, and nothing left."""
    async with new_node() as node, room(node, tmp_path) as here:
        hook = v1.LifecycleHandler(
            exec=v1.ExecAction(command=["sh", "-c", "echo hooked > /dev/termination-log"])
        )
        a_pod = pod(
            shell("web", TALK, lifecycle=v1.Lifecycle(pre_stop=hook)),
            shell("crash", "echo oops > /dev/termination-log; exit 3"),
            init=(shell("init", "exit 0"), sidecar("side", image=BUSYBOX_IMAGE, command=["sh", "-c", TALK])),
            termination_grace_period_seconds=5,
        )
        await here.until(a_pod, "web", "side")
        observed = await here.status(a_pod)
        crashed = observed.container_status("crash")
        assert (crashed.state, crashed.exit_code, crashed.message) == (ContainerState.EXITED, 3, "oops\n")
        reasons: list[Reason | None] = []
        for _ in range(50):
            reasons = [r.reason for r in (await here.sync(a_pod)).failures]
            if reasons:
                break
            await trio.sleep(0.2)
        assert reasons == [Reason.CRASH_LOOP_BACK_OFF]
        names = sorted(c.metadata.name for c in await node.containers())
        assert names.count("web") == names.count("side") == 1
        assert (
            len([name for name in os.listdir(here.links) if "_crash-" in name]) == names.count("crash") == 2
        )

        begun = trio.current_time()
        result = await here.runtime.kill_pod(a_pod, await here.status(a_pod))
        assert result.ok, str(result)
        assert trio.current_time() - begun < 4 * PATIENCE
        ended = await here.status(a_pod)
        assert ended.container_status("web").message == "hooked\n"
        assert ended.container_status("web").finished_at_ns <= ended.container_status("side").finished_at_ns
        await here.runtime.garbage_collect(GCPolicy(), AllGone(), all_sources_ready=True)
        assert await node.containers() == []
        assert await node.sandboxes() == []
        assert (os.listdir(here.logs), os.listdir(here.links)) == ([], [])


async def test_a_deaf_container_and_a_shorter_grace(new_node: NewNode, tmp_path: Path) -> None:
    async with new_node() as node, room(node, tmp_path) as here:
        a_pod = pod(shell("web", DEAF), termination_grace_period_seconds=60)
        await here.until(a_pod, "web")
        [web] = await node.running(name="web")

        async def is_deaf() -> bool:
            return "deaf" in (await node.exec(web.id, "ls", "/")).split()

        await wait_until(is_deaf, 10, "the shell has come to its trap")
        observed = await here.status(a_pod)
        begun = trio.current_time()
        with trio.move_on_after(1):
            await here.runtime.kill_pod(a_pod, observed)
        result = await here.runtime.kill_pod(a_pod, observed, 2)
        assert result.ok, str(result)
        assert 2.5 < trio.current_time() - begun < 6 * PATIENCE
        newest = (await here.status(a_pod)).container_status("web")
        assert newest.exit_code == 137


async def test_logs_are_rotated_under_a_writer(new_node: NewNode, tmp_path: Path) -> None:
    async with new_node() as node, room(node, tmp_path) as here:
        a_pod = pod(shell("web", TALK), termination_grace_period_seconds=1)
        await here.until(a_pod, "web")
        logs = here.logs / "default_web_uid-1" / "web"
        async with trio.open_nursery() as nursery:
            pods = [await here.status(a_pod)]
            nursery.start_soon(here.runtime.rotate_logs, lambda: pods)

            def rotated_twice() -> bool:
                names = sorted(os.listdir(logs))
                return len(names) == 3 and names[0] == "0.log" and names[1].endswith(".gz")

            await wait_until(rotated_twice, 30, "a log, a compressed one before it, and one between")
            # Between renaming a log and opening it anew there is none: no rotation is cut short.
            pods.clear()
            sizes: list[int] = []
            await wait_until(
                lambda: writes_on(logs / "0.log", sizes), 10, "the container writes on", interval=0.5
            )
            nursery.cancel_scope.cancel()
        assert (await here.runtime.kill_pod(None, await here.status(a_pod))).ok


def writes_on(path: Path, seen: list[int]) -> bool:
    """Whether the file has grown since the last question."""
    size = path.stat().st_size if path.exists() else 0
    seen.append(size)
    return len(seen) > 1 and seen[-1] > seen[-2]


async def test_start_errors_are_told(new_node: NewNode, tmp_path: Path) -> None:
    async with new_node() as node, room(node, tmp_path) as here:
        a_pod = pod(container("web", image=BUSYBOX_IMAGE, command=["/no/such/program"]))
        [failure] = (await here.sync(a_pod)).failures
        assert failure.reason is Reason.RUN_CONTAINER_ERROR
        assert "/no/such/program" in failure.message
        failed = (await here.status(a_pod)).container_status("web")
        assert (failed.state, failed.reason) == (ContainerState.EXITED, "StartError")
        begun = SystemClock().now_ns()
        result = await here.sync(a_pod)
        assert [r.reason for r in result.failures] == [Reason.RUN_CONTAINER_ERROR]
        [backed_off] = (await here.sync(a_pod)).failures
        assert backed_off.reason is Reason.CRASH_LOOP_BACK_OFF
        assert backed_off.retry_at_ns is not None
        assert begun < backed_off.retry_at_ns - 10 * NANOSECONDS < SystemClock().now_ns()
        missing = pod(
            container("web", image="localhost/no-such-image:1", image_pull_policy="Never"), uid="uid-2"
        )
        [failure] = (await here.sync(missing)).failures
        assert failure.reason is Reason.ERR_IMAGE_NEVER_PULL
        for each in (a_pod, missing):
            assert (await here.runtime.kill_pod(each, await here.status(each))).ok
