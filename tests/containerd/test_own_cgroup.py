"""An agent with `kubeletCgroups`: it is in that cgroup, and the summary has its figures as the kubelet's."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.containerd.conftest import NewNode
from tests.containerd.harness import Node, wait_until
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.standalone.agent import command_line

pytestmark = pytest.mark.node


@pytest.fixture
def cgroup() -> Iterator[str]:
    """The name of a cgroup, which is removed."""
    name, tree = f"/trio-kubelet-test-{secrets.token_hex(4)}", CgroupTree(find_hierarchies())
    yield name
    deadline = time.monotonic() + 10
    while not (gone := tree.remove(name)) and time.monotonic() < deadline:
        time.sleep(0.05)  # the agent may still be ending
    assert gone


def says_its_first_process() -> bool:
    """Whether one may see which process ids the machine's first process has."""
    try:
        return bool(os.readlink("/proc/1/ns/pid"))
    except PermissionError:
        return False


@pytest.fixture
def as_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine hides its first process the agent is the first of its own: it moves nothing else."""
    if says_its_first_process():
        return
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    monkeypatch.setattr(
        "tests.containerd.harness.command_line", lambda *given: [*prefix, *command_line(*given)]
    )


def parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # it has ended


async def system_containers(node: Node) -> Mapping[str, Any]:
    found = (await node.get(node.ports.read_only, "/stats/summary")).json()["node"]["systemContainers"]
    return {each["name"]: each for each in found}


@pytest.mark.usefixtures("as_first_process")
async def test_the_agent_is_in_its_cgroup_and_has_figures(new_node: NewNode, cgroup: str) -> None:
    tree = CgroupTree(find_hierarchies())
    async with new_node() as node:
        agent = await node.start_agent(config={"kubeletCgroups": cgroup})
        own = agent.process.pid

        def is_there() -> bool:
            # What the agent runs is there too, for a moment.
            found = tree.processes(cgroup, 10) if tree.exists(cgroup) else []
            return any(own in (each, parent_of(each)) for each in found)

        await wait_until(is_there, 10, "the agent is in its cgroup")

        async def has_figures() -> bool:
            kubelet = (await system_containers(node)).get("kubelet", {})
            cpu, memory = kubelet.get("cpu", {}), kubelet.get("memory", {})
            return bool(cpu.get("usageCoreNanoSeconds") and memory.get("workingSetBytes"))

        await wait_until(has_figures, 30, "the summary has the agent's figures")
