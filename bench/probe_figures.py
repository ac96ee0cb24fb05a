"""What 500 probed pods cost: CPU of a real agent process over the simulated runtime in another process.

The same pods are run without and with a probe every 10 s each (exec, so that each probe is a call to the
runtime; or TCP), after all first probes have passed. Prints JSON; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import trio

from bench.node_figures import WITHOUT_CGROUPS, at_rest, simulated
from tests.containerd.harness import Agent, container, pod, wait_until
from trio_kubelet.standalone.agent import command_line, configuration, free_ports
from trio_kubelet.standalone.node import new_layout

PERIOD = 10
PROBES: dict[str, dict[str, Any]] = {"none": {}, "exec": {"exec": {"command": ["true"]}}}
RUNNING = re.compile(r'^kubelet_running_containers\{container_state="running"\} (\S+)', re.MULTILINE)


async def cost(kind: str, pods: int, seconds: float) -> dict[str, float]:
    """CPU share of a core at rest, and probes a second while measuring."""
    import httpx

    with tempfile.TemporaryDirectory(prefix="tk-") as scratch:
        layout = await new_layout(f"b{os.getpid() % 10**6}{kind}", Path(scratch))
        manifests, ports = Path(scratch) / "manifests", free_ports()
        manifests.mkdir()
        probe: dict[str, Any] = (
            {"livenessProbe": {**PROBES[kind], "periodSeconds": PERIOD}} if PROBES[kind] else {}
        )
        for number in range(pods):
            manifest = pod(f"p{number}", container(imagePullPolicy="IfNotPresent", **probe))
            (manifests / f"p{number}.json").write_text(json.dumps(manifest))
        file = Path(scratch) / "agent.json"
        extra = {**WITHOUT_CGROUPS, "maxPods": 2 * pods}
        file.write_text(configuration(layout, manifests, ports, extra))
        async with simulated(layout):
            log = (Path(scratch) / "agent.log").open("wb")
            process = await trio.lowlevel.open_process(command_line(layout, file), stdout=log, stderr=log)
            agent = Agent(process, Path(scratch) / "agent.log")
            url = f"http://127.0.0.1:{ports.read_only}/metrics"
            try:

                async def probed() -> float:
                    async with httpx.AsyncClient(trust_env=False) as client:
                        text = (await client.get(f"{url}/probes")).text
                    return sum(
                        float(line.split()[-1]) for line in text.splitlines() if "probe_total{" in line
                    )

                async def settled() -> bool:
                    async with httpx.AsyncClient(trust_env=False) as client:
                        running = RUNNING.search((await client.get(url)).text)
                    up = running is not None and float(running[1]) >= pods
                    return up and (kind == "none" or await probed() >= pods)

                await wait_until(settled, 120, "all pods run", interval=1)
                await trio.sleep(2 * PERIOD)
                before = await probed()
                cpu, _ = await at_rest(agent, seconds)
                return {"cpu_percent": cpu, "probes_per_second": (await probed() - before) / seconds}
            finally:
                process.terminate()
                await process.wait()
                log.close()


async def figures(pods: int, seconds: float) -> dict[str, Any]:
    """Both runs, and what the probes alone cost."""
    found = {kind: await cost(kind, pods, seconds) for kind in PROBES}
    share = found["exec"]["cpu_percent"] - found["none"]["cpu_percent"]
    return {"pods": pods, **found, "probes_cpu_percent": round(share, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    print(json.dumps(trio.run(figures, options.pods, options.seconds)))


if __name__ == "__main__":
    main()
