"""The agent as a node of a cluster at rest and at work; the last line is JSON.

The agent is a process of its own on a simulated runtime; this process is the API server. `--pods` pods of two
containers, each with a readiness probe, a ConfigMap and a token volume, as pods of a cluster have them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from bench.node_figures import WITHOUT_CGROUPS, Figures, at_rest, simulated
from tests.containerd.harness import Agent, container, pod, wait_until
from tests.containerd.test_sources import kubeconfig
from tests.kube.apiserver import APIServer, serving
from tests.kube.certs import CA
from tests.kube.store import Selector
from trio_kubelet.api import v1
from trio_kubelet.api.defaults import set_pod_defaults
from trio_kubelet.commands.client import SOCKET_NAME, ask
from trio_kubelet.common.clock import NANOSECONDS, SystemClock
from trio_kubelet.standalone.agent import command_line, configuration, free_ports
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import new_layout

Tree = dict[str, Any]
VOLUMES = [
    {"name": "settings", "configMap": {"name": "settings"}},
    {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
]
MOUNTS = [{"name": "settings", "mountPath": "/settings"}, {"name": "token", "mountPath": "/token"}]
PODS = Selector("pods")
PROBE = {"exec": {"command": ["true"]}, "periodSeconds": 10}


class Cluster:
    """An API server with pods for one node."""

    def __init__(self, node_name: str) -> None:
        self.node_name = node_name
        self.server = APIServer(clock=SystemClock())
        self.store = self.server.store
        self.store.create("configmaps", "default", {"metadata": {"name": "settings"}, "data": {"a": "b"}})
        self.store.create("serviceaccounts", "default", {"metadata": {"name": "default"}})

    def add_pod(self, name: str) -> str:
        """Creates a pod that is bound to the node; its UID."""
        made = msgspec.convert(
            pod(
                name,
                container("one", imagePullPolicy="IfNotPresent", volumeMounts=MOUNTS, readinessProbe=PROBE),
                container("two", imagePullPolicy="IfNotPresent"),
                nodeName=self.node_name,
                serviceAccountName="default",
                volumes=VOLUMES,
            ),
            v1.Pod,
        )
        set_pod_defaults(made)
        tree: Tree = json.loads(msgspec.json.encode(made))
        uid: str = self.store.create("pods", "default", tree)["metadata"]["uid"]
        return uid

    def ready(self) -> int:
        """How many pods are ready."""
        return sum(is_ready(each) for each in self.store.list(PODS))

    async def wait_ready(self, pods: int) -> None:
        """Until so many pods are ready."""
        await wait_until(lambda: self.ready() == pods, 300, f"{pods} pods are ready", interval=0.05)


def is_ready(pod: Tree) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())


@asynccontextmanager
async def agent_in_cluster(base: Path, cluster: Cluster) -> AsyncIterator[tuple[Agent, NodeLayout]]:
    """An agent process on a simulated runtime, with `cluster` as its API server."""
    layout, ca = await new_layout(cluster.node_name, base), CA()
    manifests = layout.base / "manifests"
    manifests.mkdir()
    file, ports = layout.base / "agent.json", free_ports()
    file.write_text(configuration(layout, manifests, ports, {"maxPods": 1000, **WITHOUT_CGROUPS}))
    async with (
        simulated(layout),
        serving(cluster.server, ca.server_context(base, ("127.0.0.1",))) as url,
    ):
        flags = [f"--kubeconfig={kubeconfig(base, url, ca, layout.name)}", f"--cert-dir={base}/pki"]
        log = layout.base / "agent.log"
        with log.open("wb") as out:
            process = await trio.lowlevel.open_process(
                command_line(layout, file, flags), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        agent = Agent(process, log)
        try:
            yield agent, layout
        except BaseException:
            print(agent.log_text()[-4000:], file=sys.stderr)
            raise
        finally:
            with trio.CancelScope(shield=True):
                process.terminate()
                await process.wait()


async def watch_to_worker(cluster: Cluster, layout: NodeLayout, rounds: int) -> list[float]:
    """From the creation of a pod at the API server until its worker has it, in seconds."""
    took = []
    socket = str(layout.agent_root / SOCKET_NAME)
    for number in range(rounds):
        began = time.time_ns()
        uid = cluster.add_pod(f"one-{number}")
        await cluster.wait_ready(number + 1)
        story = json.loads(await trio.to_thread.run_sync(ask, socket, f"/debug/story/{uid}"))
        took.append((story[0]["first_ns"] - began) / NANOSECONDS)
        await trio.sleep(0.2)
    return took


async def measure(pods: int, idle: float) -> Figures:
    """All figures. `pods` come at once, after ten that come one by one."""
    cluster = Cluster(f"b{os.getpid() % 10**6}")
    with tempfile.TemporaryDirectory(prefix="tk-") as base:
        async with agent_in_cluster(Path(base), cluster) as (agent, layout):
            await wait_until(lambda: cluster.store.list(Selector("nodes")), 30, "the node is registered")
            await trio.sleep(3)
            latency = await watch_to_worker(cluster, layout, 10)
            cpu, began = agent.cpu_seconds(), time.monotonic()
            for number in range(pods - 10):
                cluster.add_pod(f"many-{number}")
            await cluster.wait_ready(pods)
            busy, took = agent.cpu_seconds() - cpu, time.monotonic() - began
            await trio.sleep(60)
            share, memory = await at_rest(agent, idle)
            return {
                "watch_to_worker_s": statistics.median(latency),
                "watch_to_worker_max_s": max(latency),
                "pods_ready_s": took,
                "pods_ready_cpu_s": busy,
                "idle_cpu_percent": share,
                "idle_memory_mb": memory,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--idle", type=float, default=120.0, help="seconds of rest that are measured")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    figures = trio.run(measure, given.pods, given.idle)
    figures |= {"load_before": before, "load_after": os.getloadavg()[0]}
    for name, value in figures.items():
        print(f"{name:28} {value:8.3f}")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
