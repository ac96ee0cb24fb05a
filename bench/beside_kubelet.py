"""The same real pods by this agent and by a kubelet, in turn, each on a node of its own; the last line is
JSON.

`make bench-kubelet KUBELET=/path/to/kubelet`, as root: `--pods` pods of two containers with an exec probe
each start from manifests, rest, and lose a container, then a fifth of all. CPU is the process's alone, of the
runtime's nothing. Neither has an API server; both have the same configuration file, but for who may ask,
which a kubelet without an API server cannot find out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from bench.density_figures import Spans, provide_with, repair, rest, start
from bench.node_figures import Figures
from bench.start_figures import for_so_many, start_weighed, weigh, weights
from tests.containerd.harness import Agent, Node, running_node
from trio_kubelet.cgroups.files import CgroupTree, find_hierarchies
from trio_kubelet.standalone.agent import configuration
from trio_kubelet.standalone.node import Provisions

BY_ITSELF = {
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
}


async def start_kubelet(node: Node, kubelet: Path, pods: int) -> Agent:
    """A kubelet in the agent's place; it wants its cgroup root to be there."""
    CgroupTree(find_hierarchies()).create(node.layout.cgroup_root)
    config = {**for_so_many(pods), **BY_ITSELF}
    file = node.layout.base / "kubelet.json"
    file.write_text(configuration(node.layout, node.manifests, node.ports, config))
    agent = await node.start_program(
        [
            str(kubelet),
            f"--config={file}",
            f"--root-dir={node.layout.agent_root}",
            f"--cert-dir={node.layout.agent_root / 'pki'}",
            f"--hostname-override={node.layout.name}",
        ]
    )
    weigh(node, agent)
    return agent


async def one(provisions: Provisions, kubelet: Path | None, pods: int, period: int) -> Figures:
    """All figures of a kubelet, or of this agent; within `weights`."""
    found: Figures = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as scratch:
        async with running_node(provisions, Path(scratch)) as node:
            if kubelet is None:
                agent = await start_weighed(node, pods)
            else:
                agent = await start_kubelet(node, kubelet, pods)
            spans = Spans()
            await trio.sleep(8)
            found |= await start(node, agent, pods, period, spans)
            await trio.sleep(20)
            found |= await rest(node, agent, spans)
            found |= await repair(node, agent, spans)
            await node.stop_agent()
    return found


async def measure(
    kubelet: Path, pods: int, period: int, rounds: int, oci_runtime: Path | None
) -> dict[str, list[Figures]]:
    """So many rounds of both, in turn, so that a busy machine is busy for both."""
    provisions = await provide_with(oci_runtime)
    found: dict[str, list[Figures]] = {"agent": [], "kubelet": []}
    with weights():
        for _ in range(rounds):
            for name, path in (("agent", None), ("kubelet", kubelet)):
                found[name].append(await one(provisions, path, pods, period))
                print(name, json.dumps(found[name][-1]), file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubelet", type=Path, required=True, help="the binary")
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--period", type=int, default=10, help="seconds between two probes of a container")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--oci-runtime", type=Path, help="a binary in the place of runc")
    options = parser.parse_args()
    work = partial(
        measure, options.kubelet, options.pods, options.period, options.rounds, options.oci_runtime
    )
    found = trio.run(work)
    print(f"{'':24} {'agent':>24} {'kubelet':>24}")
    for name in found["agent"][0]:
        columns = (" ".join(f"{each[name]:.2f}" for each in found[who]) for who in ("agent", "kubelet"))
        print(f"{name:24} " + " ".join(f"{column:>24}" for column in columns))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
