"""Swap of a real machine, on cgroup v2: what each container of the pods of an API server may have of it.

Runs in the machine of `make test-node`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cgroups.machine import has_systemd
from tests.containerd.conftest import CHOSEN, NewNode
from tests.containerd.harness import Node, container, running_node
from tests.containerd.test_pod_objects import Cluster
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.machine.facts import read_machine
from trio_kubelet.standalone.node import Provisions

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(
        not has_systemd() or "" not in find_hierarchies(), reason="needs systemd and cgroup v2"
    ),
]
SWAP_MIB = 256
PAGE = 4096


@pytest.fixture
def swap() -> Iterator[None]:
    """Some swap more than the machine has, in a file, which must not be one in memory."""
    file = Path(f"/var/tmp/trio-kubelet-swap-{os.getpid()}")
    subprocess.run(["dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={SWAP_MIB}"], check=True)
    file.chmod(0o600)
    subprocess.run(["mkswap", str(file)], check=True)
    try:
        subprocess.run(["swapon", str(file)], check=True)
        yield
    finally:
        subprocess.run(["swapoff", str(file)], check=False)
        file.unlink()


@pytest.fixture
def systemd_node(provisions: Callable[[str], Provisions], tmp_path: Path) -> NewNode:
    made = provisions(CHOSEN)
    return lambda: running_node(made, tmp_path, systemd=True)


def resources(request: str, limit: str = "") -> dict[str, dict[str, str]]:
    return {"requests": {"memory": request}, "limits": {"memory": limit} if limit else {}}


PODS = {
    "both": resources("64Mi", "128Mi"),
    "asks": resources("96Mi"),
    "equal": {**resources("64Mi", "64Mi"), "requests": {"memory": "64Mi", "cpu": "10m"}},
    "critical": resources("64Mi", "128Mi"),
    "free": {},
}


async def swap_limits(cluster: Cluster, node: Node) -> dict[str, str]:
    """memory.swap.max of the container of each pod, once they run."""
    for name, amounts in PODS.items():
        if cluster.shown(f"{name}-{node.name}") is None:
            priority = {"priority": 2_000_000_000} if name == "critical" else {}
            cluster.pod(node, name, container(resources=amounts), **priority)
    found = {}
    for name in PODS:
        (running,) = await node.wait_running(name)
        (scope,) = node.cgroups(f"cri-containerd-{running.id}.scope")
        found[name] = swap_limit(scope)
    return found


def swap_limit(scope: Path) -> str:
    return (scope / "memory.swap.max").read_text().strip()


@pytest.mark.parametrize("behavior", ["LimitedSwap", "NoSwap"])
async def test_each_container_has_its_part_of_the_swap(
    systemd_node: NewNode, tmp_path: Path, swap: None, behavior: str
) -> None:
    facts = read_machine("/")
    assert facts.swap >= (SWAP_MIB << 20) - PAGE
    assert facts.swap_controller

    def part(mebibytes: int) -> str:
        share = (mebibytes << 20) * facts.swap // facts.memory
        return str(share // PAGE * PAGE) if behavior == "LimitedSwap" else "0"

    cluster = Cluster()
    async with systemd_node() as node, cluster.serving(node, tmp_path) as kubeconfig:
        config = {"memorySwap": {"swapBehavior": behavior}}
        await node.start_agent(f"--kubeconfig={kubeconfig}", config=config)
        found = await swap_limits(cluster, node)
    assert found == {"both": part(64), "asks": part(96), "equal": "0", "critical": "0", "free": "0"}
