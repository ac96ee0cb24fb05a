"""Huge pages and NUMA nodes of a real machine. Runs in that of `make test-node MACHINE=qemu`, where starting
a node takes a minute: what one can show is one test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cgroups.machine import has_systemd
from tests.containerd.conftest import CHOSEN, NewNode
from tests.containerd.harness import Node, container, pod, running_node, wait_until
from tests.containerd.scenes import uid_of
from tests.containerd.test_cpus import failed
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.common.cpusets import parse_cpus
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.machine.numa import numa_nodes
from trio_kubelet.placement.topology import numa_of, read_topology
from trio_kubelet.standalone.node import Provisions

MIB = 1 << 20
RESERVED = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
NODES = Path("/sys/devices/system/node")
UNBOUNDED = str(1 << 62)
NEEDS_NUMA = pytest.mark.skipif(len(numa_nodes()) < 2, reason="needs two NUMA nodes")
pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(
        not has_systemd()
        or "" not in find_hierarchies()
        or not RESERVED.exists()
        or int(RESERVED.read_text()) < 16,
        reason="needs systemd, cgroup v2 and 16 huge pages of 2 MiB",
    ),
]


@pytest.fixture(params=["systemd", "cgroupfs"])
def huge_node(
    request: pytest.FixtureRequest, provisions: Callable[[str], Provisions], tmp_path: Path
) -> NewNode:
    made = provisions(CHOSEN)
    return lambda: running_node(made, tmp_path, systemd=request.param == "systemd")


def asking(pages: int) -> dict[str, Any]:
    amounts = {"hugepages-2Mi": f"{2 * pages}Mi", "memory": "64Mi", "cpu": "1"}
    return {"requests": amounts, "limits": amounts}


def limits(cgroup: Path) -> tuple[str, str]:
    """What a cgroup may use of 2 MiB pages, and what it may reserve."""
    names = ("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max")
    used, reserved = ((cgroup / name).read_text().strip() for name in names)
    return used, reserved


def below(node: Node, ending: str) -> Path:
    """The cgroup of this node whose name ends so, as either driver writes it."""
    endings = (f"{ending}.slice", f"{ending.replace('-', '_')}.slice", ending)
    root = Path(f"/sys/fs/cgroup{node.layout.cgroup_path}")
    (found,) = (path for path in root.rglob("*") if path.is_dir() and path.name.endswith(endings))
    return found


async def test_pods_have_the_huge_pages_they_ask_for(huge_node: NewNode) -> None:
    async with huge_node() as node:
        await node.start_agent()
        mounts = [{"name": "huge", "mountPath": "/huge"}]
        volumes = [{"name": "huge", "emptyDir": {"medium": "HugePages-2Mi"}}]
        node.write(pod("huge", container(resources=asking(8), volumeMounts=mounts), volumes=volumes))
        node.write(pod("none", container(resources={"requests": {"memory": "16Mi"}})))
        (running,) = await node.wait_running("huge")
        await node.wait_running("none")
        assert limits(below(node, "pod" + await uid_of(node, "huge"))) == (str(16 * MIB), str(16 * MIB))
        assert limits(below(node, "pod" + await uid_of(node, "none"))) == ("0", "0")
        for name in ("kubepods", "burstable", "besteffort"):
            assert limits(below(node, name)) in (("max", "max"), (UNBOUNDED, UNBOUNDED)), name
        mounted = await node.exec(running.id, "grep", " /huge ", "/proc/mounts")
        assert "hugetlbfs" in mounted
        assert "pagesize=2M" in mounted

        count = read_machine("/").huge_pages[2 * MIB] // (2 * MIB)
        assert count >= 16
        node.write(pod("toomany", container(resources=asking(count - 7))))

        status = await wait_until(lambda: failed(node, "toomany"), 60, "more are asked for than are left")
        # A static pod is critical: others would have to go for it, and none of them has what it lacks.
        assert status["reason"] == "UnexpectedAdmissionError"
        lacking = f"no set of running pods found to reclaim resources: [(res: hugepages-2Mi, q: {2 * MIB}), ]"
        assert status["message"].endswith(lacking)


@NEEDS_NUMA
def test_the_topology_is_that_of_the_machine() -> None:
    topology = read_topology()
    assert topology.numa_nodes() == list(numa_nodes())
    for number in numa_nodes():
        told = (NODES / f"node{number}" / "cpulist").read_text()
        assert topology.having([number], numa_of) == parse_cpus(told)
        assert topology.distances[number][number] == 10
