"""Many pods at once on a real containerd: this agent against plain CRI calls; the last line is JSON.

`--simulated` tells instead what one start costs the agent, in CPU and calls of the runtime: on the simulated
runtime in a process of its own, which takes its time for sandboxes and containers, pods of two containers
with an exec probe each. These are nearly the same on a busy machine.

`python -m bench.start_figures`, as root. `--pods` pods of two containers are started by the agent from
manifests, then the same sandboxes and containers with so many plain calls at a time (`--widths`); in turn, so
that a busy machine is busy for all. The plain calls are those without which no pod starts, pod by pod: no
agent can be faster.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import trio
import yaml
from google.protobuf.json_format import ParseDict

from bench.node_figures import simulated
from tests.containerd.harness import Agent, Node, container, pod, running_node, wait_until
from tests.simulation.test_idle_pods import all_run
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.cgroups.limits import Limits
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.standalone.agent import AgentPorts, command_line, configuration, free_ports
from trio_kubelet.standalone.cleanup import take_down
from trio_kubelet.standalone.node import new_layout, provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD

NAMES = ("one", "two")
OF_A_CLUSTER = {"clusterDNS": ["10.96.0.10"]}
"""Where there is none, each pod's start tells of it."""
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 10, "timeoutSeconds": 5}
SLOW_STARTS = [
    {"kind": "slow", "method": method, "seconds": seconds}
    for method, seconds in (("RunPodSandbox", 0.2), ("CreateContainer", 0.05), ("StartContainer", 0.1))
]
_SHARES = {"/bench-agent": 4096, "/bench-runtime": 1024}
CALLS = re.compile(r'^kubelet_runtime_operations_total\{operation_type="(\w+)"\} (\S+)', re.MULTILINE)


class Start(NamedTuple):
    """What the runtime was given for a pod."""

    sandbox: cri.PodSandboxConfig
    handler: str
    containers: list[cri.ContainerConfig]


async def starts_of(node: Node) -> list[Start]:
    """What every pod that is there was started with, as the runtime remembers it."""
    found: dict[str, Start] = {}
    for sandbox in await node.sandboxes():
        asked = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id, verbose=True)
        info = json.loads(
            (await node.call("PodSandboxStatus", asked, cri.PodSandboxStatusResponse)).info["info"]
        )
        pod_config = ParseDict(info["config"], cri.PodSandboxConfig(), ignore_unknown_fields=True)
        found[sandbox.id] = Start(pod_config, sandbox.runtime_handler, [])
    for made in reversed(await node.containers()):
        wanted = cri.ContainerStatusRequest(container_id=made.id, verbose=True)
        info = json.loads(
            (await node.call("ContainerStatus", wanted, cri.ContainerStatusResponse)).info["info"]
        )
        for variable in info["config"].get("envs", ()):  # bytes here, text there
            variable["value"] = base64.b64encode(variable.get("value", "").encode()).decode()
        config = ParseDict(info["config"], cri.ContainerConfig(), ignore_unknown_fields=True)
        found[made.pod_sandbox_id].containers.append(config)
    return list(found.values())


async def clear(runtime: RuntimeService, node: Node) -> None:
    """Takes away all pods that are there; what they have on disk stays."""
    for sandbox in await node.sandboxes():
        await runtime.stop_pod_sandbox(sandbox.id)
        await runtime.remove_pod_sandbox(sandbox.id)


async def plain(runtime: RuntimeService, node: Node, starts: Sequence[Start], width: int) -> float:
    """Seconds until all run, with so many pods being started at once; they are taken away again."""
    took = await seconds_for_all(starts, width, partial(start_plainly, runtime))
    await clear(runtime, node)
    return took


async def start_plainly(runtime: RuntimeService, pod: Start) -> list[str]:
    """Starts one pod by the calls that nobody can do without; its containers' ids."""
    sandbox = await runtime.run_pod_sandbox(pod.sandbox, pod.handler)
    made = []
    for wanted in pod.containers:
        made.append(await runtime.create_container(sandbox, wanted, pod.sandbox))
        await runtime.start_container(made[-1])
    return made


async def seconds_for_all(
    starts: Sequence[Start], width: int, start: Callable[[Start], Awaitable[object]]
) -> float:
    """How long it takes to start all pods, so many at once."""
    limit = trio.CapacityLimiter(width)

    async def one(pod: Start) -> None:
        async with limit:
            await start(pod)

    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        for each in starts:
            nursery.start_soon(one, each)
    return time.monotonic() - began


