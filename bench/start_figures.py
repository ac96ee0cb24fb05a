"""Many pods at once on a real containerd: this agent against plain CRI calls; the last line is JSON.

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
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio
from google.protobuf.json_format import ParseDict

from tests.containerd.harness import Node, container, pod, running_node, wait_until
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.doors import RuntimeService
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.standalone.node import provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD

NAMES = ("one", "two")


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


async def one_round(
    node: Node, runtime: RuntimeService, pods: int, widths: Sequence[int]
) -> dict[str, float]:
    """Seconds by who started the pods: the agent from manifests, then plain calls that ask for the same."""
    await node.start_agent(config={"maxPods": 2 * pods + 10})
    await trio.sleep(6)
    began = time.time()
    for number in range(pods):
        node.write(pod(f"many-{number}", *(container(each) for each in NAMES)))
    took = {"agent_s": await until_started(node, len(NAMES) * pods) - began}
    await node.kill_agent()
    starts = await starts_of(node)
    assert len(starts) == pods
    await clear(runtime, node)
    for width in widths:
        took[f"plain_{width}_s"] = await plain(runtime, node, starts, width)
    return took


async def measure(pods: int, widths: list[int], rounds: int) -> dict[str, list[float]]:
    """Seconds by who started the pods, one for each round."""
    provisions = await provide(DEFAULT_CONTAINERD, lambda text: print(text, file=sys.stderr))
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            async with (
                running_node(provisions, Path(scratch)) as node,
                open_cri(f"unix://{node.layout.socket}", direct=True) as services,
            ):
                for name, seconds in (await one_round(node, services.runtime, pods, widths)).items():
                    took.setdefault(name, []).append(seconds)
        print(took, f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--widths", default="2,4,8,16", help="plain calls at a time")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    widths = [int(width) for width in options.widths.split(",")]
    took = trio.run(measure, options.pods, widths, options.rounds)
    best = {name: min(times) for name, times in took.items()}
    plain_best = min(seconds for name, seconds in best.items() if name != "agent_s")
    print(json.dumps({**best, "agent_to_best_plain": best["agent_s"] / plain_best}))


if __name__ == "__main__":
    main()
