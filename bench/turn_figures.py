"""The longest turns of the agent's event loop: `python -m bench.turn_figures --pods 500`; ends with JSON.

A real agent process over the simulated runtime in another process: pods of two containers with an exec probe
start at once, rest, are looked at (pages, a reader of the node's page), a fifth of the containers dies at
once, the agent is killed and started again. CPU milliseconds of the loop's thread for each of these, and who
took them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from bench.node_figures import WITHOUT_CGROUPS, simulated
from bench.page_figures import read_page
from tests.containerd.harness import Agent, container, pod, wait_until
from tests.simulation.test_idle_pods import all_run
from trio_kubelet.commands.client import SOCKET_NAME
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.standalone.agent import AgentPorts, command_line, configuration, free_ports
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import new_layout

PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 10, "timeoutSeconds": 5}
PAGES = ("/metrics", "/metrics/cadvisor", "/stats/summary", "/pods")
SHOWN = re.compile(r'"phase": ?"Running"')
GOAL_MS = 20.0


@asynccontextmanager
async def watched(layout: NodeLayout, file: Path, out: Path) -> AsyncIterator[Agent]:
    """An agent that writes its long turns to `out`; it is killed at the end."""
    command = [sys.executable, "-m", "bench.watched_agent", str(out), *command_line(layout, file)[1:]]
    log = layout.base / "agent.log"
    with log.open("ab") as said:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
    try:
        yield Agent(process, log)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


def turns(out: Path, since: float, until: float) -> dict[str, Any]:
    """The longest turn of a time, how many were longer than the goal, and who took the longest."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    found = [line for line in lines if since <= line["at"] <= until]
    if not found:
        return {"longest_ms": 0.0, "over": 0}
    longest = max(found, key=lambda line: float(line["ms"]))
    over = sum(line["ms"] > GOAL_MS for line in found)
    return {"longest_ms": longest["ms"], "over": over, "tasks": longest["tasks"][:4]}


async def figures(pods: int) -> dict[str, Any]:
    """All of it with so many pods."""
    found: dict[str, Any] = {"pods": pods, "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="tk-") as scratch:
        layout = await new_layout(f"t{os.getpid() % 10**6}", Path(scratch))
        manifests, ports, out = layout.base / "manifests", free_ports(), layout.base / "turns.json"
        manifests.mkdir()
        file = layout.base / "agent.json"
        file.write_text(configuration(layout, manifests, ports, {**WITHOUT_CGROUPS, "maxPods": 2 * pods}))

        @asynccontextmanager
        async def during(name: str) -> AsyncIterator[None]:
            began, cpu = time.time(), agent.cpu_seconds()
            yield
            found[name] = {**turns(out, began, time.time()), "cpu_s": round(agent.cpu_seconds() - cpu, 2)}
            print(name, json.dumps(found[name]), file=sys.stderr, flush=True)

        async with simulated(layout):
            async with watched(layout, file, out) as agent:
                await wait_until(lambda: all_run(ports.read_only, 0), 60, "the agent runs", interval=0.3)
                await trio.sleep(4)
                async with during("start"):
                    write(manifests, pods)
                    await wait_until(lambda: all_run(ports.read_only, 2 * pods), 300, "all run", interval=1)
                    await trio.sleep(6)
                async with during("rest"):
                    await trio.sleep(12)
                for path in PAGES:
                    async with during(path):
                        await get(ports, path)
                async with during("page"), trio.open_nursery() as nursery:
                    nursery.start_soon(read_page, str(layout.agent_root / SOCKET_NAME), lambda said: None)
                    await trio.sleep(4)
                    nursery.cancel_scope.cancel()
                async with during("a fifth dies"):
                    await kill_a_fifth(layout)
                    await trio.sleep(2)
                    await wait_until(
                        lambda: all_run(ports.read_only, 2 * pods), 120, "all are back", interval=1
                    )
            async with watched(layout, file, out) as agent:
                async with during("imports until healthy"):
                    await wait_until(lambda: healthy(ports), 60, "the agent is healthy", interval=0.02)
                async with during("adoption"):
                    await wait_until(lambda: reported(ports, pods), 60, "all are reported", interval=0.3)
                    await trio.sleep(3)
    return found


def write(manifests: Path, pods: int) -> None:
    for number in range(pods):
        each = (
            container(name, imagePullPolicy="IfNotPresent", readinessProbe=PROBE) for name in ("one", "two")
        )
        new = manifests / f".p{number}"
        new.write_text(json.dumps(pod(f"p{number}", *each)))
        new.rename(manifests / f"p{number}.json")


async def get(ports: AgentPorts, path: str) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(f"http://127.0.0.1:{ports.read_only}{path}")).text


async def reported(ports: AgentPorts, pods: int) -> bool:
    try:
        return len(SHOWN.findall(await get(ports, "/pods"))) == pods
    except httpx.TransportError:
        return False


async def healthy(ports: AgentPorts) -> bool:
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://127.0.0.1:{ports.healthz}/healthz")).is_success
    except httpx.TransportError:
        return False


async def kill_a_fifth(layout: NodeLayout) -> None:
    async with open_cri(layout.endpoint, direct=True) as services:
        running = [each.id for each in await services.runtime.list_containers() if each.state == 1]
        async with trio.open_nursery() as nursery:
            for each in running[::5]:
                nursery.start_soon(partial(services.runtime.stop_container, each, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=500)
    print(json.dumps(trio.run(figures, parser.parse_args().pods)))


if __name__ == "__main__":
    main()