async def until_up(node: Node, containers: int, interval: float = 0.5) -> None:
    """Until so many run; it looks every `interval` seconds."""

    async def all_up() -> bool:
        return len(await node.running()) == containers

    await wait_until(all_up, 600, f"{containers} run", interval=interval)


async def until_started(node: Node, containers: int) -> float:
    """Until so many run; when the last of them was started (Unix time). It looks seldom, for that costs."""
    await until_up(node, containers, interval=2)
    return float(max([(await node.container_status(c.id)).started_at for c in await node.running()]) / 1e9)


@contextmanager
def weights() -> Iterator[None]:
    """For the length of the block, in which the node has to end, `weigh` has its cgroups."""
    tree = _weights()
    for cgroup, shares in _SHARES.items():
        tree.create(cgroup)
        tree.apply(cgroup, Limits(cpu_shares=shares))
    _allow_priority(next(iter(_SHARES)))
    try:
        yield
    finally:
        for cgroup in _SHARES:
            tree.remove(cgroup)


def _allow_priority(cgroup: str) -> None:
    """Half the time of the CPUs for the agent's event loop, which comes first, where the kernel divides such
    time by cgroup (version 1). A unit's cgroup has none there, and its agent is one process of all.
    """
    share = Path(find_hierarchies().get("cpu", ""), cgroup[1:], "cpu.rt_runtime_us")
    if share.exists():
        share.write_text("500000")


def weigh(node: Node, agent: Agent) -> None:
    """Gives the agent the weight beside its runtime, and what that starts, that its unit has where there is
    systemd: four times as much. `nice` says nothing to processes of other sessions where the kernel groups by
    session (`sched_autogroup_enabled`).
    """
    assert node.containerd.pid is not None
    for cgroup, process in zip(_SHARES, (agent.process.pid, node.containerd.pid), strict=True):
        _weights().move(process, cgroup)


def for_so_many(pods: int) -> dict[str, object]:
    """What an agent is configured with for so many pods, and as many that end beside them."""
    return {"maxPods": 2 * pods + 10, **OF_A_CLUSTER}


async def start_weighed(node: Node, pods: int) -> Agent:
    """An agent for so many pods that comes before other processes, as its unit's weight makes it."""
    agent = await node.start_agent(config=for_so_many(pods))
    weigh(node, agent)
    return agent


async def until_placed_run(
    node: Node, agent: Agent, written: Sequence[tuple[Path, Path]]
) -> tuple[float, float]:
    """Moves manifests of pods of two containers to where they belong; seconds until all run, and the agent's
    CPU meanwhile.
    """
    cpu, began = agent.cpu_seconds(), time.time()
    for scratch, path in written:
        scratch.replace(path)
    took = await until_started(node, len(NAMES) * len(written)) - began
    return took, agent.cpu_seconds() - cpu


def _weights() -> CgroupTree:
    return CgroupTree({name: path for name, path in find_hierarchies().items() if name in ("", "cpu")})


async def by_agent(
    node: Node, runtime: RuntimeService, number: int, pods: int
) -> tuple[dict[str, float], list[Start]]:
    """Seconds for the agent from manifests, and milliseconds of its CPU for a pod; what it asked the runtime
    for. Nothing is left of the pods but what they have on disk.
    """
    agent = await start_weighed(node, pods)
    await trio.sleep(10)  # it clears up after the round before
    names = [f"round-{number}-{each}" for each in range(pods)]
    written = [node.prepare(pod(name, *(container(each) for each in NAMES))) for name in names]
    seconds, cpu = await until_placed_run(node, agent, written)
    took = {"agent_s": seconds, "cpu_ms": 1000 * cpu / pods}
    await node.kill_agent()
    for name in names:
        node.remove(name)
    starts = await starts_of(node)
    assert len(starts) == pods
    await clear(runtime, node)
    return took, starts


