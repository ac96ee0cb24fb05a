"""A pod is resized in place on a real containerd, which cannot be told of pods as a whole."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cgroups.build import cgroupfs_cgroups
from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node
from tests.containerd.test_runtime import DEAF, NodeConfigs, Room
from tests.runtime.pods import container, pod
from tests.runtime.world import Events
from trio_kubelet.api import v1
from trio_kubelet.cgroups.pods import PodCgroups
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.podinfo.context import NodeContext
from trio_kubelet.runtime.pod_runtime import PodRuntime, RuntimeSettings
from trio_kubelet.runtime.results import SyncAction
from trio_kubelet.standalone.images import BUSYBOX_IMAGE

pytestmark = pytest.mark.node

MIB = 1 << 20


def asking(cpu: str, memory: str) -> v1.Pod:
    amounts = {"cpu": cpu, "memory": memory}
    resources = v1.ResourceRequirements(requests={"cpu": cpu}, limits=amounts)
    shell = container("web", image=BUSYBOX_IMAGE, command=["sh", "-c", DEAF], resources=resources)
    return pod(shell, termination_grace_period_seconds=1)


@asynccontextmanager
async def room(node: Node, directory: Path) -> AsyncIterator[tuple[Room, PodCgroups]]:
    logs, links, messages = directory / "pods", directory / "containers", directory / "messages"
    messages.mkdir()
    root = node.layout.cgroup_root
    context = NodeContext(node_name="node", cgroup_root=root)
    cgroups = cgroupfs_cgroups(context)
    await cgroups.start()
    events = Events()
    async with open_cri(node.layout.endpoint) as (runtime, images):
        settings = RuntimeSettings(pod_logs_dir=str(logs), container_logs_dir=str(links))
        yield (
            Room(
                node,
                PodRuntime(
                    runtime=runtime,
                    images=images,
                    configs=NodeConfigs(str(logs), messages, f"{root}/kubepods/burstable/poduid-1"),
                    recorder=events,
                    clock=SystemClock(),
                    pod_limits=cgroups,
                    settings=settings,
                ),
                events,
                links,
                logs,
            ),
            cgroups,
        )


async def test_more_and_less(new_node: NewNode, tmp_path: Path) -> None:
    async with new_node() as node, room(node, tmp_path) as (here, cgroups):
        first = asking("100m", "64Mi")
        await cgroups.ensure(first)
        await here.until(first, "web")
        [web] = (await here.status(first)).running()

        def seen(cgroup: str) -> list[int]:
            names = ("cpu.cfs_quota_us", "memory.limit_in_bytes", "cpu.max", "memory.max")
            files = [directory / name for name in names for directory in node.cgroups(cgroup)]
            return [int(file.read_text().split()[0]) for file in files if file.exists()]

        for cpu, memory, wanted in (
            ("300m", "128Mi", [30_000, 128 * MIB]),
            ("200m", "160Mi", [20_000, 160 * MIB]),
            ("50m", "32Mi", [5000, 32 * MIB]),
        ):
            result = await here.sync(asking(cpu, memory))
            assert [r.action for r in result.results] == [SyncAction.RESIZE_POD_IN_PLACE]
            assert result.ok, str(result)
            assert seen("poduid-1") == seen(web.id) == wanted
        assert [c.id for c in (await here.status(first)).running()] == [web.id]
        [failure] = (await here.sync(asking("50m", "4Ki"))).failures
        assert failure.message.startswith(
            "cannot decrease memory limits: [attempting to set pod memory limit"
        )
        assert seen("poduid-1") == seen(web.id) == [5000, 32 * MIB]
        await here.runtime.kill_pod(first, await here.status(first))


def sized_pod(memory: str) -> v1.Pod:
    """Only the pod as a whole asks for something."""
    amounts = {"memory": memory}
    shell = container("web", image=BUSYBOX_IMAGE, command=["sh", "-c", DEAF])
    resources = v1.ResourceRequirements(requests=amounts, limits=amounts)
    return pod(shell, termination_grace_period_seconds=1, resources=resources)


async def test_a_pods_own_limit_below_what_is_in_use_and_back(new_node: NewNode, tmp_path: Path) -> None:
    """Also by an agent that starts while the resize fails."""
    async with new_node() as node, room(node, tmp_path) as (here, cgroups):
        first = sized_pod("64Mi")
        await cgroups.ensure(first)
        await here.until(first, "web")
        [web] = (await here.status(first)).running()

        def limits(cgroup: str) -> list[int]:
            names = ("memory.limit_in_bytes", "memory.max")
            files = [directory / name for name in names for directory in node.cgroups(cgroup)]
            return [int(file.read_text()) for file in files if file.exists()]

        assert limits("poduid-1") == [64 * MIB]
        assert (await here.sync(sized_pod("48Mi"))).ok
        assert limits("poduid-1") == limits(web.id) == [48 * MIB]
        [failure] = (await here.sync(sized_pod("10Ki"))).failures
        assert re.search(r"memory limit \(10240\) below current usage", failure.message), failure.message
        assert limits("poduid-1") == limits(web.id) == [48 * MIB]
        successor = cgroupfs_cgroups(NodeContext(node_name="node", cgroup_root=node.layout.cgroup_root))
        await successor.start()
        assert await successor.ensure(sized_pod("48Mi"), running=["web"])
        await successor.update_classes([sized_pod("10Ki")])
        assert limits("poduid-1") == [48 * MIB]
        assert (await here.sync(sized_pod("64Mi"))).ok
        assert limits("poduid-1") == limits(web.id) == [64 * MIB]
        assert (await here.sync(sized_pod("64Mi"))).results == []
        assert [c.id for c in (await here.status(first)).running()] == [web.id]
        await here.runtime.kill_pod(first, await here.status(first))
