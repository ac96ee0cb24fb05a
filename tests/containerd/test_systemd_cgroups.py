"""The agent where the runtime makes its cgroups by systemd: slices with the pods' limits, taken over and
cleaned up. Runs in the machine of `make test-node`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cgroups.machine import has_systemd, shell
from tests.containerd.conftest import CHOSEN
from tests.containerd.harness import Manifest, Node, container, pod, running_node, wait_until
from trio_kubelet.cgroups.files import find_hierarchies
from trio_kubelet.standalone.node import Provisions

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(
        not has_systemd() or "" not in find_hierarchies(), reason="needs systemd and cgroup v2"
    ),
]
SystemdNode = Callable[[], AbstractAsyncContextManager[Node]]


@pytest.fixture
def systemd_node(
    request: pytest.FixtureRequest, provisions: Callable[[str], Provisions], tmp_path: Path
) -> SystemdNode:
    made = provisions(getattr(request, "param", CHOSEN))
    return lambda: running_node(made, tmp_path, systemd=True)


def limited(name: str, limits: dict[str, str], requests: dict[str, str] | None = None) -> Manifest:
    resources = {"limits": limits, "requests": limits if requests is None else requests}
    return pod(name, container(resources=resources))


def slices(node: Node) -> dict[str, Path]:
    """The slices of pods, by UID as systemd writes it. (`Path.rglob` fails when one vanishes under it.)"""
    return {
        name.rpartition("-pod")[2].removesuffix(".slice"): Path(directory, name)
        for directory, names, _ in os.walk(f"/sys/fs/cgroup{node.layout.cgroup_path}")
        for name in names
        if "-pod" in name and name.endswith(".slice")
    }


def values(cgroup: Path, *names: str) -> list[str]:
    return [(cgroup / name).read_text().strip() for name in names]


async def slice_of(node: Node, name: str) -> Path:
    (uid,) = [
        item["metadata"]["uid"] for item in await node.pods() if item["metadata"]["name"].startswith(name)
    ]
    return slices(node)[uid.replace("-", "_")]


_FILES = ("cpu.weight", "cpu.max", "memory.max", "pids.max")


async def test_pods_have_limits_of_their_own(systemd_node: SystemdNode) -> None:
    async with systemd_node() as node:
        await node.start_agent(config={"podPidsLimit": 99})
        node.write(limited("full", {"cpu": "125m", "memory": "64Mi"}))
        node.write(limited("half", {"cpu": "200m", "memory": "96Mi"}, {"cpu": "100m", "memory": "32Mi"}))
        node.write(pod("free"))
        for name in ("full", "half", "free"):
            await node.wait_running(name)
        assert values(await slice_of(node, "full"), *_FILES) == ["5", "13000 100000", str(64 << 20), "99"]
        assert values(await slice_of(node, "half"), *_FILES) == ["4", "20000 100000", str(96 << 20), "99"]
        assert values(await slice_of(node, "free"), *_FILES) == ["1", "max 100000", "max", "99"]
        scopes = [scope for path in slices(node).values() for scope in path.glob("*.scope")]
        assert len(scopes) == 6
        grouped = [values(scope, "memory.oom.group") for scope in scopes]
        assert grouped.count(["1"]) >= 3, "each container; what a sandbox has is the runtime's"

        (before,) = [c.id for c in await node.containers("full")]
        unit = (await slice_of(node, "full")).name
        await node.stop_agent(9)
        await shell("systemctl daemon-reload")
        await shell(f"systemctl set-property --runtime {unit} MemoryMax=1G")
        await node.start_agent(config={"podPidsLimit": 99})

        async def right_again() -> bool:
            return values(Path(f"{await slice_of(node, 'full')}"), "memory.max") == [str(64 << 20)]

        await wait_until(right_again, 30, "the limit is in force again")
        assert [c.id for c in await node.containers("full")] == [before]

        for name in ("full", "half", "free"):
            node.remove(name)
        await wait_until(lambda: not slices(node), 60, "no slice of a pod is left")

        async def no_unit() -> bool:
            return await shell("systemctl list-units --all --no-legend '*-pod*.slice' | wc -l") == "0"

        # systemd forgets a unit some time after its cgroup is gone.
        await wait_until(no_unit, 30, "no unit of a pod is left")


async def test_a_stopped_slice_is_made_again_with_its_pod(systemd_node: SystemdNode) -> None:
    async with systemd_node() as node:
        await node.start_agent(config={"syncFrequency": "5s"})
        node.write(limited("full", {"cpu": "125m", "memory": "64Mi"}))
        (before,) = await node.wait_running("full")
        await shell(f"systemctl stop {(await slice_of(node, 'full')).name}")

        async def runs_again() -> bool:
            (now,) = await node.containers("full", state=1) or [before]
            return bool(now.id != before.id)

        await wait_until(runs_again, 60, "a new container runs")

        async def limited_again() -> bool:
            return values(await slice_of(node, "full"), "memory.max") == [str(64 << 20)]

        # The runtime may have been faster with the slice, without limits; that is looked after each minute.
        await wait_until(limited_again, 90, "the limit is in force")


async def test_all_processes_of_a_container_end_when_memory_is_out(systemd_node: SystemdNode) -> None:
    script = "sleep 1; dd if=/dev/zero of=/dev/null bs=100M count=10; sleep 3; exit 7"
    resources = {"limits": {"cpu": "200m", "memory": "32Mi"}}
    async with systemd_node() as node:
        await node.start_agent()
        node.write(pod("oom", container("c", script, resources=resources), restartPolicy="Never"))

        async def over() -> dict[str, Any]:
            status = await node.pod_status("oom")
            states = [entry["state"] for entry in status.get("containerStatuses", ())]
            return states[0].get("terminated", {}) if states else {}

        ended = await wait_until(over, 60, "the container has ended")
        assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


@pytest.mark.parametrize("systemd_node", ["2.1"], indirect=True)
async def test_the_driver_is_the_runtimes_to_say(systemd_node: SystemdNode) -> None:
    async with systemd_node() as node:
        agent = await node.start_agent(config={"cgroupDriver": "cgroupfs"})
        assert "Using cgroup driver setting received from the CRI runtime" in agent.log_text()
        node.write(limited("full", {"cpu": "125m", "memory": "64Mi"}))
        await node.wait_running("full")
        assert values(await slice_of(node, "full"), "memory.max") == [str(64 << 20)]
        await trio.lowlevel.checkpoint()
