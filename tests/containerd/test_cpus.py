"""CPUs of their own for containers, on a real containerd."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Manifest, Node, container, pod, wait_until
from trio_kubelet.podresources.proto import api_pb2 as resources

CONFIG = {"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "500m"}}


def pinned(cpus: str) -> Manifest:
    amounts = {"cpu": cpus, "memory": "32Mi"}
    return container(resources={"limits": amounts, "requests": amounts})


async def cpus_of(node: Node, container_id: str) -> str:
    """What the kernel lets the container's processes run on."""
    status = await node.exec(container_id, "cat", "/proc/self/status")
    [line] = [line for line in status.splitlines() if line.startswith("Cpus_allowed_list:")]
    return line.split()[1]


def told_of(path: str) -> tuple[dict[str, list[int]], list[int]]:
    """What the pod resources socket tells: the CPUs of each pod's only container, and those to be had."""
    service = "/v1.PodResourcesLister"
    with grpc.insecure_channel(f"unix:{path}") as channel:
        pods = channel.unary_unary(f"{service}/List")(b"", timeout=10)
        node = channel.unary_unary(f"{service}/GetAllocatableResources")(b"", timeout=10)
    found = resources.ListPodResourcesResponse.FromString(pods).pod_resources
    cpus = resources.AllocatableResourcesResponse.FromString(node).cpu_ids
    return {each.name: list(each.containers[0].cpu_ids) for each in found}, list(cpus)


async def failed(node: Node, name: str) -> dict[str, Any] | None:
    status = await node.pod_status(name)
    return status if status.get("phase") == "Failed" else None


@pytest.mark.skipif(os.cpu_count() != 2, reason="says which of two CPUs a container is on")
async def test_a_container_has_a_cpu_to_itself_and_keeps_it(new_node: NewNode) -> None:
    async with new_node() as node:
        await node.start_agent(config=CONFIG)
        node.write(pod("shares"))
        [shares] = await node.wait_running("shares", "main")
        assert await cpus_of(node, shares.id) == "0-1"
        node.write(pod("alone", pinned("1")))
        [alone] = await node.wait_running("alone", "main")
        assert await cpus_of(node, alone.id) == "1", "CPU 0 is reserved"

        async def has_left() -> bool:
            return await cpus_of(node, shares.id) == "0"

        await wait_until(has_left, what="the other container leaves the CPU")
        state = json.loads((Path(node.layout.agent_root) / "cpu_manager_state").read_text())
        assert (state["policyName"], state["defaultCpuSet"]) == ("static", "0")
        assert [list(each.values()) for each in state["entries"].values()] == [["1"]]

        socket = f"{node.layout.agent_root}/pod-resources/kubelet.sock"
        told = await trio.to_thread.run_sync(told_of, socket)
        assert told == ({f"shares-{node.name}": [], f"alone-{node.name}": [1]}, [1])

        await node.kill_agent()
        await node.start_agent(config=CONFIG)
        node.write(pod("late", pinned("1")))
        await wait_until(lambda: node.pod_status("late"), what="late is known")
        status = await wait_until(lambda: failed(node, "late"), what="late is refused")
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "not enough cpus available to satisfy request: requested=1, available=0" in status["message"]
        assert [each.id for each in await node.running("alone")] == [alone.id]
        assert await cpus_of(node, alone.id) == "1"

        node.remove("alone")
        await node.wait_gone("alone")

        async def is_back() -> bool:
            return await cpus_of(node, shares.id) == "0-1"

        await wait_until(is_back, what="the CPU is shared again")
