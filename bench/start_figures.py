"""Many pods at once on a real containerd: this agent against plain CRI calls; the last line is JSON.

`python -m bench.start_figures`, as root. `--pods` pods of two containers are started with so many plain calls
at a time (`--widths`), and by the agent from manifests; in turn, so that a busy machine is busy for all. The
plain calls are those without which no pod starts, made pod by pod: what no agent can be faster than.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.containerd.harness import Node, container, pod, running_node, wait_until
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.doors import RuntimeService
from trio_kubelet.cri.proto import api_pb2 as cri
from trio_kubelet.standalone.images import BUSYBOX_IMAGE
from trio_kubelet.standalone.node import provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD

NAMES = ("one", "two")
IDLE = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]


async def plain(runtime: RuntimeService, node: Node, pods: int, width: int, logs: Path) -> float:
    """Seconds until all run, with so many pods being started at once."""
    limit, sandboxes = trio.CapacityLimiter(width), list[str]()

    async def start(name: str) -> None:
        async with limit:
            directory = logs / name
            directory.mkdir(parents=True)
            config = cri.PodSandboxConfig(
                metadata=cri.PodSandboxMetadata(name=name, uid=name, namespace="default"),
                log_directory=str(directory),
                linux=cri.LinuxPodSandboxConfig(cgroup_parent=f"/{node.layout.name}-plain"),
            )
            sandboxes.append(await runtime.run_pod_sandbox(config, ""))
            sandbox = sandboxes[-1]
            for each in NAMES:
                wanted = cri.ContainerConfig(
                    metadata=cri.ContainerMetadata(name=each),
                    image=cri.ImageSpec(image=BUSYBOX_IMAGE),
                    command=IDLE,
                    log_path=f"{each}.log",
                    linux=cri.LinuxContainerConfig(),
                )
                await runtime.start_container(await runtime.create_container(sandbox, wanted, config))

    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        for number in range(pods):
            nursery.start_soon(start, f"plain-{width}-{time.monotonic_ns()}-{number}")
    took = time.monotonic() - began
    for sandbox in sandboxes:
        await runtime.stop_pod_sandbox(sandbox)
        await runtime.remove_pod_sandbox(sandbox)
    return took


async def by_agent(node: Node, pods: int, name: str) -> float:
    """The same from manifests, until the runtime has started the last container."""
    await node.start_agent(config={"maxPods": 2 * pods + 10})
    await trio.sleep(6)
    began = time.time()
    for number in range(pods):
        node.write(pod(f"{name}-{number}", *(container(each) for each in NAMES)))

    async def all_up() -> bool:
        return len(await node.running()) == len(NAMES) * pods

    await wait_until(all_up, 300, "all run", interval=0.2)
    ends: list[float] = []
    for each in await node.running():
        ends.append((await node.container_status(each.id)).started_at / 1e9)
    for number in range(pods):
        node.remove(f"{name}-{number}")
    for number in range(pods):
        await node.wait_gone(f"{name}-{number}", timeout=120)
    await node.stop_agent()
    return max(ends) - began


async def measure(pods: int, widths: list[int], rounds: int) -> dict[str, list[float]]:
    """Seconds by who started the pods, one for each round."""
    provisions = await provide(DEFAULT_CONTAINERD, lambda text: print(text, file=sys.stderr))
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        async with (
            running_node(provisions, Path(scratch)) as node,
            open_cri(f"unix://{node.layout.socket}", direct=True) as services,
        ):
            for number in range(rounds):
                logs = Path(scratch) / f"plain-{number}"
                for width in widths:
                    seconds = await plain(services.runtime, node, pods, width, logs)
                    took.setdefault(f"plain_{width}_s", []).append(seconds)
                took.setdefault("agent_s", []).append(await by_agent(node, pods, f"many{number}"))
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
