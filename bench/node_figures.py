"""What a node's user waits for, measured on a private node with a real containerd; the last line is JSON.

Moments come from the runtime (creation, start and end of containers) or from the file system, not from the
agent. `--scale` measures instead the agent at 1,000 pods of 10 containers on the simulated runtime in a
process of its own, once with runtime events and once without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import trio

from tests.containerd.harness import Agent, Node, container, pod, running_node, wait_until
from trio_kubelet.standalone.agent import command_line, configuration, free_ports
from trio_kubelet.standalone.cleanup import unmount
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import new_layout, provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD

Figures = dict[str, float]
WITHOUT_EVENTS = {"featureGates": {"EventedPLEG": False}}
LOOKS = re.compile(
    r'^kubelet_runtime_operations_total\{operation_type="podsandbox_status"\} (\S+)', re.MULTILINE
)
RUNNING = re.compile(r'^kubelet_running_containers\{container_state="running"\} (\S+)', re.MULTILINE)
WITHOUT_CGROUPS = {"cgroupsPerQOS": False, "enforceNodeAllocatable": []}


def now() -> float:
    return time.time()


async def manifest_to_running(node: Node, rounds: int) -> list[float]:
    """From the manifest's rename into place to the start of its container."""
    took = []
    for number in range(rounds):
        began = now()
        node.write(pod(f"new-{number}"))
        [main] = await node.wait_running(f"new-{number}")
        took.append((await node.container_status(main.id)).started_at / 1e9 - began)
    return took


async def edit_to_replaced(node: Node, rounds: int) -> list[float]:
    """From the rename of a changed manifest to the start of the new pod's container."""
    took = []
    for number in range(rounds):
        [before] = await node.wait_running(f"new-{number}")
        began = now()
        node.write(pod(f"new-{number}", container(env=[{"name": "EDITED", "value": "1"}])))
        [after] = await node.wait_running(f"new-{number}", besides=[before.id])
        took.append((await node.container_status(after.id)).started_at / 1e9 - began)
    return took


async def remove_to_gone(node: Node, rounds: int) -> tuple[list[float], list[float]]:
    """From the removal of a manifest until its containers have ended, and until nothing of it is left."""
    ended, gone = [], []
    for number in range(rounds):
        [main] = await node.wait_running(f"new-{number}")
        uid = main.labels["io.kubernetes.pod.uid"]
        began = now()
        node.remove(f"new-{number}")

        async def stopped(name: str = f"new-{number}") -> bool:
            return not await node.running(name)

        await wait_until(stopped, 30)
        ended.append(now() - began)
        await node.wait_gone(f"new-{number}")
        await wait_until(partial(without_traces, node, uid), 30)
        gone.append(now() - began)
    return ended, gone


def without_traces(node: Node, uid: str) -> bool:
    return not node.pod_traces(uid)


