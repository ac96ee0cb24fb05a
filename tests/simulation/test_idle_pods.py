"""What pods cost that only run: a real agent process over the simulated runtime in another process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import httpx
import trio

from bench.node_figures import WITHOUT_CGROUPS, simulated
from tests.containerd.harness import Agent, container, pod, wait_until
from trio_kubelet.standalone.agent import command_line, configuration, free_ports
from trio_kubelet.standalone.node import new_layout

PODS = 500
MOST_CPU = 0.05  # of a core; about a fifth of that on a machine with nothing else to do
MOST_MEMORY = 110e6
RUNNING = re.compile(r'^kubelet_running_containers\{container_state="running"\} (\S+)', re.MULTILINE)


def children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for task in tasks for child in task.read_text().split()]


async def test_500_idle_pods_cost_little_and_no_subprocess() -> None:
    with tempfile.TemporaryDirectory(prefix="tk-") as base:
        layout = await new_layout(f"i{os.getpid() % 10**6}", Path(base))
        manifests, ports = layout.base / "manifests", free_ports()
        manifests.mkdir()
        for number in range(PODS):
            manifest = pod(f"p{number}", container(imagePullPolicy="IfNotPresent"))
            (manifests / f"p{number}.json").write_text(json.dumps(manifest))
        file, log = layout.base / "agent.json", layout.base / "agent.log"
        file.write_text(configuration(layout, manifests, ports, {**WITHOUT_CGROUPS, "maxPods": 2 * PODS}))
        async with simulated(layout):
            with log.open("wb") as out:
                process = await trio.lowlevel.open_process(
                    command_line(layout, file), stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            try:
                agent = Agent(process, log)
                await wait_until(lambda: all_run(ports.read_only), 240, "all pods run", interval=1)
                await trio.sleep(10)
                taken = [await rest(agent)]
                while taken[-1] >= MOST_CPU and len(taken) < 3:  # what others do costs the agent time, too
                    taken.append(await rest(agent))
                assert min(taken) < MOST_CPU
                assert agent.rss_bytes() < MOST_MEMORY
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()


async def rest(agent: Agent) -> float:
    """The share of a CPU that it takes for a while, in which it starts no process."""
    cpu, began = agent.cpu_seconds(), trio.current_time()
    while trio.current_time() < began + 15:
        assert not children(agent.process.pid)
        await trio.sleep(0.05)
    return (agent.cpu_seconds() - cpu) / (trio.current_time() - began)


async def all_run(port: int, containers: int = PODS) -> bool:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        found = RUNNING.search((await client.get(f"http://127.0.0.1:{port}/metrics")).text)
    return found is not None and float(found[1]) == containers
