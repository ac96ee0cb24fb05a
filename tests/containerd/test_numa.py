"""CPUs and memory from one NUMA node, on a machine that has two: that of `make test-node MACHINE=qemu`, which
has cgroup v2.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, pod, wait_until
from tests.containerd.test_cpus import cpus_of, failed, pinned, spec_of
from trio_kubelet.common.cpusets import cpus_text, parse_cpus
from trio_kubelet.machine.numa import numa_nodes
from trio_kubelet.placement.topology import numa_of, read_topology

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(len(numa_nodes()) < 2, reason="needs two NUMA nodes"),
]
CONFIG = {
    "cpuManagerPolicy": "static",
    "memoryManagerPolicy": "Static",
    "topologyManagerPolicy": "single-numa-node",
    "reservedSystemCPUs": "0",
    "kubeReserved": {"memory": "64Mi"},
    "evictionHard": {"nodefs.available": "1%"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
}


async def on_node(node: Node, name: str) -> int:
    """The NUMA node a pod's container is on: its CPUs, its memory and what is written down agree."""
    [main] = await node.wait_running(name, "main", timeout=300)
    topology, cpus = read_topology(), parse_cpus(await cpus_of(node, main.id))
    [number] = topology.groups(cpus, numa_of)
    assert (await spec_of(node, main.id))["mems"] == str(number)
    status = await node.exec(main.id, "cat", "/proc/self/status")
    assert f"Mems_allowed_list:\t{number}\n" in status
    entries = json.loads((Path(node.layout.agent_root) / "memory_manager_state").read_text())["entries"]
    nodes = [block["numaAffinity"] for of in entries.values() for each in of.values() for block in each]
    assert [number] in nodes
    return number


async def test_cpus_and_memory_come_from_one_node(new_node: NewNode) -> None:
    async with new_node() as node:
        await node.start_agent(config=CONFIG)
        node.write(pod("across", pinned("3")))
        status = await wait_until(lambda: failed(node, "across"), timeout=300, what="across is refused")
        assert status["reason"] == "TopologyAffinityError", "three are left, but not on one node"
        node.write(pod("shares"))
        [shares] = await node.wait_running("shares", "main", timeout=300)
        node.write(pod("wide", pinned("2")))
        assert await on_node(node, "wide") == 1, "of node 0 one CPU is reserved"
        node.write(pod("narrow", pinned("1")))
        assert await on_node(node, "narrow") == 0
        everything, path = read_topology().all(), Path(node.layout.agent_root) / "cpu_manager_state"

        async def has_left() -> bool:
            state = json.loads(path.read_text())
            given = [parse_cpus(cpus) for of in state["entries"].values() for cpus in of.values()]
            left = cpus_text(everything.difference(*given))
            return {state["defaultCpuSet"], await cpus_of(node, shares.id)} == {left}

        await wait_until(has_left, timeout=300, what="another container leaves their CPUs")
        node.write(pod("late", pinned("1")))
        await wait_until(lambda: node.pod_status("late"), timeout=300, what="late is known")
        status = await wait_until(lambda: failed(node, "late"), timeout=300, what="late is refused")
        assert status["reason"] in ("TopologyAffinityError", "OutOfcpu")
        await node.kill_agent()
        await node.start_agent(config=CONFIG)
        assert [await on_node(node, name) for name in ("wide", "narrow")] == [1, 0]
