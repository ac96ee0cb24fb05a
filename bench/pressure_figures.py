"""From the crossing of a threshold to the SIGTERM of the pod that goes, on a real containerd (as root).

One node with small disks of its own for the agent's files and for the runtime's, and a pool of memory for its
pods; thresholds are absolute. For each of memory, nodefs, imagefs and PIDs a pod that takes too much, beside
calm ones, several times. The crossing is noted by a reader of the same figures every few milliseconds, the
SIGTERM by the pod. The last line is JSON.

    python -m bench.pressure_figures [rounds] [stats_collect_period of containerd, s]
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import trio

from tests.containerd.harness import Manifest, Node, container, running_node, wait_until
from tests.containerd.scenes import Journal, say, uptime
from tests.containerd.test_pod_objects import Cluster
from tests.containerd.test_pressure import MIB, PodsPool, pool_config, small_disk
from trio_kubelet.common.clock import SystemClock
from trio_kubelet.machine.node_reader import processes_of_machine
from trio_kubelet.standalone import node as standalone_node
from trio_kubelet.standalone.containerd import write_config
from trio_kubelet.standalone.layout import NodeLayout
from trio_kubelet.standalone.node import provide

CALM = 5
LEFT_ON_DISK = 20 * MIB
TASKS = 1500
CHOICE = os.environ.get("TRIO_KUBELET_CONTAINERD", "1.7")


def taker(name: str, take: str) -> Manifest:
    """Takes something after a while, and says when it is asked to end."""
    return container(
        script=f"trap '{say(name + '-end')}; exit 0' TERM; sleep 1; {{ {take}; }} & wait; sleep 3600 & wait"
    )


def tasks_left() -> int:
    found = processes_of_machine(SystemClock())
    return (found.limit or 0) - (found.running or 0)


def disk_left(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


async def crossing(left: Callable[[], int], least: int) -> float:
    """When less than that is left for the first time."""
    await wait_until(lambda: left() < least, 60, "the threshold is crossed", interval=0.005)
    return uptime()


async def one(
    cluster: Cluster, node: Node, name: str, take: str, left: Callable[[], int], least: int
) -> float:
    """Seconds from the crossing to the SIGTERM."""
    journal = Journal.of(node, name)
    made: dict[str, Any] = journal.pod(name, taker(name, take))["spec"]
    containers = made.pop("containers")
    containers[0]["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    cluster.pod(node, name, *containers, volumes=[*made["volumes"], {"name": "data", "emptyDir": {}}])
    crossed = await crossing(left, least)
    await journal.until(f"{name}-end", timeout=40)
    full_name = f"{name}-{node.name}"
    cluster.store.delete("pods", "default", full_name, {"gracePeriodSeconds": 0})
    await wait_until(lambda: left() >= least, 60, "what it took is free again")

    async def forgotten() -> bool:
        return full_name not in {each["metadata"]["name"] for each in await node.pods()}

    await wait_until(forgotten, 60, "nothing is left of it")  # one pod goes at a time
    await trio.sleep(2)  # the condition is over, the next is admitted
    return journal.times(f"{name}-end")[0] - crossed


async def main(rounds: int, period: int) -> None:
    provisions = await provide(CHOICE, lambda text: None)
    cluster = Cluster()
    least_tasks = tasks_left() - TASKS
    config = pool_config(
        evictionHard={
            "memory.available": "400Mi",
            "nodefs.available": "20Mi",
            "imagefs.available": "20Mi",
            "pid.available": str(least_tasks),
        },
        evictionPressureTransitionPeriod="1s",
    )
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        scratch = Path(temporary)

        async def mounted_first(layout: NodeLayout, *rest: Any) -> Any:
            for name, at in (("images", layout.containerd_root), ("node", layout.agent_root)):
                (scratch / name).mkdir()
                stack.enter_context(small_disk(Path(at), scratch / name))
            snapshotter = await write_config(layout, *rest)
            file = layout.containerd_config
            cri = '["plugins"."io.containerd.grpc.v1.cri"]\n'
            file.write_text(file.read_text().replace(cri, f"{cri}stats_collect_period = {period}\n", 1))
            return snapshotter

        vars(standalone_node)["write_config"] = mounted_first
        async with running_node(provisions, scratch) as node, cluster.serving(node, scratch) as path:
            await node.start_agent(f"--kubeconfig={path}", config=config)
            for number in range(CALM):
                cluster.pod(node, f"calm-{number}", container())
            for number in range(CALM):
                await node.wait_running(f"calm-{number}", "main")
            pool = PodsPool(node)
            low: dict[str, tuple[str, Callable[[], int], int]] = {
                "memory": ("head -c 600m /dev/zero | tail", pool.left, 400 * MIB),
                "nodefs": (
                    "head -c 45m /dev/zero > /data/f",
                    partial(disk_left, node.layout.agent_root),
                    LEFT_ON_DISK,
                ),
                "imagefs": (
                    "head -c 30m /dev/zero > /f",
                    partial(disk_left, node.layout.containerd_root),
                    LEFT_ON_DISK,
                ),
                "pids": (
                    f"for i in $(seq {TASKS + 300}); do sleep 3600 & done",
                    tasks_left,
                    least_tasks,
                ),
            }
            for number in range(rounds):
                for what, (take, left, least) in low.items():
                    name = f"{what}-{number}"
                    found.setdefault(what, []).append(await one(cluster, node, name, take, left, least))
                    print(f"{name}: {found[what][-1]:.2f} s", flush=True)
            for number in range(CALM):
                assert await node.running(f"calm-{number}", "main")
            await node.kill_agent()
            stack.close()
    figures = {
        what: {"median": round(statistics.median(each), 2), "worst": round(max(each), 2)}
        for what, each in found.items()
    }
    print(json.dumps({"rounds": rounds, "load": os.getloadavg()[0], **figures}))


if __name__ == "__main__":
    words = [*sys.argv[1:], "5", "10"]
    trio.run(main, int(words[0]), int(words[1]) if len(sys.argv) > 2 else 10)
