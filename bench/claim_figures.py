"""Many pods with claims at once on a real containerd: this agent against plain calls to driver and runtime.

`python -m bench.claim_figures --pods 100 --volumes 2`, as root; the last line is JSON. Pods of one container
with two claims each come from an API server; the tests' CSI driver mounts a filesystem in memory for each
volume (with `--disks` it formats and mounts a loop device). Then, in the same run, the same volumes are
staged and published and the same sandboxes and containers are started by plain calls, so many pods at a time
(`--widths`): what driver and runtime need by themselves. API server, driver, runtime and agent share the
machine; `server_cpu_s` is what the API server, this process, takes of it meanwhile. So there is a second
baseline (`told`): the same plain calls, and for each pod the requests that no kubelet can do without, over
TLS as well, one after the other: its claims and their volumes are read, then its status is written once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from bench.start_figures import (
    OF_A_CLUSTER,
    Start,
    clear,
    seconds_for_all,
    start_plainly,
    starts_of,
    until_started,
)
from bench.volume_figures import mount_at_paths
from tests.containerd.harness import container, running_node
from tests.containerd.test_persistent_volumes import Scene, scene
from tests.kube.opened import open_connections
from tests.storage.world import DRIVER
from trio_kubelet.api import v1
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.cri.connect import open_cri
from trio_kubelet.cri.services import RuntimeService
from trio_kubelet.grpc.loop import open_asyncio_loop
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.connections import RateLimits
from trio_kubelet.kube.kubeconfig import read_kubeconfig
from trio_kubelet.standalone.node import Provisions, provide
from trio_kubelet.standalone.packages import DEFAULT_CONTAINERD
from trio_kubelet.storage.calls import GrpcCalls
from trio_kubelet.storage.csi.driver import CSIDriverClient
from trio_kubelet.storage.names import csi_global_mount
from trio_kubelet.volumes.files import unmount_all

CSI_VOLUMES = "/volumes/kubernetes.io~csi/pv-"
DEFAULT = "/api/v1/namespaces/default"


def volumes_of(start: Start) -> dict[str, str]:
    """Where a pod's volumes are published, by their handles."""
    paths = [mount.host_path for each in start.containers for mount in each.mounts]
    return {
        path.partition(CSI_VOLUMES)[2].removesuffix("/mount"): path for path in paths if CSI_VOLUMES in path
    }


async def plain(
    s: Scene,
    runtime: RuntimeService,
    client: CSIDriverClient,
    starts: Sequence[Start],
    width: int,
    api: KubeClient | None = None,
) -> float:
    """Seconds until all run, with so many pods being started at once; they are taken away again. With `api`
    the API server is asked, and told, of them.
    """
    root = str(s.node.layout.agent_root)

    async def mount(handle: str, target: str) -> None:
        if api is not None:
            await api.get(f"{DEFAULT}/persistentvolumeclaims/{handle}", v1.PersistentVolumeClaim)
            await api.get(f"/api/v1/persistentvolumes/pv-{handle}", v1.PersistentVolume)
        await mount_at_paths(client, handle, csi_global_mount(root, DRIVER, handle), target)

    async def start(pod: Start) -> None:
        async with trio.open_nursery() as nursery:
            for handle, target in volumes_of(pod).items():
                nursery.start_soon(mount, handle, target)
        await start_plainly(runtime, pod)
        if api is not None:
            name = pod.sandbox.metadata.name
            status = {**s.cluster.store.get("pods", "default", name)["status"], "reason": f"Plain{width}"}
            body = msgspec.json.encode({"status": status})
            await api.patch(f"{DEFAULT}/pods/{name}/status", body, v1.Pod)

    took = await seconds_for_all(starts, width, start)
    await clean(s, runtime, starts)
    return took


async def clean(s: Scene, runtime: RuntimeService, starts: Sequence[Start]) -> None:
    """Takes away the pods and their volumes; their directories stay."""
    await clear(runtime, s.node)
    for start in starts:
        for target in volumes_of(start).values():
            unmount_all(target)
    unmount_all(str(s.node.layout.agent_root / "plugins"))
    s.driver.free_disks()


async def one_round(
    s: Scene, runtime: RuntimeService, client: CSIDriverClient, pods: int, volumes: int, widths: Sequence[int]
) -> dict[str, float]:
    """Seconds by who started the pods: the agent, then plain calls that ask for the same."""
    agent, names = s.node.agent, [[f"v{pod}-{number}" for number in range(volumes)] for pod in range(pods)]
    assert agent is not None
    for name in ("first", *(name for claims in names for name in claims)):
        s.claims.claim(name)
    await s.start("first", "first")
    await trio.sleep(6)
    began, used, agents = time.time(), time.process_time(), agent.cpu_seconds()
    for pod, claims in enumerate(names):
        mounts = [{"name": each, "mountPath": f"/{each}"} for each in claims]
        wanted = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
        s.cluster.pod(s.node, f"many-{pod}", container("a", volumeMounts=mounts), volumes=wanted)
    took = {"agent_s": await until_started(s.node, pods + 1) - began}
    took["server_cpu_s"] = time.process_time() - used
    took["agent_cpu_s"] = agent.cpu_seconds() - agents
    await s.node.kill_agent()
    starts = await starts_of(s.node)
    await clean(s, runtime, starts)
    starts = [start for start in starts if start.sandbox.metadata.name.startswith("many-")]
    assert [len(volumes_of(start)) for start in starts] == [volumes] * pods
    config = read_kubeconfig(s.kubeconfig)
    async with open_connections(config, SystemClock(), RateLimits(api_qps=-1)) as connections:
        for width in widths:
            took[f"plain_{width}_s"] = await plain(s, runtime, client, starts, width)
            took[f"told_{width}_s"] = await plain(s, runtime, client, starts, width, connections.client)
    return took


async def measure(
    pods: int, volumes: int, widths: list[int], rounds: int, disks: bool
) -> dict[str, list[float]]:
    """Seconds by who started the pods, one for each round."""
    provisions = await provide(DEFAULT_CONTAINERD, lambda text: print(text, file=sys.stderr))
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, seconds in (await in_scene(provisions, pods, volumes, widths, disks)).items():
            took.setdefault(name, []).append(seconds)
        print(took, f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return took


async def in_scene(
    provisions: Provisions, pods: int, volumes: int, widths: list[int], disks: bool
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        async with scene(lambda: running_node(provisions, directory), directory, OF_A_CLUSTER, 0) as s:
            s.driver.set(**({"size": 4 << 20} if disks else {"fs": "tmpfs"}))
            async with (
                open_cri(f"unix://{s.node.layout.socket}", direct=True) as services,
                open_asyncio_loop() as loop,
            ):
                with GrpcCalls(loop) as calls:
                    client = CSIDriverClient(DRIVER, str(s.driver.socket), calls)
                    return await one_round(s, services.runtime, client, pods, volumes, widths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--volumes", type=int, default=2)
    parser.add_argument("--widths", default="4,8", help="plain pods at a time")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--disks", action="store_true")
    options = parser.parse_args()
    widths = [int(width) for width in options.widths.split(",")]
    took = trio.run(measure, options.pods, options.volumes, widths, options.rounds, options.disks)
    best = {name: min(times) for name, times in took.items()}
    for kind in ("plain", "told"):
        fastest = min(seconds for name, seconds in best.items() if name.startswith(kind))
        best[f"agent_to_best_{kind}"] = best["agent_s"] / fastest
    print(json.dumps(best))


if __name__ == "__main__":
    main()