async def death_to_restart(node: Node, deaths: int) -> list[float]:
    """From the end of a killed container to the start of its successor; each container dies once."""
    names = [f"c{number}" for number in range(5)]
    pods = [f"dies-{number}" for number in range(deaths // len(names))]
    for each in pods:
        node.write(pod(each, *(container(name) for name in names)))
    for each in pods:
        await node.wait_running(each, *names, timeout=60)
    await trio.sleep(8)
    took = []
    for each in pods:
        for old in await node.running(each):
            await node.kill_container(old.id)
            await trio.sleep(0.3)
            [new] = await node.wait_running(each, old.metadata.name, besides=[old.id])
            ended = (await node.container_status(old.id)).finished_at
            took.append(((await node.container_status(new.id)).started_at - ended) / 1e9)
    for each in pods:
        node.remove(each)
    for each in pods:
        await node.wait_gone(each)
    return took


async def many_pods(node: Node, agent: Agent, pods: int, idle: float) -> Figures:
    """Pods of two containers at once: until all run, what that costs, and what they cost when idle."""
    cpu, began = agent.cpu_seconds(), now()
    for number in range(pods):
        node.write(pod(f"many-{number}", container("one"), container("two")))

    async def all_up() -> bool:
        return len(await node.running()) == 2 * pods

    await wait_until(all_up, 120, "all run", interval=0.05)
    started = [(await node.container_status(c.id)).started_at / 1e9 for c in await node.running()]
    busy = agent.cpu_seconds() - cpu
    await trio.sleep(15)
    share, memory = await at_rest(agent, idle)
    return {
        "many_pods_s": max(started) - began,
        "many_pods_cpu_s": busy,
        "idle_cpu_percent": share,
        "idle_memory_mb": memory,
    }


async def at_rest(agent: Agent, seconds: float) -> tuple[float, float]:
    """Per cent of a core and megabytes of an agent that is left alone for a while."""
    cpu, began = agent.cpu_seconds(), time.monotonic()
    await trio.sleep(seconds)
    return 100 * (agent.cpu_seconds() - cpu) / (time.monotonic() - began), agent.rss_bytes() / 1e6


async def on_a_node(choice: str, *, events: bool, idle: float, rounds: int, deaths: int) -> Figures:
    """All figures of a private node."""
    provisions = await provide(choice, lambda text: print(text, file=sys.stderr))
    config = {} if events else WITHOUT_EVENTS
    with tempfile.TemporaryDirectory() as scratch:
        async with running_node(provisions, Path(scratch)) as node:
            agent = await node.start_agent(config=config)
            started = agent.cpu_seconds()
            figures: Figures = {"start_cpu_s": started}
            await trio.sleep(6)
            new = await manifest_to_running(node, rounds)
            edited = await edit_to_replaced(node, rounds)
            ended, gone = await remove_to_gone(node, rounds)
            restarts = await death_to_restart(node, deaths)
            figures |= {
                "manifest_to_running_s": statistics.median(new),
                "death_to_restart_s": statistics.median(restarts),
                "death_to_restart_max_s": max(restarts),
                "edit_to_replaced_s": statistics.median(edited),
                "remove_to_ended_s": statistics.median(ended),
                "remove_to_gone_s": statistics.median(gone),
            }
            figures |= await many_pods(node, agent, 30, idle)
            await node.stop_agent()
    return figures


@contextlib.asynccontextmanager
async def simulated(layout: NodeLayout, *options: str) -> AsyncIterator[None]:
    """The simulated runtime as a process, at the node's socket; what agents on it have mounted goes, too."""
    command = [sys.executable, "-m", "trio_kubelet", "sim", f"--socket={layout.socket}", *options]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        await wait_until(layout.socket.exists, 20, "the simulated runtime's socket")
        yield
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await trio.to_thread.run_sync(unmount, layout.base)


async def at_scale(pods: int, containers: int, *, events: bool, idle: float) -> Figures:
    """Steady CPU and memory of an agent with many pods on the simulated runtime."""
    with tempfile.TemporaryDirectory(prefix="tk-") as base:
        layout = await new_layout(f"b{os.getpid() % 10**6}", Path(base))
        manifests = layout.base / "manifests"
        manifests.mkdir()
        made = [container(f"c{number}", imagePullPolicy="IfNotPresent") for number in range(containers)]
        for number in range(pods):
            text = json.dumps(pod(f"p{number}", *made))
            (manifests / f"p{number}.json").write_text(text)
        extra = {"maxPods": 2 * pods, **WITHOUT_CGROUPS, **({} if events else WITHOUT_EVENTS)}
        file, ports = layout.base / "agent.json", free_ports()
        file.write_text(configuration(layout, manifests, ports, extra))
        options = () if events else ("--unimplemented=GetContainerEvents",)
        async with simulated(layout, *options):
            log = layout.base / "agent.log"
            with log.open("wb") as out:
                process = await trio.lowlevel.open_process(
                    command_line(layout, file), stdout=out, stderr=out, start_new_session=True
                )
            agent = Agent(process, log)
            try:
                metrics = f"http://127.0.0.1:{ports.read_only}/metrics"
                await settle(agent, metrics, pods * containers)
                share, memory = await at_rest(agent, idle)
                print(f"{share:.2f} % of a core, {memory:.0f} MB, {events=}", file=sys.stderr, flush=True)
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()
    kind = "evented" if events else "generic"
    return {f"{kind}_cpu_percent": share, f"{kind}_memory_mb": memory}


async def settle(agent: Agent, metrics: str, containers: int) -> None:
    """Waits until the agent sees all containers running and no pod has been looked at for a while."""

    async def value(pattern: re.Pattern[str]) -> float:
        assert agent.process.poll() is None, agent.log_text()[-2000:]
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            found = pattern.search((await client.get(metrics)).text)
        return float(found[1]) if found is not None else 0.0

    async def all_up() -> bool:
        return await value(RUNNING) == containers

    async def quiet() -> bool:
        before = await value(LOOKS)
        await trio.sleep(15)
        return await value(LOOKS) == before

    await wait_until(all_up, 900, f"{containers} containers run", interval=3)
    await wait_until(quiet, 600, "no pod is looked at any more", interval=1)
    await trio.sleep(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", action="store_true", help="1,000 pods × 10 containers, simulated")
    parser.add_argument("--without-events", action="store_true", help="a relist each second")
    parser.add_argument("--containerd", default=DEFAULT_CONTAINERD)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of rest that are measured")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--deaths", type=int, default=50)
    parser.add_argument("--pods", type=int, default=1000, help="with --scale")
    given = parser.parse_args()
    figures: Figures = {}

    async def measure() -> None:
        if given.scale:
            for events in [False] if given.without_events else [True, False]:
                figures.update(await at_scale(given.pods, 10, events=events, idle=given.idle))
            return
        figures.update(
            await on_a_node(
                given.containerd,
                events=not given.without_events,
                idle=given.idle,
                rounds=given.rounds,
                deaths=given.deaths,
            )
        )

    before = os.getloadavg()[0]
    trio.run(measure)
    figures |= {"load_before": before, "load_after": os.getloadavg()[0]}
    for name, value in figures.items():
        print(f"{name:28} {value:8.3f}")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
