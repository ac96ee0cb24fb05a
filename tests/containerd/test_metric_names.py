"""The pages of metrics beside those recorded from a kubelet that ran the same pods."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.containerd.conftest import NewNode
from tests.containerd.harness import PATIENCE, container
from tests.containerd.test_pressure import cluster_node

GOLDEN = Path(__file__).parents[1] / "golden" / "metric-names.json"
RUNS = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


def _probe(*command: str) -> dict[str, Any]:
    return {"exec": {"command": list(command)}, "periodSeconds": 1}


def _shown(page: str) -> dict[str, list[Any]]:
    """Type and labels of each metric that has a sample."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    found = {}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", page, re.MULTILINE):
        whole = re.sub("_(bucket|sum|count)$", "", name)
        metric = name if name in types else whole
        found[metric] = [types[metric], sorted({*re.findall(r'(\w+)="', labels)} - {"le", "quantile"})]
    return found


async def test_what_a_kubelet_shows_is_there(new_node: NewNode, tmp_path: Path) -> None:
    pages = json.loads(GOLDEN.read_text())["pages"]
    sidecar = {**container("side", RUNS, startupProbe=_probe("true")), "restartPolicy": "Always"}
    async with cluster_node(new_node, tmp_path, {}) as (cluster, node):
        probes = {"readinessProbe": _probe("true"), "livenessProbe": _probe("true")}
        limits = {"limits": {"memory": "60Mi"}}
        pair = container("main", f"echo hello; {RUNS}", **probes), container("second", RUNS, resources=limits)
        cluster.pod(node, "two", *pair, volumes=[{"name": "data", "emptyDir": {}}])
        cluster.pod(node, "crash", container("main", "exit 3"))
        cluster.pod(node, "init", container("main", RUNS), initContainers=[sidecar])
        cluster.pod(node, "absent", container("main", image="127.0.0.1:1/none:1", imagePullPolicy="Always"))
        await node.wait_running("two", "main", "second")
        await node.wait_running("init", "main", "side")
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:

            async def missing() -> list[tuple[str, str, Any]]:
                found = []
                for page, expected in pages.items():
                    answer = await client.get(f"http://127.0.0.1:{node.ports.read_only}{page}")
                    shown = _shown(answer.text)
                    found += [
                        (page, name, shown.get(name))
                        for name in expected
                        if shown.get(name) != expected[name]
                    ]
                return found

            for _ in range(round(10 * PATIENCE)):  # the last come with the first look at disks
                if not (found := await missing()):
                    break
                await trio.sleep(1)
            assert found == []
