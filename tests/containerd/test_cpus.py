"""CPUs and memory of their own for containers, on a real containerd; on cgroup v2 in the node machine."""

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
from tests.containerd.test_sources import kubeconfig
from tests.kube.certs import CA
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.podresources.proto import api_pb2 as resources

pytestmark = pytest.mark.node
NUMA = Path("/sys/devices/system/node/node0")
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
        node.write(pod("shares", container("main"), container("aside")))
        sharing = await node.wait_running("shares", "main", "aside")
        shares = sharing[0]
        assert {await cpus_of(node, each.id) for each in sharing} == {"0-1"}
        node.write(pod("alone", pinned("1")))
        [alone] = await node.wait_running("alone", "main")
        assert await cpus_of(node, alone.id) == "1", "CPU 0 is reserved"
        assert (await spec_of(node, alone.id)).get("quota", -1) == -1, "it may use all of its time"

        async def has_left() -> bool:
            return {await cpus_of(node, each.id) for each in sharing} == {"0"}

        await wait_until(has_left, what="the other containers leave the CPU")
        state = json.loads((Path(node.layout.agent_root) / "cpu_manager_state").read_text())
        assert (state["policyName"], state["defaultCpuSet"]) == ("static", "0")
        [(uid, given)] = state["entries"].items()
        assert given == {"main": "1"}
        assert quotas(node, f"pod{uid}") == {"-1"}

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


@pytest.mark.skipif(os.cpu_count() != 2, reason="says which of two CPUs a container is on")
async def test_who_is_still_ending_leaves_the_cpu_too(new_node: NewNode) -> None:
    slow = container(script="trap 'sleep 20; exit' TERM; while :; do sleep 0.1; done")
    async with new_node() as node:
        await node.start_agent(config=CONFIG)
        node.write(pod("ends", slow, terminationGracePeriodSeconds=60))
        [ends] = await node.wait_running("ends")
        node.remove("ends")
        node.write(pod("alone", pinned("1")))
        [alone] = await node.wait_running("alone")
        assert await cpus_of(node, alone.id) == "1"

        async def has_left() -> bool:
            return await cpus_of(node, ends.id) == "0"

        await wait_until(has_left, 10, "it leaves the CPU")


@pytest.mark.skipif(os.cpu_count() != 2, reason="there has to be one CPU to be had")
async def test_a_new_version_has_the_cpu_of_the_old_one_though_the_api_server_is_away(
    new_node: NewNode, tmp_path: Path
) -> None:
    """It may be what is away: a control plane is edited while no agent runs, or the machine is down."""
    async with new_node() as node:
        await node.start_agent(config=CONFIG)
        node.write(pod("alone", pinned("1")))
        [first] = await node.wait_running("alone")
        await node.kill_agent()
        node.write(pod("alone", pinned("1") | {"env": [{"name": "EDITION", "value": "2"}]}))
        nobody = kubeconfig(tmp_path, "https://127.0.0.1:1", CA(), node.name)
        await node.start_agent(f"--kubeconfig={nobody}", config=CONFIG)
        [second] = await node.wait_running("alone", besides=[first.id])
        assert await cpus_of(node, second.id) == "1"


@pytest.mark.skipif(os.cpu_count() != 2, reason="says which of two CPUs a container is on")
async def test_containers_of_a_pod_share_what_it_has_as_a_whole(new_node: NewNode) -> None:
    config = CONFIG | {
        "featureGates": {"PodLevelResourceManagers": True},
        "topologyManagerPolicy": "best-effort",
        "topologyManagerScope": "pod",
    }
    amounts = {"cpu": "1", "memory": "64Mi"}
    async with new_node() as node:
        await node.start_agent(config=config)
        node.write(pod("other"))
        [other] = await node.wait_running("other", "main")
        resources = {"requests": amounts, "limits": amounts}
        node.write(pod("whole", container("main"), container("aside"), resources=resources))
        ours = await node.wait_running("whole", "main", "aside")
        assert {await cpus_of(node, each.id) for each in ours} == {"1"}

        async def has_left() -> bool:
            return await cpus_of(node, other.id) == "0"

        await wait_until(has_left, what="the other container leaves the CPU")
        state = json.loads((Path(node.layout.agent_root) / "cpu_manager_state").read_text())
        assert [each["cpuSet"] for each in state["podEntries"].values()] == ["1"]
        shared = 'resource_manager_container_assignments{assignment_type="pod_shared",resource_name="cpu"} 2'
        assert shared in await node.metrics()
        await node.kill_agent()
        await node.start_agent(config=config)
        assert {each.id for each in await node.running("whole")} == {each.id for each in ours}
        assert {await cpus_of(node, each.id) for each in ours} == {"1"}


def quotas(node: Node, cgroup: str) -> set[str]:
    """The CPU time a cgroup may use in a period, in µs; -1 for all of it."""
    found = [each / "cpu.cfs_quota_us" for each in node.cgroups(cgroup)]
    found += [each / "cpu.max" for each in node.cgroups(cgroup)]
    texts = (file.read_text().split()[0] for file in found if file.exists())
    return {"-1" if text == "max" else text for text in texts}


async def spec_of(node: Node, container_id: str) -> dict[str, Any]:
    """The CPU part of what the container was made with, as the runtime has it."""
    request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
    answer = await node.call("ContainerStatus", request, cri.ContainerStatusResponse)
    found: dict[str, Any] = json.loads(answer.info["info"])["runtimeSpec"]["linux"]["resources"]["cpu"]
    return found


@pytest.mark.skipif(
    not NUMA.exists(), reason="the kernel tells of no NUMA node, nor would a kubelet find one"
)
async def test_a_container_is_confined_to_where_its_memory_is(new_node: NewNode) -> None:
    """This machine has one NUMA node; those with several are trees of files, in tests/placement."""
    config = {
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "single-numa-node",
        "kubeReserved": {"memory": "64Mi"},
        "evictionHard": {"nodefs.available": "1%"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
    }
    async with new_node() as node:
        await node.start_agent(config=config)
        first = pinned("100m") | {"name": "first", "command": ["true"]}
        node.write(pod("counted", pinned("100m"), initContainers=[first]))
        node.write(pod("other"))
        [counted] = await node.wait_running("counted", "main")
        [other] = await node.wait_running("other", "main")
        assert (await spec_of(node, counted.id))["mems"] == "0"
        assert "mems" not in await spec_of(node, other.id)
        path = Path(node.layout.agent_root) / "memory_manager_state"
        state = json.loads(path.read_text())
        [entry] = state["entries"].values()
        block = {"numaAffinity": [0], "type": "memory", "size": 32 << 20}
        assert entry == {"main": [block]}, "the init container has ended"
        assert state["machineState"]["0"]["memoryMap"]["memory"]["reserved"] == 32 << 20
        assert "kubelet_memory_manager_pinning_requests_total 2" in await node.metrics()

        await node.kill_agent()
        await node.start_agent(config=config)
        assert [each.id for each in await node.running("counted")] == [counted.id]
        assert json.loads(path.read_text())["entries"] == state["entries"]
        node.remove("counted")
        await node.wait_gone("counted")
        node.write(pod("next", pinned("100m")))
        await node.wait_running("next", "main")
        [entry] = json.loads(path.read_text())["entries"].values()
        assert entry == {"main": [block]}, "what the first pod had is free again"

        await node.stop_agent()
        refused = await node.start_agent(config={}, wait=False)
        await wait_until(refused.process.poll, 30, "the agent ends with a failure")
        assert "differs from state checkpoint policy" in refused.log_text()
        node.agent = None