async def measure(pods: int, widths: list[int], rounds: int) -> dict[str, list[float]]:
    """Seconds by who started the pods, and the agent's CPU, one for each round but the first: a containerd
    that has not started anything yet is slower. Who begins changes with each round, for so does the machine.
    """
    provisions = await provide(DEFAULT_CONTAINERD, lambda text: print(text, file=sys.stderr))
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch, weights():
        async with (
            running_node(provisions, Path(scratch)) as node,
            open_cri(f"unix://{node.layout.socket}", direct=True) as services,
        ):
            found, starts = await by_agent(node, services.runtime, 0, pods)
            print(f"first round, not counted: {found}", file=sys.stderr, flush=True)
            for number in range(rounds):
                turns = [0, *widths]  # 0: the agent's
                for width in turns[number % len(turns) :] + turns[: number % len(turns)]:
                    if width:
                        found = {f"plain_{width}_s": await plain(services.runtime, node, starts, width)}
                    else:
                        found, _ = await by_agent(node, services.runtime, number + 1, pods)
                    for name, value in found.items():
                        took.setdefault(name, []).append(round(value, 2))
                print(took, f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return took


async def on_simulated_runtime(pods: int) -> dict[str, float]:
    """CPU milliseconds of the agent and calls of the runtime for one start among so many."""
    with tempfile.TemporaryDirectory(prefix="tk-") as scratch:
        layout = await new_layout(f"s{os.getpid() % 10**6}", Path(scratch))
        manifests, ports, file = layout.base / "manifests", free_ports(), layout.base / "agent.json"
        manifests.mkdir()
        file.write_text(configuration(layout, manifests, ports, {"maxPods": 2 * pods, **OF_A_CLUSTER}))
        slow, log = layout.base / "faults.json", layout.base / "agent.log"
        slow.write_text(json.dumps(SLOW_STARTS))
        async with (
            simulated(layout, f"--faults={slow}"),
            open_cri(layout.endpoint, direct=True) as services,
        ):
            with log.open("wb") as out:
                process = await trio.lowlevel.open_process(
                    command_line(layout, file), stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            try:
                return await cost_of_starts(Agent(process, log), ports, services.runtime, manifests, pods)
            finally:
                with trio.CancelScope(shield=True):
                    process.kill()
                    await process.wait()
                    await take_down(layout)


async def cost_of_starts(
    agent: Agent, ports: AgentPorts, runtime: RuntimeService, manifests: Path, pods: int
) -> dict[str, float]:
    """Starts that many pods; what their first probes cost is in it."""
    await wait_until(lambda: all_run(ports.read_only, 0), 60, "the agent runs", interval=0.3)
    await trio.sleep(8)  # what it does after its start is done, and relists are rare
    calls, cpu, began = await calls_so_far(ports), agent.cpu_seconds(), time.monotonic()
    for number in range(pods):
        each = (container(name, imagePullPolicy="IfNotPresent", readinessProbe=PROBE) for name in NAMES)
        new = manifests / f".p{number}"
        new.write_text(yaml.safe_dump(pod(f"p{number}", *each), sort_keys=False))
        new.rename(manifests / f"p{number}.yaml")

    async def all_up() -> bool:
        running = [each for each in await runtime.list_containers() if each.state == cri.CONTAINER_RUNNING]
        return len(running) == len(NAMES) * pods

    await wait_until(all_up, 300, "all run", interval=1)
    took, cpu, after = time.monotonic() - began, agent.cpu_seconds() - cpu, await calls_so_far(ports)
    made = {kind: round((count - calls.get(kind, 0)) / pods, 2) for kind, count in after.items()}
    found = {"cpu_ms": round(1000 * cpu / pods, 2), "seconds": round(took, 1)}
    return found | {kind: count for kind, count in made.items() if count}


async def calls_so_far(ports: AgentPorts) -> dict[str, float]:
    """Calls of the runtime until now, by their kind."""
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        text = (await client.get(f"http://127.0.0.1:{ports.read_only}/metrics")).text
    return {kind: float(count) for kind, count in CALLS.findall(text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="what one start costs the agent")
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--widths", default="2,4,8,16", help="plain calls at a time")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.simulated:
        print(json.dumps(trio.run(on_simulated_runtime, options.pods)))
        return
    widths = [int(width) for width in options.widths.split(",")]
    took = trio.run(measure, options.pods, widths, options.rounds)
    best = {name: min(times) for name, times in took.items()}
    plain_best = min(seconds for name, seconds in best.items() if name.startswith("plain"))
    print(json.dumps({**best, "agent_to_best_plain": best["agent_s"] / plain_best}))


if __name__ == "__main__":
    main()
